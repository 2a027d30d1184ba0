r"""W: functionals as sparse weights on (refined) periodic grids.

Snapping the nodes of a functional onto the grid with interpolation weights gives
``L_n ρ ≈ Σ_i W_ni ρ(g_i)``, which is itself a valid linear functional: the field model
stays exact, and only the meaning of the observation shifts by the interpolation error.
"""

from __future__ import annotations

from typing import Literal

import torch

from dustmap.distributed.group import Group
from dustmap.distributed.rows import ShardedRows, row_cuts
from dustmap.functionals import Functionals
from dustmap.grid import Torus
from dustmap.linalg.sparse import SparseMatrix
from dustmap.projection.corner_weights import Lattice
from dustmap.projection.nodes import NodeProjection
from dustmap.projection.ray_tree import Ends, RayTree
from dustmap.projection.weight_rows import RecomputedProjection, stored
from dustmap.tori import Tori

Interpolation = Literal["linear", "cubic"]
# One process's rows of W: stored, or recomputed in every product.
OwnProjection = SparseMatrix | RecomputedProjection | NodeProjection
_MANY = 100_000
Projection = OwnProjection | ShardedRows


def projection(
    tori: Tori | Torus,
    functionals: Functionals,
    *,
    refinement: int = 1,
    interpolation: Interpolation = "linear",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    memory_budget: float | None = None,
    group: Group | None = None,
) -> Projection:
    """Return the matrix W on tori refined ``refinement`` times (C order).

    A node has weights on the torus of the finest grid whose box contains it.
    Derivative nodes use the derivative of the interpolant. Cost: ``2^D`` (linear) or
    ``4^D`` (cubic, Keys 1981) weights per node before equal columns are added up.

    Parameters
    ----------
    memory_budget
        Memory of the result [bytes]. If W is estimated to exceed it, its weights are
        recomputed in every product (``stored`` is then false), several times slower:
        on the CPU from the functionals, elsewhere from their nodes.
    group
        Processes that share the rows, in runs of about equal numbers of nodes; each has
        the budget, and all of them make W together.

    Returns
    -------
    A ``Projection``: a :class:`~dustmap.linalg.sparse.SparseMatrix` if there is neither
    budget nor group.

    Raises
    ------
    ValueError
        If a node lies outside the coarsest box, or the dimensions disagree.
    """
    if isinstance(tori, Torus):
        tori = Tori(tori=(tori,))
    if functionals.dimension != tori.grids.dimension:
        raise ValueError(
            f"the functionals have {functionals.dimension} dimensions, the grid in "
            f"{tori.grids.dimension}"
        )
    lattice = Lattice.make(tori, refinement, interpolation == "cubic")
    cuts, rows = None, functionals
    if group is not None and group.size > 1:
        cuts = row_cuts(functionals, group.size)
        rows = functionals.select(torch.arange(cuts[group.rank], cuts[group.rank + 1]))
    ends = Ends.of(rows) if len(rows) >= _MANY else None
    if ends is not None and refinement == 1 and interpolation == "linear":
        W = RayTree(ends, lattice, dtype=dtype, device=torch.device(device))
        return W if cuts is None or group is None else ShardedRows(W, cuts, group)
    W: OwnProjection = RecomputedProjection(lattice, rows, dtype=dtype)
    device = torch.device(device)
    on_cpu = device.type == "cpu"
    needed = W.nonzeros * (4 + dtype.itemsize) + 8 * (len(rows) + 1)
    # On other devices the transpose is stored, too.
    if memory_budget is None or (needed if on_cpu else 2 * needed) <= memory_budget:
        W = stored(W, device)
    elif not on_cpu:
        W = NodeProjection(W, device)
    return W if cuts is None or group is None else ShardedRows(W, cuts, group)
