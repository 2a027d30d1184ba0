r"""W by slabs of columns: what all functionals see of one process' planes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dustmap.distributed.rows import SharedMatrix
from dustmap.distributed.slabs import Slabs, SlabSpace
from dustmap.functionals import Functionals
from dustmap.grid import Grid, Torus
from dustmap.linalg.compiled_rows import Rows
from dustmap.linalg.operator import SizedOperator
from dustmap.projection.corner_weights import Lattice
from dustmap.projection.matrix import lattice_of, stored_within
from dustmap.projection.weight_rows import NodeRun, RecomputedProjection


def slab_projection(
    torus: Torus,
    functionals: Functionals,
    slabs: Slabs,
    *,
    interpolation: str = "linear",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    memory_budget: float | None = None,
) -> SlabColumns:
    """This rank's columns of :func:`~dustmap.projection.projection`, refinement 1.

    Functionals are asked for their nodes block by block, and those whose cells do not
    reach into the rank's planes are let go before they get weights. No rank holds more
    of W than its own, nor more than ``memory_budget`` [bytes]. Cost: the nodes of all
    functionals on every rank; of rays with a fixed step, a fifth of the time that all
    their weights would take.

    Raises
    ------
    ValueError
        If a node lies outside the box of the torus' grid, or the dimensions disagree.
    """
    lattice = lattice_of(torus, functionals, 1, interpolation)

    def recomputed(rows: Functionals, nonzeros: int) -> _SlabRows:
        return _SlabRows(
            lattice, torus.grid, rows, slabs, nonzeros=nonzeros, dtype=dtype
        )

    own = stored_within(recomputed, functionals, memory_budget, device)
    return SlabColumns(own, slabs)


class SlabColumns(SharedMatrix):
    """All rows of a matrix; of its columns those of this rank's slab of a grid.

    Vectors over rows are whole on every rank, vectors over columns in slabs. ``matvec``
    adds up the ranks' vectors over rows in the operator's precision, ``rmatvec`` sends
    nothing, ``gram`` as much as ``matvec``. Products are not differentiable.
    """

    def __init__(self, own: SizedOperator, slabs: Slabs) -> None:
        super().__init__(own, slabs.group)
        self.shape = own.shape
        self.domain = SlabSpace(slabs)

    def matvec(self, x: Tensor) -> Tensor:
        return self.domain.total(self.own.matvec(x.detach()))

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.own.rmatvec(y.detach())


class _SlabRows(RecomputedProjection):
    """The columns of one rank's points, counted from the first of them."""

    def __init__(
        self,
        lattice: Lattice,
        grid: Grid,
        functionals: Functionals,
        slabs: Slabs,
        *,
        nonzeros: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(lattice, grid, functionals, nonzeros=nonzeros, dtype=dtype)
        self.shape = (len(functionals), slabs.size)
        first = slabs.planes.start * slabs.plane_size
        self.points = range(first, first + slabs.size)
        # Which cells along the first axis have corners in this rank's planes.
        planes, corners, offset = lattice.sizes[:, 0]
        at = np.arange(planes)[:, None] + offset + np.arange(corners)
        at %= planes
        own = (at >= slabs.planes.start) & (at < slabs.planes.stop)
        self._cells = own.any(axis=1)

    def _rows(self, begin: int, end: int, values_type: type) -> Rows:
        rows = super()._rows(begin, end, values_type)
        count = int(rows.pointers[-1])
        columns = rows.columns[:count].astype(np.int64) - self.points.start
        kept = (columns >= 0) & (columns < len(self.points))
        before = np.concatenate([[0], np.cumsum(kept)]).astype(np.uint64)
        return Rows(
            pointers=before[rows.pointers.astype(np.int64)],
            columns=columns[kept].astype(np.uint32),
            values=rows.values[:count][kept],
            first=rows.first,
            count=rows.count,
        )

    def _nodes(self, begin: int, end: int) -> NodeRun:
        nodes = super()._nodes(begin, end)
        origin, step = self.lattice.scales[:, 0]
        cell = np.floor((nodes.points[:, 0] - origin) / step).astype(np.int64)
        kept = self._cells[cell]
        before = np.concatenate([[0], np.cumsum(kept)])
        return NodeRun(
            points=nodes.points[kept],
            weights=nodes.weights[kept],
            axes=nodes.axes[kept] if len(nodes.axes) else nodes.axes,
            starts=before[nodes.starts],
        )
