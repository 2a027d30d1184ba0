"""The rows of W, made from functionals block by block."""

from __future__ import annotations

import itertools
import math
import threading
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch

from dustmap.functionals import FixedStep, Functionals, LineIntegrals, Nodes
from dustmap.grid import Grid
from dustmap.linalg.compiled_tasks import in_parallel, thread_count
from dustmap.linalg.sparse import Rows, SparseMatrix, precision
from dustmap.memory import rows_within
from dustmap.projection.corner_weights import Lattice, node_entries, ray_nodes


class NodeRun(NamedTuple):
    """The nodes of consecutive rows."""

    points: np.ndarray  # (nodes, d)
    weights: np.ndarray
    axes: np.ndarray  # of differentiation, −1 for none; empty if no node differentiates
    starts: np.ndarray  # (rows + 1,) first node of each row


class _Rays(NamedTuple):
    """Straight rays in parts with equidistant nodes."""

    start: np.ndarray
    end: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray
    parts: np.ndarray  # (rows + 1,) first part of each row

    @classmethod
    def of(cls, rays: LineIntegrals, rule: FixedStep) -> _Rays:
        pieces = rule.pieces(rays.start, rays.end)
        start, end = rays.start[pieces.rows], rays.end[pieces.rows]
        if rule.grids is not None:
            way = end - start
            end = start + pieces.high[:, None] * way
            start = start + pieces.low[:, None] * way
        each = torch.bincount(pieces.rows, minlength=len(rays))
        return cls(
            start=start.contiguous().numpy(),
            end=end.contiguous().numpy(),
            lengths=pieces.lengths.numpy(),
            counts=pieces.counts.numpy(),
            parts=np.concatenate([[0], np.cumsum(each.numpy())]),
        )

    def nodes(self, begin: int, end: int) -> NodeRun:
        parts = self.parts[begin : end + 1]
        chosen = slice(parts[0], parts[-1])
        some = [x[chosen] for x in self[:-1]]
        starts = np.concatenate([[0], np.cumsum(self.counts[chosen])])
        points = np.empty((starts[-1], self.start.shape[1]))
        weights = np.empty(starts[-1])
        ray_nodes(*some, points, weights)
        starts = starts[parts - parts[0]]
        return NodeRun(points, weights, np.empty(0, np.int64), starts)

    def inside(self, grid: Grid) -> np.ndarray:
        """Return whether a ray's first and last node, and thus all, are in the box."""
        inside = np.ones(len(self.counts), dtype=bool)
        for last in (0.5, self.counts - 0.5):
            fraction = (last / self.counts)[:, None]
            points = self.start + fraction * (self.end - self.start)
            inside &= grid.contains(torch.from_numpy(points)).numpy()
        return np.logical_and.reduceat(inside, self.parts[:-1])


class WeightRows:
    """The rows of W, made block by block.

    Parameters
    ----------
    lattice
        The tori with their interpolation; nodes must lie in the coarsest box.
    functionals
        The rows; ``cuts`` are the ends of their blocks.
    nonzeros
        Approximate number of entries of W, each column of a row counted once; estimated
        from a sample of the rows unless given.

    Raises
    ------
    ValueError
        If a node lies outside the box: here for rays with a fixed step, else when the
        rows are made.
    """

    def __init__(
        self,
        lattice: Lattice,
        functionals: Functionals,
        *,
        dtype: torch.dtype,
        nonzeros: int | None = None,
    ) -> None:
        self.shape = (len(functionals), lattice.size)
        if self.shape[1] >= 2**31:
            raise ValueError(f"at most 2³¹ − 1 columns are possible, got {self.shape}")
        self.dtype = dtype
        if nonzeros is None:
            nonzeros, count = 0, len(functionals)
            if count:
                sample = sampled(functionals)
                few = WeightRows(lattice, sample, dtype=dtype, nonzeros=0)
                found = stored(few, torch.device("cpu")).nonzeros
                nonzeros = math.ceil(found / len(sample) * count)
        self.nonzeros = nonzeros
        self.lattice, self._functionals = lattice, functionals
        box = lattice.grids.box
        self._rays: _Rays | None = None
        # Subclasses may place their nodes differently.
        if type(functionals) is LineIntegrals and type(functionals.rule) is FixedStep:
            self._rays = _Rays.of(functionals, functionals.rule)
            outside = torch.from_numpy(np.flatnonzero(~self._rays.inside(box)))
            if len(outside):
                _require_inside(box, functionals.select(outside).nodes())
        # Corner weights take 12 bytes. Blocks fit into the processor's cache, except of
        # functionals that are slow to make nodes.
        limit = 2**27 if self._rays is None else 3 * 2**20
        nodes, total = rows_within(12 * lattice.corner_count, limit), len(functionals)
        if self._rays is not None:
            done = np.concatenate([[0], np.cumsum(self._rays.counts)])
            block = done[self._rays.parts[1:]] // nodes
            inner = np.flatnonzero(np.diff(block)) + 1
        else:
            sample = sampled(functionals) if total else functionals
            each = max(1.0, len(sample.nodes().rows) / max(1, len(sample)))
            size = max(1, int(nodes / each))
            inner = np.arange(size, total, size)
        self.cuts = np.unique(np.concatenate([[0], inner, [total]]))
        # torch uses all processors for one thread; several threads would compete.
        self._one_at_a_time = threading.Lock()

    def block(self, begin: int, end: int) -> Rows:
        """Make some rows; a column may occur several times in a row."""
        nodes = self._nodes(begin, end)
        room = len(nodes.points) * self.lattice.corner_count
        rows = Rows(
            pointers=np.empty(end - begin + 1, np.uint64),
            columns=np.empty(room, np.uint32),
            values=np.empty(room),
            first=begin,
            count=end - begin,
        )
        entries = (rows.pointers, rows.columns, rows.values)
        node_entries(*nodes, *self.lattice[1:], *entries)
        return rows

    def _nodes(self, begin: int, end: int) -> NodeRun:
        if self._rays is not None:
            return self._rays.nodes(begin, end)
        with self._one_at_a_time:
            nodes = self._functionals.select(torch.arange(begin, end)).nodes()
            _require_inside(self.lattice.grids.box, nodes)
        sizes = np.bincount(nodes.rows.numpy(), minlength=nodes.count)
        axes = np.empty(0) if nodes.axes is None else nodes.axes.numpy()
        return NodeRun(
            points=nodes.points.contiguous().numpy(),
            weights=nodes.weights.contiguous().numpy(),
            axes=axes.astype(np.int64),
            starts=np.concatenate([[0], np.cumsum(sizes)]),
        )


def stored(rows: WeightRows, device: torch.device) -> SparseMatrix:
    """Store the rows of W, with equal columns of a row added up in float64.

    Memory: the result, and a block per thread.
    """
    threads, values_type = thread_count(rows.nonzeros), precision(rows.dtype)
    bounds = np.linspace(0, len(rows.cuts) - 1, threads + 1).astype(int)
    pieces: list[list[Rows]] = [[] for _ in range(threads)]

    def task(part: int) -> None:
        own = rows.cuts[bounds[part] : bounds[part + 1] + 1].tolist()
        for begin, end in itertools.pairwise(own):
            some = rows.block(begin, end)
            pieces[part].append(_merged(some, rows.shape[1], values_type))

    in_parallel(task, threads)
    flat = [some for piece in pieces for some in piece]
    pieces.clear()
    joined = _joined(flat, rows.shape[0], values_type)
    return SparseMatrix.of_rows(joined, rows.shape[1], device=device)


def _merged(rows: Rows, columns: int, values_type: type) -> Rows:
    """Return the same rows with each column once, in ascending order."""
    count = int(rows.pointers[rows.count])
    # Index types of one width; otherwise SciPy copies both.
    index = (rows.columns[:count].view(np.int32), rows.pointers.astype(np.int32))
    matrix = scipy.sparse.csr_matrix(
        (rows.values[:count], *index), shape=(rows.count, columns)
    )
    matrix.sum_duplicates()
    return Rows.of(matrix, values_type, rows.first)


def _joined(pieces: list[Rows], count: int, values_type: type) -> Rows:
    """Join pieces, freeing each as soon as it is copied."""
    pointers = np.zeros(count + 1, np.uint64)
    for piece in pieces:
        at = slice(piece.first + 1, piece.first + piece.count + 1)
        pointers[at] = pointers[piece.first] + piece.pointers[1:]
    total = int(pointers[-1])
    columns, values = np.empty(total, np.uint32), np.empty(total, values_type)
    while pieces:
        piece = pieces.pop()
        start = int(pointers[piece.first])
        part = slice(start, start + len(piece.columns))
        columns[part], values[part] = piece.columns, piece.values
    return Rows(pointers=pointers, columns=columns, values=values, count=count)


def sampled(functionals: Functionals) -> Functionals:
    """Return some 256 of the functionals, evenly spread."""
    count = len(functionals)
    return functionals.select(torch.arange(0, count, max(1, count // 256)))


def _require_inside(grid: Grid, nodes: Nodes) -> None:
    outside = ~grid.contains(nodes.points)
    if bool(outside.any()):
        rows = torch.unique(nodes.rows[outside])
        first = nodes.points[outside][0].tolist()
        raise ValueError(
            f"{len(rows)} functionals have nodes outside the box "
            f"{grid.lower} to {grid.upper}, the first at {first}: "
            "enlarge the box or leave these observations out"
        )
