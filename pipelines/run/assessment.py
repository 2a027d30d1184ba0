"""Errors on held-out stars, and which cells sight lines cross."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from dustmap.distributed.group import Group
from dustmap.models.gaussian import TorusGaussian
from pipelines.catalog.schema import Stars
from pipelines.model.forward import build_model
from pipelines.model.observations import rays
from pipelines.model.plan import Plan
from pipelines.planning.selection import placing_errors

# Of the cells, below which a map counts as mostly prior.
_FEW = 0.1


def observation_noise(stars: Stars, plan: Plan, density: np.ndarray) -> np.ndarray:
    """Standard error of each star's extinction [mag], shape ``(N,)``.

    That of the catalogue, the common noise, and what the error of the distance makes
    of the ``density`` [mag/pc] at the star.
    """
    assert stars.extinction_error is not None
    noise = np.hypot(stars.extinction_error, plan.common_noise)
    return np.hypot(noise, density * placing_errors(stars))


def sight_line_lengths(
    plan: Plan, stars: Stars, group: Group | None = None
) -> torch.Tensor:
    """Length of sight lines per cell, in cells.

    The ranks of a group share out the stars.
    """
    # On a minimal torus of the box itself.
    counting = replace(
        plan,
        engine="full-batch",
        density="gaussian",
        torus_shape=tuple(n + n % 2 for n in plan.grid.shape),
        finer=(),
        refinement=1,
        residual_refinement=1,
    )
    model = build_model(
        counting,
        rays(counting, torch.as_tensor(stars.positions())),
        dtype=torch.float32,
        device=torch.device("cpu"),
        generator=torch.Generator().manual_seed(0),
        group=group,
    )
    assert isinstance(model, TorusGaussian)
    total = model.weights.rmatvec(torch.ones(len(stars), dtype=torch.float32))
    inside = tuple(slice(n) for n in plan.grid.shape)
    field = total.reshape(model.whitening.fine_shape)[inside]
    return field / float(np.mean(plan.grid.spacing))


def crossed(support: torch.Tensor) -> str:
    """In words, the share of cells that sight lines cross."""
    share = float((support > 0).to(torch.float64).mean())
    text = "sight lines cross {} of the cells, the others show the prior"
    if share >= _FEW:
        return text.format(f"{share:.0%}")
    return (
        f"{text.format(f'{share:.1%}')}: with so few stars or narrow fields a smaller "
        "map (box.x, box.y, box.z or data.max_distance) can be finer"
    )
