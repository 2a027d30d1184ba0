"""Makes the plan: box and grid from the budget, scales from the stars themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from dustmap.covariance import functional_covariance
from dustmap.functionals import FixedStep, LineIntegrals
from dustmap.grid import Grid
from dustmap.inference.search import (
    Evidence,
    Fixed,
    clustered_subset,
    search,
)
from dustmap.kernels import KERNELS
from dustmap.models.modulated import lognormal_scales
from dustmap.whitening import padded_torus
from pipelines import cost
from pipelines.config import FitConfig
from pipelines.plan import (
    RESOLVED,
    SCALE_LENGTH,
    WEIGHTS_SHARE,
    EmbeddingPlan,
    MeanPlan,
    Plan,
    choose_box,
    finest_spacing,
    make_grid,
    memory_limit,
    residual_refinement,
    resolution_note,
    round_spacing,
    svi_spacing,
    with_notes,
    work_of,
)
from pipelines.progress import Progress

# Observations in the coarse search, and how many near neighbours form a group.
_SUBSET, _NEIGHBOURS = 320, 8
# Step of the search's line integrals in lengthscales. What the midpoint rule adds to
# the variance is the spectrum aliased at 2π/step: 1% for Matérn-3/2, 5% for Matérn-1/2.
_STEP = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What planning needs of the stars: positions [pc], data and errors [mag].

    ``noise`` is the standard deviation of every extinction, with what distance errors
    add to it.
    """

    positions: np.ndarray
    extinction: np.ndarray
    noise: np.ndarray

    @property
    def distances(self) -> np.ndarray:
        """Heliocentric distances [pc]."""
        return np.linalg.norm(self.positions, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorChoice:
    """Scales of the prior, in pc, mag/pc and mag.

    Of a lognormal density ``std`` is that of the logarithm, ``mean`` the median.
    """

    lengthscale: tuple[float, float, float]
    std: float
    mean: MeanPlan
    common_noise: float
    notes: tuple[str, ...] = ()


def make_plan(
    catalogue: Catalogue,
    config: FitConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> tuple[Plan, cost.Work, cost.Speed]:
    """Choose what the configuration leaves open.

    Raises
    ------
    InputError
        If no grid fits the budget.
    """
    lower, upper, notes = choose_box(catalogue.positions, config)
    speed = cost.measure(dtype, device)
    inside = ((catalogue.positions >= lower) & (catalogue.positions <= upper)).all(
        axis=1
    )
    chosen = Catalogue(
        positions=catalogue.positions[inside],
        extinction=catalogue.extinction[inside],
        noise=catalogue.noise[inside],
    )
    prior = choose_prior(chosen, config, generator)
    grid = _choose_grid(lower, upper, prior, chosen, config, speed)
    floor = tuple(RESOLVED * h for h in grid.spacing)
    raised = tuple(max(s, f) for s, f in zip(prior.lengthscale, floor, strict=True))
    if config.prior.lengthscale is None and raised != prior.lengthscale:
        notes.append(
            f"lengthscale raised from {min(prior.lengthscale):.4g} pc to "
            f"{RESOLVED:g} grid steps: the grid does not resolve the one found"
        )
        # The other scales that go with a longer lengthscale are others, too.
        fixed = config.prior.model_copy(update={"lengthscale": raised})
        prior = choose_prior(
            chosen, config.model_copy(update={"prior": fixed}), generator
        )
    lengthscale = prior.lengthscale
    kernel = KERNELS[config.prior.kernel](lengthscale=list(lengthscale))
    svi = config.inference.engine == "svi"
    torus = padded_torus(grid, kernel, config.model.wrap_tolerance)
    plan = Plan(
        grid=grid,
        # The published engine's embedding grows when it is made.
        torus_shape=() if svi else torus.shape,
        kernel=config.prior.kernel,
        lengthscale=lengthscale,
        std=prior.std,
        mean=prior.mean,
        common_noise=prior.common_noise,
        engine=config.inference.engine,
        density=config.density,
        outliers=config.model.outliers and not svi,
        degrees=config.model.degrees,
        refinement=config.model.refinement,
        residual_refinement=residual_refinement(config.model.refinement),
        interpolation=config.model.interpolation,
        ray_step=config.model.ray_step,
        subgrid_noise=config.model.subgrid_noise,
        weights_budget=memory_limit(config) * WEIGHTS_SHARE,
        embedding=_embedding(config, prior.std),
        notes=(*notes, *prior.notes),
    )
    note = resolution_note(plan)
    if note is not None:
        plan = with_notes(plan, [note])
    return plan, work_of(grid, kernel, chosen.distances, config), speed


def _choose_grid(
    lower: np.ndarray,
    upper: np.ndarray,
    prior: PriorChoice,
    catalogue: Catalogue,
    config: FitConfig,
    speed: cost.Speed,
) -> Grid:
    """The grid as given, or the finest that the budget and the lengthscale call for."""
    spacing = config.box.spacing
    if spacing is None and config.box.shape is None:
        kernel = KERNELS[config.prior.kernel](lengthscale=list(prior.lengthscale))
        distances = catalogue.distances
        free = finest_spacing(lower, upper, kernel, distances, config, speed)
        if config.inference.engine == "svi":
            free = max(free, svi_spacing(lower, upper, len(distances), config))
        spacing = (round_spacing(free),) * 3
    return make_grid(lower, upper, spacing or (1.0,) * 3, config)


def _embedding(config: FitConfig, std: float) -> EmbeddingPlan:
    return EmbeddingPlan(
        nugget=config.svi.nugget * std**2,
        max_points=config.svi.max_embedding,
        tolerance=config.svi.pcg_tolerance,
        max_steps=config.svi.pcg_max_iterations,
        quadrature=config.svi.quadrature,
        nodes=config.svi.nodes,
        seed=config.inference.seed,
    )


def choose_prior(
    catalogue: Catalogue, config: FitConfig, generator: torch.Generator
) -> PriorChoice:
    """Scales of the prior; of a lognormal density those with the same two moments."""
    if config.density == "gaussian":
        return choose_moments(catalogue, config, generator)
    given = config.prior.std
    # What is given is the logarithm's: the moments are searched without it.
    free = config.model_copy(
        update={"prior": config.prior.model_copy(update={"std": None})}
    )
    return as_lognormal(choose_moments(catalogue, free, generator), config, given)


def as_lognormal(
    moments: PriorChoice, config: FitConfig, std: float | None
) -> PriorChoice:
    """The lognormal density with these moments, or with this std of its logarithm.

    A lengthscale that is given is the logarithm's already.
    """
    mean = moments.mean
    relative = (
        moments.std / mean.value if std is None else math.sqrt(math.expm1(std**2))
    )
    kernel = KERNELS[config.prior.kernel](lengthscale=1.0, variance=relative**2)
    variance, factor, median = lognormal_scales(kernel)
    factor = 1.0 if config.prior.lengthscale is not None else factor
    x, y, z = (factor * scale for scale in moments.lengthscale)
    return replace(
        moments,
        lengthscale=(x, y, z),
        std=math.sqrt(variance),
        mean=_with_value(mean, median * mean.value),
        # Learnt in the fit, where dense clouds do not pass for noise.
        common_noise=config.model.common_noise or 0.0,
    )


def choose_moments(
    catalogue: Catalogue, config: FitConfig, generator: torch.Generator
) -> PriorChoice:
    """Lengthscale, amplitude, mean and common noise by the evidence of a subset.

    What the configuration gives is kept. Without ``inference.search`` what is open
    follows from simple moments of the data: a lengthscale of a tenth of the median
    distance, and a constant mean and standard deviation of the mean density.
    """
    prior = config.prior
    density = mean_density(catalogue)
    fixed = Fixed(
        variance=1.0 if prior.std is not None else None,
        common_noise=config.model.common_noise,
        amplitude=prior.mean_density,
    )
    everything = (
        prior.lengthscale is not None
        and prior.std is not None
        and config.model.common_noise is not None
        and (prior.mean == "zero" or prior.mean_density is not None)
        and prior.mean != "auto"
        and (prior.mean != "exponential-disc" or prior.scale_height is not None)
    )
    if everything or not config.inference.search:
        typical = float(np.median(catalogue.distances)) / 10
        mean = _mean_candidates(catalogue, config)[0]
        value = prior.mean_density if prior.mean_density is not None else density
        value = 0.0 if mean.kind == "zero" else value
        return PriorChoice(
            lengthscale=prior.lengthscale or (typical, typical, typical),
            std=prior.std if prior.std is not None else density,
            mean=_with_value(mean, value),
            common_noise=config.model.common_noise or 0.0,
        )
    found = _search_prior(catalogue, config, fixed, generator)
    if config.density == "lognormal" and not found.mean.value > 0:
        note = "mean density: that of all sight lines, since a lognormal needs one"
        mean = _with_value(MeanPlan(kind="constant"), density)
        found = replace(found, mean=mean, notes=(*found.notes, note))
    return found


def mean_density(catalogue: Catalogue) -> float:
    """Total extinction over total path length [mag/pc], positive."""
    total = float(np.abs(catalogue.extinction.sum()))
    scale = float(np.abs(catalogue.extinction).sum() + catalogue.noise.sum())
    return max(total, 1e-3 * scale) / float(catalogue.distances.sum())


def _mean_candidates(catalogue: Catalogue, config: FitConfig) -> list[MeanPlan]:
    """Mean shapes to try; the last one is used while the lengthscale is searched."""
    prior = config.prior
    length = prior.scale_length or SCALE_LENGTH
    # Heights are tried relative to where the stars are, so that any size of box works.
    reach = float(np.quantile(np.abs(catalogue.positions[:, 2]), 0.9))
    heights = (
        [prior.scale_height]
        if prior.scale_height is not None
        else [f * reach for f in (1.0, 0.5, 0.25)]
    )
    discs = [
        MeanPlan(kind="exponential-disc", scale_height=h, scale_length=length)
        for h in heights
        if h > 0
    ]
    constant = MeanPlan(kind="constant")
    if prior.mean == "zero":
        return [MeanPlan(kind="zero")]
    if prior.mean == "constant" or not discs:
        return [constant]
    # A scale height that is given asks for a disc.
    if prior.mean == "exponential-disc" or prior.scale_height is not None:
        return discs
    return [*discs, constant]


def _with_value(mean: MeanPlan, value: float) -> MeanPlan:
    return MeanPlan(
        kind=mean.kind,
        value=value,
        scale_height=mean.scale_height,
        scale_length=mean.scale_length,
    )


def _search_prior(
    catalogue: Catalogue, config: FitConfig, fixed: Fixed, generator: torch.Generator
) -> PriorChoice:
    prior = config.prior
    positions = torch.as_tensor(catalogue.positions)
    subset = clustered_subset(positions, _SUBSET, _NEIGHBOURS, generator)
    rows = subset.numpy()
    ends = positions[subset]
    anisotropy, lengthscales = np.ones(3), _lengthscale_candidates(catalogue)
    if prior.lengthscale is not None:
        anisotropy, lengthscales = np.array(prior.lengthscale), [1.0]
    means = _mean_candidates(catalogue, config)
    fine = FixedStep(step=float(np.median(catalogue.distances)) / 50)
    shapes = [_observed(mean, LineIntegrals(ends, fine)) for mean in means]
    variance = 1.0 if prior.std is None else prior.std**2
    with Progress(description="scales", total=len(lengthscales), unit="try") as bar:

        def covariance(scale: float) -> np.ndarray:
            scales = anisotropy * scale
            kernel = KERNELS[prior.kernel](
                lengthscale=scales.tolist(), variance=variance
            )
            rays = LineIntegrals(ends, FixedStep(step=_STEP * float(scales.min())))
            bar.update(lengthscale=f"{scales.min():.3g}")
            return functional_covariance(kernel, rays, rays).numpy()

        scale, shape, best, _ = search(
            covariance,
            lengthscales,
            shapes,
            catalogue.extinction[rows],
            catalogue.noise[rows] ** 2,
            fixed,
        )
    return _choice(
        scale * anisotropy, means[shape], best, variance, lengthscales, scale
    )


def _choice(
    lengthscale: np.ndarray,
    mean: MeanPlan,
    best: Evidence,
    variance: float,
    tried: list[float],
    scale: float,
) -> PriorChoice:
    notes = []
    value = best.amplitude
    if value < 0:
        notes.append(
            f"mean density: the data prefer {value:.2g} mag/pc; a density cannot be "
            "negative on average, so that the mean is zero"
        )
        mean, value = MeanPlan(kind="zero"), 0.0
    if len(tried) > 1 and scale in (tried[0], tried[-1]):
        end = "shortest" if scale == tried[0] else "longest"
        notes.append(f"lengthscale: the {end} of those tried is the best")
    return PriorChoice(
        lengthscale=(
            float(lengthscale[0]),
            float(lengthscale[1]),
            float(lengthscale[2]),
        ),
        std=math.sqrt(best.variance * variance),
        mean=_with_value(mean, value),
        common_noise=best.common_noise,
        notes=tuple(notes),
    )


def _observed(mean: MeanPlan, rays: LineIntegrals) -> np.ndarray | None:
    if mean.kind == "zero":
        return None
    return _with_value(mean, 1.0).build().observed(rays).numpy()


def _lengthscale_candidates(catalogue: Catalogue) -> list[float]:
    """Six steps of a factor 1.7 up to the median distance of the stars."""
    longest = float(np.median(catalogue.distances))
    return [longest / 1.7**power for power in range(6, 0, -1)]
