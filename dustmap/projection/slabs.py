r"""W by slabs of columns: what all functionals see of one process' planes."""

from __future__ import annotations

import numpy as np
import torch

from dustmap.distributed.slab_columns import SlabColumns
from dustmap.distributed.slabs import Slabs
from dustmap.functionals import Functionals
from dustmap.grid import Grid, Torus
from dustmap.linalg.compiled_rows import Rows
from dustmap.projection.corner_weights import Lattice
from dustmap.projection.matrix import stored_within
from dustmap.projection.weight_rows import RecomputedProjection


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
    of W than its own. Cost: the nodes of all functionals on every rank; of rays with a
    fixed step, a fifth of the time that all their weights would take.

    Parameters
    ----------
    slabs
        How the torus is shared out.
    memory_budget
        What this rank's part may hold [bytes]; beyond it weights are computed anew in
        every product.

    Raises
    ------
    ValueError
        If a node lies outside the box of the torus' grid, or the dimensions disagree.
    """
    grid = torus.grid
    if functionals.dimension != grid.dimension:
        raise ValueError(
            f"the functionals live in {functionals.dimension} dimensions, the grid in "
            f"{grid.dimension}"
        )
    lattice = Lattice.make(
        grid.origin, grid.spacing, torus.shape, interpolation == "cubic"
    )

    def recomputed(rows: Functionals, nonzeros: int) -> SlabRows:
        return SlabRows(lattice, grid, rows, slabs, nonzeros=nonzeros, dtype=dtype)

    own = stored_within(recomputed, functionals, memory_budget, torch.device(device))
    return SlabColumns(own, slabs)


class SlabRows(RecomputedProjection):
    """:class:`RecomputedProjection` without the columns of others.

    Parameters
    ----------
    slabs
        How the lattice's points are shared out; columns count from this rank's first.
    """

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
        self._cells = _cells(lattice, slabs)
        first = slabs.planes.start * slabs.plane_size
        self.points = range(first, first + slabs.size)

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

    def _nodes(
        self, begin: int, end: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        points, weights, axes, starts = super()._nodes(begin, end)
        origin, step = self.lattice.scales[:, 0]
        cell = np.floor((points[:, 0] - origin) / step).astype(np.int64)
        kept = self._cells[cell]
        before = np.concatenate([[0], np.cumsum(kept)])
        return (
            points[kept],
            weights[kept],
            axes[kept] if len(axes) else axes,
            before[starts],
        )


def _cells(lattice: Lattice, slabs: Slabs) -> np.ndarray:
    """Which cells along the first axis have corners in this rank's planes."""
    planes, corners, offset = lattice.sizes[:, 0]
    cells = np.arange(planes)
    reached = np.zeros(planes, dtype=bool)
    for corner in range(corners):
        at = (cells + offset + corner) % planes
        reached |= (at >= slabs.planes.start) & (at < slabs.planes.stop)
    return reached
