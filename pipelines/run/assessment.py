"""Sight-line lengths in cells, and the share of cells that sight lines cross."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from dustmap.distributed.group import Group
from dustmap.grid import Torus
from dustmap.memory import rows_within
from dustmap.projection import projection
from dustmap.tori import Tori
from pipelines.catalog.schema import Stars
from pipelines.model.observations import step_rays
from pipelines.model.plan import Plan


def sight_line_lengths(
    plan: Plan, stars: Stars, group: Group | None = None
) -> list[torch.Tensor]:
    """Return sight-line lengths per cell of every grid [cells], the coarsest first.

    The ranks of a group divide the stars.
    """
    # On minimal tori of the boxes themselves; every grid covers all of its box.
    tori = [
        Torus(grid=grid, shape=tuple(n + n % 2 for n in grid.shape))
        for grid in plan.grids
    ]
    group, found = group or Group(), []
    own, _ = group.share(len(stars))
    ends = torch.as_tensor(stars.positions())[own]
    for count in range(1, len(tori) + 1):
        some = Tori(tori=tuple(tori[:count]))
        counting = replace(plan, tori=some)
        total = torch.zeros(some.size, dtype=torch.float32)
        # A kilobyte for the row of W of a star.
        for part in ends.split(rows_within(1024)):
            lines = step_rays(counting, part)
            W = projection(some, lines, dtype=total.dtype, tree=False)
            total += W.rmatvec(torch.ones(len(part), dtype=total.dtype))
        total = group.sum(total)
        torus = tori[count - 1]
        inside = tuple(slice(n) for n in torus.grid.shape)
        field = some.split(total)[-1].reshape(torus.shape)[inside]
        found.append(field / float(np.mean(torus.grid.spacing)))
    return found


def describe_support(support: torch.Tensor) -> str:
    """Describe the share of cells that sight lines cross; below 10% with advice."""
    share = float((support > 0).to(torch.float64).mean())
    text = "sight lines cross {} of the cells, the others show the prior"
    if share >= 0.1:
        return text.format(f"{share:.0%}")
    return (
        f"{text.format(f'{share:.1%}')}: with so few stars or narrow fields a smaller "
        "map (box.x, box.y, box.z or data.max_distance) can be finer"
    )
