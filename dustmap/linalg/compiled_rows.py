r"""Operators made of rows that compiled loops walk over, stored or made as needed.

All products take the columns of a batch together, interleaved as ``(length, width)``:
an entry is read once for up to sixteen columns. ``Aᵀ y`` adds each row to a vector of
its thread's own, and the vectors are summed in a fixed order: for one number of threads
the result is the same bit for bit.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg import compiled_products as loops
from dustmap.linalg.compiled_tasks import in_parallel, thread_count
from dustmap.linalg.operator import SizedOperator

# Columns taken together; a batch is filled up with zeros to the next of these.
_WIDTHS = (1, 8)
_WIDEST = 16
# Bytes of a vector beyond which sixteen columns at once are slower than twice eight.
_WIDE = 2**26
# Bytes of a vector that stays in a processor's own cache.
_CACHE = 2**20
# Bytes of the threads' own vectors; beyond it fewer threads take part.
_VECTORS = 2**30
_PRECISION = {torch.float32: np.float32, torch.float64: np.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Consecutive rows ``first … first + count`` in compressed form."""

    pointers: np.ndarray  # (≥ count + 1,) uint64, where each row's entries begin
    columns: np.ndarray  # uint32
    values: np.ndarray  # float32 or float64
    first: int
    count: int


# The rows that one thread works on, in blocks; made anew for every product.
Blocks = Callable[[], Iterator[Rows]]


class RowOperator(SizedOperator):
    """A matrix whose rows come in blocks, on the CPU."""

    @abstractmethod
    def _parts(self, count: int) -> list[Blocks]:
        """All rows in so many parts of about equal work."""

    def matvec(self, x: Tensor) -> Tensor:
        """``A x``; differentiable in ``x``."""
        return _Product.apply(x, self, False)

    def rmatvec(self, y: Tensor) -> Tensor:
        """``Aᵀ y``; differentiable in ``y``."""
        return _Product.apply(y, self, True)

    def gram(
        self, x: Float[Tensor, "*batch columns"], weights: Float[Tensor, " rows"]
    ) -> Float[Tensor, "*batch columns"]:
        """``Aᵀ diag(weights) A x`` in one pass over the entries.

        Differentiable, then by the two products one after another.
        """
        self._require(x, self.shape[1])
        if weights.shape != (self.shape[0],) or weights.dtype != self.dtype:
            raise ValueError(
                f"weights must be {self.shape[0]} numbers of {self.dtype}, one for "
                f"each row, got {tuple(weights.shape)} of {weights.dtype}"
            )
        if torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad):
            return self.rmatvec(weights * self.matvec(x))
        w = weights.detach().contiguous().numpy()

        def step(rows: Rows, source: np.ndarray, total: np.ndarray, like) -> None:
            loops.gather_scatter(
                rows.pointers, rows.columns, rows.values, source, w, total, like,
                0, rows.count, rows.first,
            )  # fmt: skip

        return self._summed(x, self.shape[1], step)

    def _gathered(self, x: Tensor) -> Tensor:
        """``A x``: every row a sum."""
        self._require(x, self.shape[1])
        flat, result = self._flat(x, self.shape[0])
        for group, width in _groups(flat, self.shape[1]):
            source = _interleaved(flat[group], width)
            total = np.empty((self.shape[0], width), flat.dtype)
            parts = self._parts(thread_count(self.nonzeros * width))
            like = _like(flat.dtype, width)

            def task(part: int, source=source, total=total, parts=parts, like=like):
                for rows in parts[part]():
                    out = total[rows.first : rows.first + rows.count]
                    loops.gather(
                        rows.pointers, rows.columns, rows.values, source, out, like,
                        0, rows.count,
                    )  # fmt: skip

            in_parallel(task, len(parts))
            _separated(total[None], result[group])
        return torch.from_numpy(result).reshape(*x.shape[:-1], self.shape[0])

    def _scattered(self, y: Tensor) -> Tensor:
        """``Aᵀ y``: every row added to its columns."""
        self._require(y, self.shape[0])

        def step(rows: Rows, source: np.ndarray, total: np.ndarray, like) -> None:
            part = source[rows.first : rows.first + rows.count]
            loops.scatter(
                rows.pointers, rows.columns, rows.values, part, total, like,
                0, rows.count,
            )  # fmt: skip

        return self._summed(y, self.shape[1], step)

    def _summed(self, x: Tensor, length: int, step: Callable) -> Tensor:
        """What all rows add up to, each thread in a vector of its own."""
        flat, result = self._flat(x, length)
        for group, width in _groups(flat, length):
            source = _interleaved(flat[group], width)
            threads = thread_count(self.nonzeros * width)
            room = _VECTORS // (_size(flat, length) * width)
            parts = self._parts(max(1, min(threads, room)))
            totals = np.zeros(
                (len(parts), length, width), _total_type(flat.dtype, width, length)
            )
            like = _like(flat.dtype, width)

            def task(part: int, source=source, totals=totals, parts=parts, like=like):
                for rows in parts[part]():
                    step(rows, source, totals[part], like)

            in_parallel(task, len(parts))
            _separated(totals, result[group])
        return torch.from_numpy(result).reshape(*x.shape[:-1], length)

    def _flat(self, x: Tensor, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The batch as one axis, and room for its image."""
        batch = math.prod(x.shape[:-1])
        flat = x.detach().reshape(batch, x.shape[-1]).contiguous().numpy()
        return flat, np.empty((batch, length), flat.dtype)

    def _require(self, x: Tensor, length: int) -> None:
        if not x.shape or x.shape[-1] != length or x.dtype != self.dtype:
            raise ValueError(
                f"expected (…, {length}) numbers of {self.dtype}, got "
                f"{tuple(x.shape)} of {x.dtype}"
            )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, operator: RowOperator, transposed: bool) -> Tensor:
        ctx.operator, ctx.transposed = operator, transposed
        return operator._scattered(x) if transposed else operator._gathered(x)

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        return (
            _Product.apply(gradients[0], ctx.operator, not ctx.transposed),
            None,
            None,
        )


def precision(dtype: torch.dtype) -> type:
    """NumPy's type for the operator's numbers.

    Raises
    ------
    ValueError
        If the loops are not made for it.
    """
    if dtype not in _PRECISION:
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    return _PRECISION[dtype]


def even_parts(pointers: np.ndarray, count: int) -> np.ndarray:
    """Where to cut rows into ``count`` runs of about as many entries each."""
    goals = np.linspace(0, float(pointers[-1]), count + 1)[1:-1]
    inner = np.searchsorted(pointers, goals.astype(pointers.dtype))
    return np.concatenate([[0], inner, [len(pointers) - 1]]).astype(np.int64)


def _groups(x: np.ndarray, length: int) -> Iterator[tuple[slice, int]]:
    """Columns to take together, with the width they are filled up to."""
    wide = _WIDEST * _size(x, length) <= _WIDE
    widths = (*_WIDTHS, _WIDEST) if wide else _WIDTHS
    for start in range(0, len(x), widths[-1]):
        stop = min(len(x), start + widths[-1])
        yield slice(start, stop), next(w for w in widths if w >= stop - start)


def _size(x: np.ndarray, length: int) -> int:
    return max(1, x.itemsize * length)


def _like(dtype: np.dtype, width: int) -> tuple:
    """Zeros in the precision of the sums along a row.

    float64 costs a single column 5% and several 10% to 40%.
    """
    return (np.float64(0) if width == 1 else dtype.type(0),) * width


def _total_type(dtype: np.dtype, width: int, length: int) -> type:
    """The precision of the sums along a column.

    float64 costs a single column 5% where the vector fits the cache, 20% where it does
    not, and several columns 60%.
    """
    exact = width == 1 and 8 * length <= _CACHE
    return np.float64 if exact else dtype.type


def _interleaved(x: np.ndarray, width: int) -> np.ndarray:
    length = x.shape[1]
    if width == 1:
        return x.reshape(length, 1)
    out = np.empty((length, width), x.dtype)
    cuts = np.linspace(0, length, thread_count(out.size) + 1).astype(np.int64)
    in_parallel(
        lambda part: loops.interleave(x, out, cuts[part], cuts[part + 1]),
        len(cuts) - 1,
    )
    return out


def _separated(parts: np.ndarray, out: np.ndarray) -> None:
    cuts = np.linspace(0, out.shape[1], thread_count(parts.size) + 1).astype(np.int64)
    in_parallel(
        lambda part: loops.separate(parts, out, cuts[part], cuts[part + 1]),
        len(cuts) - 1,
    )
