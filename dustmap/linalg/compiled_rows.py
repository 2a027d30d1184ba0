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


# The rows that one thread works on, in blocks; recomputed for every product.
Blocks = Callable[[], Iterator[Rows]]


class RowOperator(SizedOperator):
    """A matrix whose rows come in blocks, on the CPU; one pass over them a product.

    Products have no derivative: torch refuses vectors that require one.
    """

    @abstractmethod
    def _parts(self, count: int) -> list[Blocks]:
        """Return all rows in this number of parts of about equal work."""

    def matvec(self, x: Tensor) -> Tensor:
        self._require(x, self.shape[1])
        return self._product(x, self.shape[0], loops.gather)

    def rmatvec(self, y: Tensor) -> Tensor:
        self._require(y, self.shape[0])
        return self._product(y, self.shape[1], loops.scatter)

    def gram(
        self, x: Float[Tensor, "*batch columns"], weights: Float[Tensor, " rows"]
    ) -> Float[Tensor, "*batch columns"]:
        self._require(x, self.shape[1])
        if weights.shape != (self.shape[0],) or weights.dtype != self.dtype:
            raise ValueError(
                f"weights must be {self.shape[0]} numbers of {self.dtype}, one for "
                f"each row, got {tuple(weights.shape)} of {weights.dtype}"
            )
        w = weights.contiguous().numpy()
        return self._product(x, self.shape[1], loops.gather_scatter, w)

    def _product(
        self,
        x: Tensor,
        length: int,
        loop: Callable,
        weights: np.ndarray | None = None,
    ) -> Tensor:
        """Multiply some columns of the batch after others, by this loop."""
        batch = math.prod(x.shape[:-1])
        flat = x.reshape(batch, x.shape[-1]).contiguous().numpy()
        result = np.empty((batch, length), flat.dtype)
        for group, width in _groups(flat, flat.itemsize * self.shape[1]):
            source = _interleaved(flat[group], width)
            # float64 costs a single column 5%, and several 10% to 40%.
            like = (np.float64(0) if width == 1 else flat.dtype.type(0),) * width
            threads = thread_count(self.nonzeros * width)
            if loop is loops.gather:
                totals = np.empty((1, length, width), flat.dtype)
            else:
                totals = _accumulators(threads, length, width, flat.dtype)
                threads = len(totals)
            parts = self._parts(threads)

            def task(part: int, parts=parts, source=source, totals=totals, like=like):
                for rows in parts[part]():
                    own = slice(rows.first, rows.first + rows.count)
                    entries = (rows.pointers, rows.columns, rows.values)
                    if loop is loops.gather:
                        loop(*entries, source, totals[0, own], like)
                    elif weights is None:
                        loop(*entries, source[own], totals[part], like)
                    else:
                        loop(*entries, source, weights[own], totals[part], like)

            in_parallel(task, threads)
            _separated(totals, result[group])
        return torch.from_numpy(result).reshape(*x.shape[:-1], length)


def precision(dtype: torch.dtype) -> type:
    """Return NumPy's type for the operator's numbers.

    Raises
    ------
    ValueError
        If the loops are not made for it.
    """
    if dtype not in _PRECISION:
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    return _PRECISION[dtype]


def even_parts(pointers: np.ndarray, count: int) -> np.ndarray:
    """Return the cuts of rows into ``count`` runs of about as many entries each."""
    goals = np.linspace(0, float(pointers[-1]), count + 1)[1:-1]
    inner = np.searchsorted(pointers, goals.astype(pointers.dtype))
    return np.concatenate([[0], inner, [len(pointers) - 1]]).astype(np.int64)


def _accumulators(threads: int, length: int, width: int, dtype: np.dtype) -> np.ndarray:
    """Return zeros for each thread's sums along columns; memory limits the threads.

    float64 costs a single column 5% where the vector fits the cache, 20% where it does
    not, and several columns 60%.
    """
    room = _VECTORS // max(1, dtype.itemsize * length * width)
    exact = width == 1 and 8 * length <= _CACHE
    shape = (max(1, min(threads, room)), length, width)
    return np.zeros(shape, np.float64 if exact else dtype)


def _groups(x: np.ndarray, bytes_each: int) -> Iterator[tuple[slice, int]]:
    """Yield columns to take together, with the width they are filled up to."""
    widths = (1, 8, 16) if 16 * bytes_each <= _WIDE else (1, 8)
    for start in range(0, len(x), widths[-1]):
        stop = min(len(x), start + widths[-1])
        yield slice(start, stop), next(w for w in widths if w >= stop - start)


def _interleaved(x: np.ndarray, width: int) -> np.ndarray:
    """Rows as ``(length, width)``, filled up with zeros."""
    if width == 1:
        return x.reshape(-1, 1)
    out = np.zeros((x.shape[1], width), x.dtype)

    def copy(part: slice) -> None:
        out[part, : len(x)] = x[:, part].T

    _in_stretches(copy, len(out), out.size)
    return out


def _separated(parts: np.ndarray, out: np.ndarray) -> None:
    """``out[k, i] = Σ_t parts[t, i, k]``, summed in the order of the parts."""

    def add(part: slice) -> None:
        out[:, part] = parts[:, part, : len(out)].sum(axis=0).T

    _in_stretches(add, out.shape[1], parts.size)


def _in_stretches(task: Callable[[slice], None], length: int, work: int) -> None:
    """Do a task for stretches of a vector, one per thread."""
    cuts = np.linspace(0, length, thread_count(work) + 1).astype(np.int64)
    in_parallel(lambda n: task(slice(cuts[n], cuts[n + 1])), len(cuts) - 1)
