r"""The scales of the prior: from moments, then learnt from stars, then from a map.

Moments give a start. Some thousand stars spread over the box give lengthscale, standard
deviation, mean density and scale height (:mod:`dustmap.inference.scales.learning`), the
lengthscale to a factor of 1.5; the power of the density by wavelength in a first map of
all stars gives it better (:mod:`dustmap.inference.scales.band_power`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.inference.full_batch.gauss_newton import OnStep, Task
from dustmap.inference.scales.band_power import BandPower, fitted_kernel
from dustmap.inference.scales.learning import learn_scales
from dustmap.inference.scales.neighbour_likelihood import FEWEST, NeighbourLikelihood
from dustmap.inference.scales.prior_scales import Coordinates, PriorScales
from dustmap.kernels import KERNELS
from dustmap.models.means import ConstantMean, ExponentialDisc, Mean
from dustmap.residual.covariance import CPU, GRID_CUT
from pipelines.catalog.schema import Stars
from pipelines.config import FitConfig
from pipelines.model.plan import CENTRE_DISTANCE, SCALE_LENGTH, Plan

# Most stars from which scales are learnt.
_STARS = 4_000
# Most stars that choose the shape of the mean density. Of four draws of 4,000 stars of
# a simulated disc one preferred a constant; of 16,000 or 64,000 none, by 50 nats or
# more.
_CHOOSING = 64_000
# Cells along the box's longest side, over which the stars are spread.
_CELLS = 16
# The start's lengthscale over the median distance.
_PART = 0.1
# Nodes on a ray.
_RAY_NODES = 24
# Rounds of reweighting.
_ROUNDS = 4
# The least part of the scatter about the mean density that the start leaves to dust:
# errors may explain all of it.
_LEAST = 0.1
# Variance at which an unknown common noise starts, relative to the stars' own.
_COMMON = 0.1
# How far a map may move the logarithms of lengthscale and std, as standard deviations:
# the likelihood of the stars is approximate.
_DOUBTS = (0.5, 0.25)

NOT_SETTLED = (
    "learning the scales did not settle at a maximum of the likelihood; give "
    "prior.lengthscale and prior.std"
)


def start_scales(stars: Stars, config: FitConfig) -> tuple[PriorScales, list[str]]:
    r"""Return scales from moments of the extinctions, and notes; keep what is given.

    The mean density's shape :math:`\hat\mu` and amplitude β are those of the largest
    likelihood under

    .. math::
       y_n \sim N(\beta h_n, \sigma_n^2 + c\, d_n) , \qquad h_n = L_n \hat\mu ,

    as extinctions scatter at distances d much larger than the lengthscale ℓ, which is
    a fixed part of the median distance. Weighted least squares for β and weighted
    moments for c follow each other. An exponential covariance of the density then has
    the variance :math:`c / 2\ell`, and the logarithm of a lognormal one that of the
    same relative variance.
    """
    count = min(len(stars), _CHOOSING)
    some = stars.select(np.linspace(0, len(stars) - 1, count).astype(np.int64))
    prior, observed, distance = config.prior, some.extinction, some.distance
    assert observed is not None
    even = mean_density(some)
    noise = some.variance(even, config.model.common_noise or 0.0)
    ends = torch.as_tensor(some.positions())
    rays = LineIntegrals(ends, GaussLegendre(count=_RAY_NODES))
    found, likelihood, slope, notes = ConstantMean(value=0.0), -math.inf, 0.0, []
    for shape in mean_shapes(some, config):
        seen = shape.observed(rays).numpy()
        amplitude, rise = 0.0, float(np.var(observed)) / float(distance.mean())
        for _ in range(_ROUNDS):
            weight = 1 / (noise + rise * distance)
            power = float(weight @ seen**2)
            amplitude = float(weight @ (seen * observed)) / power if power else 0.0
            if prior.mean_density is not None:
                amplitude = prior.mean_density
            square = (observed - amplitude * seen) ** 2
            excess, scatter = weight @ (square - noise), weight @ (square + noise)
            rise = float(max(excess, _LEAST * scatter) / (weight @ distance))
        total = noise + rise * distance
        value = -float((square / total + np.log(total)).sum()) / 2
        if value > likelihood:
            found, likelihood, slope = replace(shape, value=amplitude), value, rise
    if found.value <= 0 and config.density == "lognormal":
        notes.append(
            "mean density: that of all sight lines, since a lognormal needs one"
        )
        found = ConstantMean(value=even)
    elif found.value < 0:
        notes.append(
            f"mean density: the data prefer {found.value:.2g} mag/pc; a density cannot "
            "be negative on average, so that the mean is zero"
        )
        found = ConstantMean(value=0.0)
    typical = _PART * float(np.median(distance))
    lengthscale = prior.lengthscale or (typical,) * 3
    variance = slope / (2 * min(lengthscale))
    if config.density == "lognormal":
        along = float(found.observed(rays).sum()) / float(distance.sum())
        variance = math.log1p(variance / along**2)
    scales = PriorScales(
        lengthscale=torch.tensor(lengthscale, dtype=torch.float64),
        std=math.sqrt(variance) if prior.std is None else prior.std,
        mean=found,
        common_noise=(config.model.common_noise or 0.0) ** 2,
    )
    return scales, notes


def mean_density(stars: Stars) -> float:
    """Return total extinction over total path length [mag/pc], positive."""
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    total = float(np.abs(stars.extinction.sum()))
    scale = float(np.abs(stars.extinction).sum() + stars.extinction_error.sum())
    return max(total, 1e-3 * scale) / float(stars.distance.sum())


def mean_shapes(
    stars: Stars, config: FitConfig
) -> list[ConstantMean | ExponentialDisc]:
    """Return the shapes of the mean density to try, with a density of one."""
    prior = config.prior
    if prior.mean == "zero":
        return [ConstantMean(value=0.0)]
    heights = [prior.scale_height]
    if prior.scale_height is None:
        # Relative to where the stars are, so that any size of box works.
        reach = float(np.quantile(np.abs(stars.positions()[:, 2]), 0.9))
        heights = [part * reach for part in (1.0, 0.5, 0.25)]
    discs = [
        ExponentialDisc(
            value=1.0,
            scale_height=height,
            scale_length=prior.scale_length or SCALE_LENGTH,
            centre_distance=CENTRE_DISTANCE,
        )
        for height in heights
        if height
    ]
    constant = ConstantMean(value=1.0)
    if prior.mean == "constant" or not discs:
        return [constant]
    # A scale height that is given asks for a disc.
    given = prior.mean == "exponential-disc" or prior.scale_height is not None
    return list(discs) if given else [*discs, constant]


def open_names(mean: Mean, config: FitConfig) -> tuple[str, ...]:
    """Return the hyperparameters that the configuration leaves to the stars."""
    prior = config.prior
    given = {
        "lengthscale": prior.lengthscale,
        "variance": prior.std,
        "mean": prior.mean_density,
        "scale_height": prior.scale_height,
        "common_noise": config.model.common_noise,
    }
    known = {"lengthscale", "variance", "common_noise", *mean.parameters()}
    return tuple(n for n, value in given.items() if n in known and value is None)


def learn_prior(
    start: PriorScales,
    stars: Stars,
    config: FitConfig,
    *,
    generator: torch.Generator,
    on_step: OnStep,
    device: torch.device = CPU,
) -> tuple[PriorScales, dict[str, Any]] | None:
    """Return learnt scales and facts; ``None`` if all are given or the stars too few.

    The common noise of a lognormal density stays: the fit itself learns it.
    """
    names, lognormal = open_names(start.mean, config), config.density == "lognormal"
    if not config.inference.learn or not set(names) - {"common_noise"}:
        return None
    if len(stars) < FEWEST:
        return None
    ends = torch.as_tensor(stars.positions())
    rows = spread_rows(ends, _STARS, generator)
    some, ends = stars.select(rows.numpy()), ends[rows]
    own = some.variance()
    common = start.common_noise
    if "common_noise" in names:
        common = max(common, _COMMON * float(np.median(own)))
    start = replace(start, common_noise=common)
    blurred = torch.as_tensor(some.variance(start.mean(ends).numpy()))
    likelihood = NeighbourLikelihood(
        ends, blurred, kernel=KERNELS[config.kernel], positive=lognormal, device=device
    )
    found = learn_scales(
        likelihood,
        torch.as_tensor(some.extinction),
        Coordinates(start=start, names=names),
        lambda stage, step, value: on_step(Task(name=f"scales {stage}"), step, value),
    )
    scales = found.scales
    if lognormal:
        scales = replace(scales, common_noise=(config.model.common_noise or 0.0) ** 2)
    status = "converged" if found.converged else "out of steps"
    facts = {
        "stars": len(some),
        "steps": found.steps,
        "converged": found.converged,
        "status": status if found.finite else "not finite",
        "at_edge": found.at_edge,
        # Of the logarithms; none where the stars do not constrain them.
        "errors": {n: e if math.isfinite(e) else None for n, e in found.errors.items()},
    }
    return scales, facts


def spread_rows(
    ends: Tensor, count: int, generator: torch.Generator
) -> Int[Tensor, " m"]:
    """Return rows in random order, as evenly from all parts of the box as there are.

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


def revised_prior(
    plan: Plan,
    bands: Sequence[BandPower],
    learning: Mapping[str, Any] | None,
    config: FitConfig,
    alphas: Sequence[float],
) -> tuple[PriorScales, dict[str, Any]] | None:
    """Return scales and a bend that suit a first map's bands, and what was learnt.

    They also suit the variance below each grid, one of ``alphas`` times the prior's,
    the only bands where the map has none. The mean density stays. ``None`` where the
    scales are given.
    """
    start, kernel = plan.scales, plan.build_kernel()
    learnt = {"lengthscale", "variance"} <= set(open_names(start.mean, config))
    if learning is None or not learnt or kernel.smoothness is None:
        return None
    cuts = [2 * math.pi * GRID_CUT * max(grid.spacing) for grid in plan.grids]
    known = {"determined": math.inf, "share": 1.0, "error": 0.0}
    below = [
        BandPower(longest=cut, shortest=cut / 2, ratio=alpha, **known)
        for cut, alpha in zip(cuts, alphas, strict=True)
    ]
    fitted = fitted_kernel(kernel, [*bands, *below], _DOUBTS)
    suited = fitted.kernel
    found = replace(
        start,
        lengthscale=suited.lengthscale,
        std=math.sqrt(float(suited.variance)),
        bend=suited.bend,
        spread=tuple(map(tuple, fitted.root.tolist())),
    )
    before = {"lengthscale": list(plan.lengthscale), "std": plan.std}
    return found, {**learning, "revision": {"gain": fitted.gain, **before}}
