r"""W: functionals as weights on (refined) periodic grids, by rows or as a tree.

Snapping the nodes of a functional onto the grid with interpolation weights gives
``L_n ρ ≈ Σ_i W_ni ρ(g_i)``, which is itself a valid linear functional: the field model
stays exact, and only the meaning of the observation shifts by the interpolation error.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from dustmap.distributed.group import Group
from dustmap.distributed.rows import ShardedRows, row_cuts
from dustmap.functionals import Functionals
from dustmap.grid import Torus
from dustmap.linalg.sparse import SparseMatrix
from dustmap.projection.corner_weights import Lattice
from dustmap.projection.ray_tree import Ends, RayTree, ray_tree
from dustmap.projection.weight_rows import WeightRows, stored
from dustmap.tori import Tori

Interpolation = Literal["linear", "cubic"]
Projection = SparseMatrix | RayTree | ShardedRows

# Ratio of the rows' entries to a tree's above which the tree is taken: the errors of
# its integrals are 5% larger than with exact rays.
FEWER = 3.0
# Entries of rows, 4 GiB in single precision, beyond which any tree of fewer is taken.
MANY_ROWS = 2**29
# Rows with fewer entries than this are not compared with a tree.
_MANY = 2**23


def projection(
    tori: Tori | Torus,
    functionals: Functionals,
    *,
    refinement: int = 1,
    interpolation: Interpolation = "linear",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    tree: bool | None = None,
    group: Group | None = None,
) -> Projection:
    """Return the matrix W on tori refined ``refinement`` times (C order).

    A node has weights on the torus of the finest grid whose box contains it.
    Derivative nodes use the derivative of the interpolant. Cost: ``2^D`` (linear) or
    ``4^D`` (cubic, Keys 1981) weights per node before equal columns are added up.

    Parameters
    ----------
    tree
        Take a tree of rays (:mod:`dustmap.projection.ray_tree`) for integrals along
        sight lines from the observer with a fixed step; ``None`` takes it where it has
        a third of the entries, or fewer than rows of more than `MANY_ROWS`.
    group
        Processes that share the rows, in runs of about equal numbers of nodes. All of
        them make W together.

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
    device, own = torch.device(device), WeightRows(lattice, rows, dtype=dtype)
    W, ends = None, None
    if tree or (tree is None and own.nonzeros > _MANY):
        plain = refinement == 1 and interpolation == "linear"
        ends = Ends.of(rows) if plain else None
    if ends is not None:
        fewer = FEWER if own.nonzeros <= MANY_ROWS else 1.0
        most = math.inf if tree else own.nonzeros / fewer
        W = ray_tree(ends, lattice, dtype=dtype, device=device, most=most)
    if group is not None and group.agree(W is None):
        # All ranks have the same form, as one factor scales what W misses.
        W = None
    W = stored(own, device) if W is None else W
    return W if cuts is None or group is None else ShardedRows(W, cuts, group)
