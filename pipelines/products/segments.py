"""Moments of sums of line integrals over segments of rays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.models.base import ForwardModel
from dustmap.models.lognormal import LogNormal
from dustmap.moments import Moments, moments_over_samples
from pipelines.model.observations import rays
from pipelines.run.folder import Run

# Seed of the sub-grid residual, the same for every distance of one direction.
_RESIDUAL_SEED = 1
# Bytes of samples' densities that are kept for the next segments.
_DENSITIES = 2**31

Combine = Callable[[Tensor], Tensor]


class SegmentMoments:
    """Moments of linear combinations of segments, for one set of segments at a time.

    The densities of a log-normal posterior's samples are coloured once where they fit
    in 2 GiB together, otherwise once per set.
    """

    def __init__(self, run: Run) -> None:
        self._plan, self._posterior = run.plan, run.posterior
        self._kept: list[Tensor] = []

    def of(
        self,
        far: Float[Tensor, "i 3"],
        near: Float[Tensor, "i 3"],
        combine: Combine,
        *,
        joint: bool,
        outwards: bool = False,
    ) -> Moments:
        """Moments [mag] of what ``combine`` makes of the integrals from near to far.

        Samples are combined before moments are taken. What the grid cannot resolve of
        a Gaussian density is drawn jointly, or taken to be the same for all segments
        that are combined. That of a log-normal density is combined by its variances.
        ``outwards`` says that they make integrals from the observer to ``far``, which
        the stars' residual corrects.
        """
        # Short segments need shorter steps than the stars' whole rays.
        fine = replace(self._plan, ray_step=self._plan.ray_step / 2)
        model = self._posterior.model.at(rays(fine, far, near))

        def combined(values: Tensor) -> Tensor:
            return combine(values.to(torch.float64).cpu())

        if isinstance(model, LogNormal) and len(self._posterior.samples):
            return self._of_samples(model, combined, far if outwards else None)
        return self._of_linear(model, combined, joint=joint)

    def _of_samples(
        self, model: LogNormal, combine: Combine, ends: Tensor | None
    ) -> Moments:
        """The rule of `Posterior.moments`, sample by sample."""
        residual, densities = self._posterior.residual, self._densities(model)
        if ends is None or residual is None:
            pairs = (model.predict_from_density(density) for density in densities)
            found = [[combine(part) for part in pair] for pair in pairs]
            values, unresolved = (torch.stack(parts) for parts in zip(*found))
            return moments_over_samples(values, unresolved, positive=True)
        # What is unresolved is told by the stars near.
        values = [combine(model.weights.matvec(density)) for density in densities]
        values, variance = residual.correct(ends, torch.stack(values))
        found = moments_over_samples(values, variance, positive=True)
        return replace(found, tails=torch.full_like(found.mean, residual.tails))

    def _densities(self, model: LogNormal) -> Iterator[Tensor]:
        """Every sample's density on the grid."""
        samples = self._posterior.samples
        size = model.whitening.fine_size * samples.element_size() * len(samples)
        for i, sample in enumerate(samples):
            density = self._kept[i] if i < len(self._kept) else model.density(sample)
            if i == len(self._kept) and size <= _DENSITIES:
                self._kept.append(density)
            yield density

    def _of_linear(
        self, model: ForwardModel, combine: Combine, *, joint: bool
    ) -> Moments:
        posterior, count = self._posterior, self._plan.residual_count
        mean = combine(model.apply(posterior.mean))
        if not len(posterior.samples):
            return Moments(mean=mean, std=torch.full_like(mean, float("nan")))
        variance = torch.zeros_like(mean)
        for sample in posterior.samples:
            deviation = combine(model.apply(sample)) - mean
            variance += deviation**2 / len(posterior.samples)
        if joint:
            generator = torch.Generator().manual_seed(_RESIDUAL_SEED)
            repeated = posterior.mean.expand(count, -1)
            for draw in model.residual_draws(repeated, generator):
                variance += combine(draw) ** 2 / count
        else:
            variance += combine(model.linearise(posterior.mean).variance)
        return Moments(mean=mean, std=variance.sqrt())
