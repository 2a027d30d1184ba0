"""The plan: grids for a prior, and the part of the prior that they resolve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.polynomial.legendre import leggauss
from scipy.optimize import bisect

from dustmap.grid import Grid
from dustmap.inference.scales.prior_scales import PriorScales
from dustmap.kernels import KERNELS
from dustmap.residual.covariance import GRID_CUT
from dustmap.whitening import nested_tori
from pipelines.base.geometry import Box
from pipelines.config import FitConfig
from pipelines.model.cost import Machine, Work
from pipelines.model.plan import RESOLVED, EmbeddingPlan, Plan
from pipelines.planning.grids import choose_grids

# Nodes of Gauss's rule over a grid step.
_CELL_NODES = 12

# The beginning of a note, which does not pass to a plan for other scales.
RAISED = "lengthscale raised"


def make_plan(
    scales: PriorScales,
    box: Box,
    distances: np.ndarray,
    config: FitConfig,
    machine: Machine,
    *,
    notes: Sequence[str] = (),
    resolved: bool = False,
) -> Plan:
    """Choose grids in the box for these scales and stars' distances [pc].

    A lengthscale below the resolution of the grid is raised, with a matching std,
    unless both are given, or unless stars share a residual below the grid and either
    ``resolved`` it or a map bent its power.

    Raises `InputError` if no grid fits the budget.
    """
    model = config.model
    given, family = tuple(scales.lengthscale.tolist()), KERNELS[config.kernel]
    lengthscale, std = given, scales.std
    # The second grids use the std of a raised lengthscale on the first.
    for _ in range(2):
        kernel = family(lengthscale=list(given), variance=std**2, bend=scales.bend)
        grids, limit = choose_grids(box, kernel, distances, config, machine)
        steps = zip(given, grids[0].spacing, strict=True)
        known = (resolved or bool(scales.bend)) and config.shares_noise
        if config.prior.lengthscale is None and not known:
            lengthscale = tuple(max(scale, RESOLVED * step) for scale, step in steps)
        if config.prior.std is None:
            std = resolved_std(scales.std, given, lengthscale, grids[0], config)
        if lengthscale == given:
            break
    found = list(notes)
    if lengthscale != given:
        found.append(
            f"{RAISED} to {RESOLVED:g} grid steps, {min(lengthscale):.4g} "
            "pc: the grid does not resolve the estimated one"
        )
    # The median of a lognormal density is below its mean.
    below = math.exp(-(std**2) / 2) if config.density == "lognormal" else 1.0
    kernel = family(lengthscale=list(lengthscale), bend=scales.bend)
    return Plan(
        tori=nested_tori(grids, kernel, model.wrap_tolerance),
        kernel=config.kernel,
        lengthscale=lengthscale,
        std=std,
        mean=replace(scales.mean, value=below * scales.mean.value),
        common_noise=math.sqrt(scales.common_noise),
        engine=config.inference.engine,
        density=config.density,
        outliers=model.outliers and config.inference.abilities.outliers,
        degrees=model.degrees,
        subgrid_share=model.subgrid_share or 1.0,
        cut=GRID_CUT if config.shares_noise else 0.0,
        subgrid_noise=model.subgrid_noise,
        block=Work.of(grids, kernel, distances, config, machine).block,
        bend=scales.bend,
        spread=scales.spread,
        embedding=EmbeddingPlan(
            nugget=config.svi.nugget * std**2,
            tolerance=config.svi.pcg_tolerance,
            max_steps=config.svi.pcg_max_iterations,
            quadrature=config.svi.quadrature,
            nodes=config.svi.nodes,
            seed=config.inference.seed,
        ),
        limit=limit,
        notes=tuple(dict.fromkeys(found)),
    )


def resolved_std(
    std: float,
    lengthscale: Sequence[float],
    raised: Sequence[float],
    grid: Grid,
    config: FitConfig,
) -> float:
    r"""Return the std that preserves the variance of cell means.

    This variance is the mean covariance of two points of a cell, which for a lognormal
    density is :math:`e^{\sigma^2 k(r)} - 1` relative to the squared mean. A longer
    lengthscale with the same std would raise it, and slow the fit.
    """
    if tuple(raised) == tuple(lengthscale):
        return std
    node, weight = (torch.from_numpy(x) for x in leggauss(_CELL_NODES))
    # The separation of two points of a unit interval has the density 2 (1 - t).
    node, weight = (node + 1) / 2, (1 - (node + 1) / 2) * weight
    apart = torch.cartesian_prod(*(node * step for step in grid.spacing))
    weights = torch.cartesian_prod(weight, weight, weight).prod(dim=1)

    def variance(std: float, scale: Sequence[float]) -> float:
        kernel = KERNELS[config.kernel](lengthscale=list(scale), variance=std**2)
        covariance = kernel(apart)
        if config.density == "lognormal":
            covariance = covariance.expm1()
        return float(weights @ covariance)

    kept = variance(std, lengthscale)
    root: Any = bisect(lambda x: variance(x, raised) - kept, 1e-3 * std, std)
    return float(root)
