r"""W: functionals as sparse weights on a (refined) periodic grid.

Snapping the nodes of a functional onto the grid with interpolation weights gives
``L_n ρ ≈ Σ_i W_ni ρ(g_i)``, which is itself a valid linear functional: the field model
stays exact, and only the meaning of the observation shifts by the interpolation error.
"""

from __future__ import annotations

from typing import Literal, overload

import torch

from dustmap.distributed.group import Group
from dustmap.distributed.rows import ShardedRows, row_cuts
from dustmap.functionals import Functionals
from dustmap.grid import Torus
from dustmap.linalg.sparse import SparseMatrix
from dustmap.projection.corner_weights import Lattice
from dustmap.projection.weight_rows import RecomputedProjection, stored_within

Interpolation = Literal["linear", "cubic"]
# W in all its forms: kept, computed anew in every product, shared out over processes.
Projection = SparseMatrix | RecomputedProjection | ShardedRows


@overload
def projection(
    torus: Torus,
    functionals: Functionals,
    *,
    refinement: int = 1,
    interpolation: Interpolation = "linear",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    memory_budget: None = None,
) -> SparseMatrix: ...
@overload
def projection(
    torus: Torus,
    functionals: Functionals,
    *,
    refinement: int = 1,
    interpolation: Interpolation = "linear",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    memory_budget: float,
) -> SparseMatrix | RecomputedProjection: ...
@overload
def projection(
    torus: Torus,
    functionals: Functionals,
    *,
    refinement: int = 1,
    interpolation: Interpolation = "linear",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    memory_budget: float | None = None,
    group: Group | None = None,
) -> Projection: ...
def projection(
    torus: Torus,
    functionals: Functionals,
    *,
    refinement: int = 1,
    interpolation: Interpolation = "linear",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    memory_budget: float | None = None,
    group: Group | None = None,
) -> Projection:
    """The matrix W on the torus refined ``refinement`` times (C order).

    Derivative nodes use the derivative of the interpolant. Cost: ``2^D`` (linear) or
    ``4^D`` (cubic, Keys 1981) weights per node before equal columns are added up.

    Parameters
    ----------
    memory_budget
        What the result may hold [bytes]. If W is estimated to exceed it, from a sample
        of its rows, its weights are computed anew in every product (``stored`` is
        false then): the same numbers to rounding, several times slower.
    group
        Processes that share out the rows, in runs of about as many nodes; the budget is
        that of each, and all of them make W together.

    Raises
    ------
    ValueError
        If a node lies outside the box of the torus' grid, the dimensions disagree, or
        W exceeds the budget on a device where its weights cannot be recomputed.
    """
    grid = torus.grid
    if functionals.dimension != grid.dimension:
        raise ValueError(
            f"the functionals live in {functionals.dimension} dimensions, the grid in "
            f"{grid.dimension}"
        )
    if group is not None and group.size > 1:
        cuts = row_cuts(functionals, group.size)
        rows = torch.arange(cuts[group.rank], cuts[group.rank + 1])
        own = projection(
            torus,
            functionals.select(rows),
            refinement=refinement,
            interpolation=interpolation,
            dtype=dtype,
            device=device,
            memory_budget=memory_budget,
        )
        assert not isinstance(own, ShardedRows)
        return ShardedRows(own, cuts, group)
    lattice = Lattice.make(
        grid.origin,
        tuple(h / refinement for h in grid.spacing),
        tuple(n * refinement for n in torus.shape),
        interpolation == "cubic",
    )

    def recomputed(rows: Functionals, nonzeros: int) -> RecomputedProjection:
        return RecomputedProjection(lattice, grid, rows, nonzeros=nonzeros, dtype=dtype)

    return stored_within(
        recomputed,
        functionals,
        memory_budget,
        torch.device(device),
        what="W",
        advice="raise the budget, take fewer stars or a coarser grid, or use the CPU",
    )
