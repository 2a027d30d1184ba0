r"""Sparse matrices with compiled loops over rows.

All products take the columns of a batch together, interleaved as ``(length, width)``:
an entry is read once for up to sixteen columns. ``Aᵀ y`` adds each row to a vector of
the thread, and the vectors are summed in a fixed order: for one number of threads the
result is reproducible bit for bit. Interleaved vectors omit the columns of A without
entries: a torus is twice as large as the cells that rays cross.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg import compiled_products as loops
from dustmap.linalg.compiled_tasks import in_parallel, over_rows, thread_count
from dustmap.linalg.operator import Columns, SizedOperator
from dustmap.memory import rows_within
from dustmap.shapes import Device

# Bytes of a vector beyond which sixteen columns at once are slower than twice eight.
_WIDE = 2**26
# Most entries of a matrix on a device: torch counts them in 32 bits, and so do versions
# of cuSPARSE.
_MOST_ENTRIES = 2**30
# The column numbers of a loop over all columns: it needs none.
_EVERY = np.empty(0, np.uint32)
_PRECISION = {torch.float32: np.float32, torch.float64: np.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Consecutive rows ``first … first + count`` in compressed form."""

    pointers: np.ndarray  # (≥ count + 1,) uint64, first entry of each row
    columns: np.ndarray  # uint32
    values: np.ndarray  # float32 or float64
    count: int
    first: int = 0

    @classmethod
    def of(cls, matrix: scipy.sparse.csr_matrix, dtype: type, first: int = 0) -> Rows:
        """Return the rows of a matrix, counted from ``first``."""
        return cls(
            pointers=matrix.indptr.astype(np.uint64),
            columns=matrix.indices.astype(np.int32).view(np.uint32),
            values=matrix.data.astype(dtype, copy=False),
            count=len(matrix.indptr) - 1,
            first=first,
        )


class RowLoops(SizedOperator):
    """A matrix whose products are compiled loops over runs of its rows.

    A loop has the arrays of a run, its input, weights of its rows if there are any, and
    its output. ``_used`` holds the columns that interleaved vectors have.
    """

    _used: np.ndarray

    @abstractmethod
    def _runs(self, count: int) -> list[tuple[slice, tuple[Any, ...]]]:
        """Return ``count`` runs of rows, of equal work, and their arrays."""

    def _gather(self, loop: Callable, x: Tensor) -> Tensor:
        return self._by_rows(loop, x, self._used, None)

    def _scatter(self, loop: Callable, y: Tensor) -> Tensor:
        return self._by_rows(loop, y, None, self._used)

    def _by_rows(
        self,
        loop: Callable,
        x: Tensor,
        given: np.ndarray | None,
        found: np.ndarray | None,
        *weights: np.ndarray,
    ) -> Tensor:
        """Multiply the columns of the batch, group by group, with this loop.

        The vectors that it reads and writes hold these columns, or every row if `None`.
        """
        batch = math.prod(x.shape[:-1])
        flat = x.reshape(batch, x.shape[-1]).contiguous().numpy()
        result = np.zeros((batch, self.shape[found is not None]), flat.dtype)
        count = self.shape[0] if found is None else len(found)
        wide = 16 * flat.itemsize * len(self._used) <= _WIDE
        widths = (1, 4, 8, 16) if wide else (1, 4, 8)
        for start in range(0, batch, widths[-1]):
            group = slice(start, min(batch, start + widths[-1]))
            # Columns are padded to the next width.
            width = next(w for w in widths if w >= group.stop - start)
            source = _interleaved(flat[group], given, width)
            # float64 is slower by 5% for a single column, and 10% to 40% for several.
            like = (np.float64(0) if width == 1 else flat.dtype.type(0),) * width
            threads = thread_count(self.nonzeros * width)
            if found is None and width == 1:
                totals = result[group].reshape(1, count, 1)
            elif found is None:
                totals = np.empty((1, count, width), flat.dtype)
            else:
                # A gibibyte for each thread's sums along columns. float64 is slower by
                # 5% for a single column if its vector fits the cache of a processor, a
                # mebibyte, else by 20%, and by 60% for several columns.
                exact = width == 1 and 8 * count <= 2**20
                room = rows_within(flat.itemsize * count * width, 2**30)
                threads = min(threads, room)
                numbers = np.float64 if exact else flat.dtype
                totals = np.empty((threads, count, width), numbers)
            runs = self._runs(threads)

            def task(part: int, runs=runs, source=source, totals=totals, like=like):
                rows, arrays = runs[part]
                read = source[rows] if given is None else source
                write = totals[0, rows] if found is None else totals[part]
                loop(*arrays, read, *(w[rows] for w in weights), write, like)

            in_parallel(task, threads)
            if found is None and width == 1:
                continue
            parts = totals, _EVERY if found is None else found, result[group]
            over_rows(loops.separate, count, totals.size, *parts)
        return torch.from_numpy(result).reshape(*x.shape[:-1], result.shape[1])


class SparseMatrix(RowLoops):
    """A compressed-row matrix, ready for fast products from both sides.

    On the CPU it holds the rows once (``nnz (value + 4) + 8 rows + 4 columns`` bytes,
    mostly without counting empty columns), and compiled loops run over them for every
    product. On other devices it holds torch's matrices and their transposes (twice as
    much), a pair for every 2³⁰ entries, and ``gram`` is two products. Products have no
    derivative: vectors that require one raise an error.

    Raises `ValueError` if ``dtype`` is not float32 or float64 (on the CPU), or there
    are 2³¹ columns.
    """

    def __init__(
        self,
        matrix: scipy.sparse.csr_matrix,
        *,
        dtype: torch.dtype = torch.float64,
        device: Device = "cpu",
    ) -> None:
        assert matrix.shape is not None
        rows, columns = int(matrix.shape[0]), int(matrix.shape[1])
        if columns >= 2**31:
            raise ValueError(f"at most 2³¹ − 1 columns are possible, got {columns}")
        self.shape = (rows, columns)
        self.dtype = dtype
        self.device = torch.device(device)
        self.nonzeros = int(matrix.nnz)
        self._pairs: list[tuple[Tensor, Tensor]] = []
        if self.device.type == "cpu":
            self._hold(Rows.of(matrix, precision(dtype)))
            return
        count = max(1, -(-self.nonzeros // _MOST_ENTRIES))
        for run in _runs_of(matrix.indptr, count):
            part = matrix if count == 1 else matrix[run]
            own = _torch_csr(part, dtype, self.device)
            self._pairs.append((own, _torch_csr(part.T.tocsr(), dtype, self.device)))

    @classmethod
    def of_rows(
        cls, rows: Rows, columns: int, *, device: Device = "cpu"
    ) -> SparseMatrix:
        """Return the matrix of all these rows, which it takes over on the CPU."""
        dtype = torch.from_numpy(rows.values[:0]).dtype
        if torch.device(device).type != "cpu":
            parts = (rows.values, rows.columns.view(np.int32), rows.pointers)
            matrix = scipy.sparse.csr_matrix(parts, shape=(rows.count, columns))
            return cls(matrix, dtype=dtype, device=device)
        held = cls(scipy.sparse.csr_matrix((0, columns)), dtype=dtype)
        held.shape = (rows.count, columns)
        held.nonzeros = int(rows.pointers[-1])
        held._hold(rows)
        return held

    def _hold(self, rows: Rows) -> None:
        """Keep these rows, with their columns numbered among those with entries."""
        self._entries = (rows.pointers, rows.columns, rows.values)
        if len(rows.columns) < self.shape[1] / 16:
            # Sorting them takes a third of the time of a pass over 4·10⁷ columns.
            self._used, numbers = np.unique(rows.columns, return_inverse=True)
            rows.columns[:] = numbers
            return
        used = np.zeros(self.shape[1], dtype=bool)
        used[rows.columns] = True
        # Few empty columns are not worth the renumbering.
        if used.sum() > 0.8 * len(used):
            used[:] = True
        numbers = np.cumsum(used, dtype=np.uint32) - np.uint32(1)
        if len(numbers) and not used.all():
            # A million entries at a time: all would need a second array.
            for some in np.array_split(rows.columns, len(rows.columns) // 2**20 + 1):
                some[:] = numbers[some]
        self._used = np.flatnonzero(used).astype(np.uint32)

    @property
    def bytes(self) -> int:
        if self.device.type == "cpu":
            return sum(part.nbytes for part in (*self._entries, self._used))
        return sum(
            part.nbytes
            for pair in self._pairs
            for m in pair
            for part in (m.crow_indices(), m.col_indices(), m.values())
        )

    def matvec(self, x: Tensor) -> Tensor:
        self._require(x, self.shape[1])
        if self._pairs:
            return torch.cat([_product(rows, x) for rows, _ in self._pairs], dim=-1)
        return self._gather(loops.gather, x)

    def rmatvec(self, y: Tensor) -> Tensor:
        self._require(y, self.shape[0])
        if self._pairs:
            split = y.split([rows.shape[0] for rows, _ in self._pairs], dim=-1)
            parts = zip(self._pairs, split, strict=True)
            return functools.reduce(torch.add, (_product(t, z) for (_, t), z in parts))
        return self._scatter(loops.scatter, y)

    def gram(self, x: Columns, weights: Float[Tensor, " rows"]) -> Columns:
        self._require(x, self.shape[1])
        if weights.shape != (self.shape[0],) or weights.dtype != self.dtype:
            raise ValueError(
                f"weights must be {self.shape[0]} numbers of {self.dtype}, one for "
                f"each row, got {tuple(weights.shape)} of {weights.dtype}"
            )
        if self._pairs:
            return self.rmatvec(weights * self.matvec(x))
        w = weights.contiguous().numpy()
        return self._by_rows(loops.gather_scatter, x, self._used, self._used, w)

    def _runs(self, count: int) -> list[tuple[slice, tuple[Any, ...]]]:
        pointers, columns, values = self._entries
        return [
            (run, (pointers[run.start : run.stop + 1], columns, values))
            for run in _runs_of(pointers, count)
        ]


def _runs_of(pointers: np.ndarray, count: int) -> list[slice]:
    """Return runs of rows with about equal numbers of entries."""
    goals = np.linspace(0, float(pointers[-1]), count + 1)[1:-1]
    cuts = np.searchsorted(pointers, goals.astype(pointers.dtype)).tolist()
    return [slice(a, b) for a, b in itertools.pairwise([0, *cuts, len(pointers) - 1])]


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    flat = x.reshape(math.prod(x.shape[:-1]), matrix.shape[1])
    product = (matrix @ flat.mT).mT.contiguous()
    return product.reshape(*x.shape[:-1], matrix.shape[0])


def _torch_csr(
    matrix: scipy.sparse.csr_matrix, dtype: torch.dtype, device: torch.device
) -> Tensor:
    assert matrix.shape is not None
    # 32-bit indices: cuSPARSE is several times faster with them.
    index = np.int32 if matrix.nnz < 2**31 else np.int64
    with warnings.catch_warnings():
        # Once per process torch warns of the beta state of its CSR layout and, on CUDA,
        # of unchecked invariants, although they are declined below.
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(index)),
            torch.from_numpy(matrix.indices.astype(index)),
            torch.from_numpy(matrix.data).to(dtype),
            size=(int(matrix.shape[0]), int(matrix.shape[1])),
            device=device,
            check_invariants=False,
        )


def precision(dtype: torch.dtype) -> type:
    """Return NumPy's type for the operator's numbers.

    Raises `ValueError` if the loops do not support it.
    """
    if dtype not in _PRECISION:
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    return _PRECISION[dtype]


def _interleaved(x: np.ndarray, columns: np.ndarray | None, width: int) -> np.ndarray:
    """Return some columns of x, or all, as ``(length, width)``, padded with zeros."""
    columns = _EVERY if columns is None else columns
    count = len(columns) or x.shape[1]
    if width == 1 and count == x.shape[1]:
        return x.reshape(-1, 1)
    out = np.empty((count, width), x.dtype)
    over_rows(loops.interleave, count, out.size, x, columns, out)
    return out
