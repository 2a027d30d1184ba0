"""Scales of the prior learnt from some thousand stars, before there is a grid.

Lengthscale, standard deviation, mean density and scale height are few, and stars spread
over the box tell them (:mod:`dustmap.inference.scales.learning`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from numpy.polynomial.legendre import leggauss
from scipy.optimize import bisect
from torch import Tensor

from dustmap.grid import Grid
from dustmap.inference.scales.learning import LearntScales, learn_scales
from dustmap.inference.scales.neighbour_likelihood import (
    FEWEST,
    NeighbourLikelihood,
)
from dustmap.inference.scales.periodic_fields import PeriodicFields
from dustmap.inference.scales.prior_scales import Coordinates, PriorScales
from dustmap.kernels import KERNELS
from dustmap.whitening import nested_tori
from pipelines.config import FitConfig
from pipelines.model.observations import Data
from pipelines.model.plan import RESOLVED, Plan

# Stars that are used at most, and cells along the box's longest side over which they
# are spread.
_STARS, _CELLS = 4_000, 16
# Simulations of these stars.
_SIMULATIONS = 16
# Variance at which an unknown common noise starts, relative to the stars' own.
_COMMON = 0.1

# Nodes of Gauss's rule over a grid step.
_NODES = 12

OnStep = Callable[[str, int, float], None]
# From lengthscales and a std to the grid that they call for.
ChooseGrid = Callable[[Sequence[float], float], tuple[Grid, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The plan with what was learnt, in words and numbers."""

    plan: Plan
    notes: tuple[str, ...]
    facts: dict[str, Any]


def open_names(plan: Plan, config: FitConfig) -> tuple[str, ...]:
    """Hyperparameters that the configuration leaves to the stars."""
    prior = config.prior
    free = {
        "lengthscale": prior.lengthscale is None,
        "variance": prior.std is None,
        "mean": prior.mean_density is None and plan.mean.value > 0,
        "scale_height": prior.scale_height is None
        and plan.mean.kind == "exponential-disc",
        "common_noise": config.model.common_noise is None,
    }
    return tuple(name for name, is_free in free.items() if is_free)


def learn_plan(
    plan: Plan,
    data: Data,
    config: FitConfig,
    *,
    generator: torch.Generator,
    on_step: OnStep,
    choose_grid: ChooseGrid | None = None,
) -> Learned | None:
    """The plan with learnt scales; ``None`` if all are given or the stars too few.

    Scales are learnt without a grid; ``choose_grid`` may then choose another for them.
    """
    names = open_names(plan, config)
    if not config.inference.learn or not plan.is_full_batch:
        return None
    if not set(names) - {"common_noise"} or len(data.ends) <= FEWEST:
        return None
    some = data.select(spread_rows(data.ends, _STARS, generator))
    start = _start_of(plan, some, names)
    found = learn_scales(
        NeighbourLikelihood(
            some.ends,
            _noise(start, some),
            kernel=KERNELS[plan.kernel],
            positive=plan.is_lognormal,
        ),
        some.extinction,
        Coordinates(start=start, names=names, anisotropic=config.inference.anisotropic),
        PeriodicFields(KERNELS[plan.kernel], _SIMULATIONS, generator),
        generator,
        lambda stage, step, value: on_step(f"scales {stage}", step, value),
    )
    grids = plan.grids
    if choose_grid is not None:
        lengthscale, std = list(plan.lengthscale), plan.std
        if "lengthscale" in names:
            lengthscale = found.scales.lengthscale.tolist()
        if "variance" in names:
            std = found.scales.std
        grids = chosen_grids(plan, lengthscale, std, choose_grid)
    changed, notes = _changed(plan, grids, found, names, config)
    return Learned(
        plan=replace(changed, notes=(*plan.notes, *notes)),
        notes=notes,
        facts=_facts(found, len(some.ends)),
    )


def spread_rows(
    ends: Tensor, count: int, generator: torch.Generator
) -> Int[Tensor, " m"]:
    """Some rows in random order, as many as there are from every part of the box.

    In turn each cell of a coarse grid gives a random row, while it has one.
    """
    order = torch.randperm(len(ends), generator=generator)
    lower, upper = ends.amin(dim=0), ends.amax(dim=0)
    size = float((upper - lower).max()) / _CELLS
    x, y, z = ((ends[order] - lower) / size).long().T
    cells = (x * (_CELLS + 1) + y) * (_CELLS + 1) + z
    by_cell = cells.argsort(stable=True)
    _, counts = torch.unique_consecutive(cells[by_cell], return_counts=True)
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    turn = torch.empty_like(order)
    turn[by_cell] = torch.arange(len(order)) - first
    chosen = order[turn.argsort(stable=True)[:count]]
    return chosen[torch.randperm(len(chosen), generator=generator)]


def _start_of(plan: Plan, data: Data, names: tuple[str, ...]) -> PriorScales:
    """The plan's scales; a lognormal density's mean is above its median."""
    above = math.exp(plan.std**2 / 2) if plan.is_lognormal else 1.0
    common = plan.common_noise**2
    if "common_noise" in names:
        common = max(common, float(data.variance.median()) * _COMMON)
    return PriorScales(
        lengthscale=torch.tensor(plan.lengthscale, dtype=torch.float64),
        std=plan.std,
        mean=replace(plan.mean, value=above * plan.mean.value).build(),
        common_noise=common,
    )


def _noise(start: PriorScales, data: Data) -> Tensor:
    """Variance of the extinctions, with what misplacing a star adds [mag²]."""
    if data.placing_error is None:
        return data.variance
    return data.variance + (start.mean(data.ends) * data.placing_error) ** 2


def chosen_grids(
    plan: Plan, lengthscale: list[float], std: float, choose_grid: ChooseGrid
) -> tuple[Grid, ...]:
    """The grids for these scales, then for the std that the first leaves."""
    first = replace(plan, grid=choose_grid(lengthscale, std)[0])
    raised, _ = resolved(lengthscale, first)
    return choose_grid(lengthscale, resolved_std(std, lengthscale, raised, first))


def _changed(
    plan: Plan,
    grids: tuple[Grid, ...],
    found: LearntScales,
    names: tuple[str, ...],
    config: FitConfig,
) -> tuple[Plan, tuple[str, ...]]:
    """The plan on these grids with what is open as it was found, and notes."""
    plan = replace(plan, grid=grids[0])
    scales = found.scales
    lengthscale, std, notes = plan.lengthscale, scales.std, ()
    if "lengthscale" in names:
        found_scales = scales.lengthscale.tolist()
        lengthscale, notes = resolved(found_scales, plan)
        if "variance" in names:
            std = resolved_std(std, found_scales, lengthscale, plan)
    means = {name: float(value) for name, value in scales.mean.parameters().items()}
    value = means.get("mean", plan.mean.value)
    if plan.is_lognormal:
        value *= math.exp(-(std**2) / 2)
    height = means.get("scale_height", plan.mean.scale_height)
    changed = replace(
        plan,
        lengthscale=lengthscale,
        std=std,
        mean=replace(plan.mean, value=value, scale_height=height),
        common_noise=_common_noise(plan, scales),
    )
    kernel, tolerance = changed.build_kernel(), config.model.wrap_tolerance
    levels = nested_tori(grids, kernel, tolerance)
    if not found.converged:
        notes = (
            *notes,
            "learning the scales did not settle: simulations with the scales found "
            "still differ from the stars; give prior.lengthscale and prior.std",
        )
    return changed.on(levels), notes


def _common_noise(plan: Plan, scales: PriorScales) -> float:
    """That of a Gaussian density; in the fit of a lognormal one it is learnt anew."""
    return plan.common_noise if plan.is_lognormal else math.sqrt(scales.common_noise)


def resolved(
    scale: list[float], plan: Plan
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Lengthscales that the grid resolves, and a note where they were raised to it."""
    floor = [RESOLVED * h for h in plan.grid.spacing]
    raised = tuple(max(s, f) for s, f in zip(scale, floor, strict=True))
    if list(raised) == scale:
        return raised, ()
    note = (
        f"lengthscale raised from {min(scale):.4g} pc to {RESOLVED:g} grid "
        "steps: the grid does not resolve the one learnt"
    )
    return raised, (note,)


def resolved_std(
    std: float, scale: list[float], raised: tuple[float, ...], plan: Plan
) -> float:
    r"""The std with which cells of the grid keep the variance of their mean density.

    A cell's mean has the mean covariance of two of its points, which for a lognormal
    density is :math:`e^{\sigma^2 k(r)} - 1` relative to the squared mean. Longer
    lengthscales would raise it, and a prior of too much structure is slow to fit.
    """
    node, weight = (torch.from_numpy(x) for x in leggauss(_NODES))
    # The distance of two points of a unit interval has the density 2 (1 - t).
    node, weight = (node + 1) / 2, (1 - (node + 1) / 2) * weight
    apart = torch.cartesian_prod(*(node * step for step in plan.grid.spacing))
    weights = torch.cartesian_prod(weight, weight, weight).prod(dim=1)

    def variance(std: float, scale: Sequence[float]) -> float:
        kernel = KERNELS[plan.kernel](lengthscale=list(scale), variance=std**2)
        covariance = kernel(apart)
        if plan.is_lognormal:
            covariance = covariance.expm1()
        return float(weights @ covariance)

    if list(raised) == scale:
        return std
    kept = variance(std, scale)
    root: Any = bisect(lambda x: variance(x, raised) - kept, 1e-3 * std, std)
    return float(root)


def _facts(found: LearntScales, stars: int) -> dict[str, Any]:
    return {
        "stars": stars,
        "steps": found.steps,
        "converged": found.converged,
        "status": "converged" if found.converged else "out of steps",
        # Of the logarithms; none where nothing tells.
        "errors": {n: e if math.isfinite(e) else None for n, e in found.errors.items()},
    }
