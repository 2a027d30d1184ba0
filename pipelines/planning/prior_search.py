"""Scales of the prior by the evidence of a subset of the stars, tried coarsely."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from dustmap.covariance import functional_covariance
from dustmap.functionals import FixedStep, LineIntegrals
from dustmap.inference.scales.search import Evidence, Fixed, clustered_subset, search
from dustmap.kernels import KERNELS
from pipelines.base.progress import Progress
from pipelines.config import FitConfig
from pipelines.model.plan import SCALE_LENGTH, MeanPlan

# Observations in the coarse search, and how many near neighbours form a group.
_SUBSET, _NEIGHBOURS = 320, 8
# Step of the search's line integrals in lengthscales. What the midpoint rule adds to
# the variance is the spectrum aliased at 2π/step: 1% for Matérn-3/2, 5% for Matérn-1/2.
_STEP = 1.0
# Lengthscales on the stars' mean ray, at most: where half of the stars were near, the
# shortest of six took 19 of 32 s.
_SHORTEST = 40.0


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

    def inside(self, lower: np.ndarray, upper: np.ndarray) -> Catalogue:
        """The stars in a box [pc]."""
        within = (self.positions >= lower) & (self.positions <= upper)
        kept = within.all(axis=1)
        return Catalogue(
            positions=self.positions[kept],
            extinction=self.extinction[kept],
            noise=self.noise[kept],
        )


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


def search_prior(
    catalogue: Catalogue, config: FitConfig, fixed: Fixed, generator: torch.Generator
) -> PriorChoice:
    """The scales of largest evidence; what is ``fixed`` or given stays."""
    prior = config.prior
    positions = torch.as_tensor(catalogue.positions)
    subset = clustered_subset(positions, _SUBSET, _NEIGHBOURS, generator)
    rows = subset.numpy()
    ends = positions[subset]
    anisotropy, lengthscales = np.ones(3), _lengthscale_candidates(catalogue)
    if prior.lengthscale is not None:
        anisotropy, lengthscales = np.array(prior.lengthscale), [1.0]
    means = mean_candidates(catalogue, config)
    fine = FixedStep(step=float(np.median(catalogue.distances)) / 50)
    shapes = [_observed(mean, LineIntegrals(ends, fine)) for mean in means]
    variance = 1.0 if prior.std is None else prior.std**2
    smooth = _searched_kernel(config)
    with Progress(description="scales", total=len(lengthscales), unit="try") as bar:

        def covariance(scale: float) -> np.ndarray:
            scales = anisotropy * scale
            kernel = KERNELS[smooth](lengthscale=scales.tolist(), variance=variance)
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
    # The lengthscale at which the kernel itself has fallen to a half as far out.
    half = [
        KERNELS[name](lengthscale=1.0).decay(0.5) for name in (smooth, config.kernel)
    ]
    return _choice(
        scale * anisotropy * half[0] / half[1],
        means[shape],
        best,
        variance,
        lengthscales,
        scale,
    )


def _searched_kernel(config: FitConfig) -> str:
    """The kernel that is tried: a lengthscale of Matérn-1/2 is hard to tell.

    Its evidence hardly changes along constant ``σ²/ℓ``, so that a few hundred stars
    would choose the longest; that of Matérn-3/2 has a maximum.
    """
    rough = config.kernel == "matern12" and config.prior.lengthscale is None
    return "matern32" if rough else config.kernel


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
        mean=with_value(mean, value),
        common_noise=best.common_noise,
        notes=tuple(notes),
    )


def _observed(mean: MeanPlan, rays: LineIntegrals) -> np.ndarray | None:
    if mean.kind == "zero":
        return None
    return with_value(mean, 1.0).build().observed(rays).numpy()


def _lengthscale_candidates(catalogue: Catalogue) -> list[float]:
    """Six steps of a factor 1.7 up to the median distance of the stars.

    Those are left out that are short beside the mean distance, of which rays have many.
    """
    longest = float(np.median(catalogue.distances))
    tried = [longest / 1.7**power for power in range(6, 0, -1)]
    least = float(np.mean(catalogue.distances)) / _SHORTEST
    return [scale for scale in tried if scale >= least] or tried[-1:]


def mean_candidates(catalogue: Catalogue, config: FitConfig) -> list[MeanPlan]:
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


def with_value(mean: MeanPlan, value: float) -> MeanPlan:
    """The same shape with this amplitude [mag/pc]."""
    return MeanPlan(
        kind=mean.kind,
        value=value,
        scale_height=mean.scale_height,
        scale_length=mean.scale_length,
    )
