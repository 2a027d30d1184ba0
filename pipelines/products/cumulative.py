"""Extinction from the observer outwards along rays, with the std of the integral."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from dustmap.models.base import ForwardModel
from dustmap.posterior import Posterior
from pipelines.observations import rays
from pipelines.run import Run

# Seed of the sub-grid residual, the same for every distance of one direction.
_RESIDUAL_SEED = 1


def cumulative(
    run: Run, directions: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std [mag] of ``∫_0^d ρ ds`` at distances ``edges`` [pc].

    ``edges`` has shape ``(e,)``, or ``(e, n)`` with other distances for each of n
    directions. Returns shape ``(e, n)``; NaN where the ray has left the box.
    """
    posterior, plan = run.posterior, run.plan
    along = torch.as_tensor(directions)
    distances = torch.as_tensor(edges, dtype=torch.float64)
    far = distances.reshape(len(edges), -1, 1) * along
    inside = plan.grid.contains(far.reshape(-1, 3)).reshape(len(edges), len(along))
    shape = tuple(inside.shape)
    if plan.engine == "svi":
        # Rows are exact there, and their joint residuals too dear: whole rays.
        whole = posterior.moments(rays(plan, far[inside]))
        return _scattered(whole.mean, inside), _scattered(whole.std, inside)
    near = torch.cat([torch.zeros_like(far[:1]), far[:-1]])
    # Short segments need shorter steps than the stars' whole rays.
    fine = replace(plan, ray_step=plan.ray_step / 2)
    model = posterior.model.at(rays(fine, far[inside], near[inside]))

    def summed(values: torch.Tensor) -> torch.Tensor:
        """Segments of every ray, accumulated from the observer outwards."""
        total = torch.zeros(shape, dtype=torch.float64)
        total[inside] = values.to(torch.float64).cpu()
        return total.cumsum(dim=0)

    if not model.linear:
        mean, variance = _moments_along(model, posterior, summed)
        return (
            _scattered(mean[inside], inside),
            _scattered(variance[inside].sqrt(), inside),
        )
    mean = summed(model.apply(posterior.mean))
    variance = torch.zeros(shape, dtype=torch.float64)
    for sample in posterior.samples:
        variance += (summed(model.apply(sample)) - mean) ** 2
    variance /= max(len(posterior.samples), 1)
    generator = torch.Generator().manual_seed(_RESIDUAL_SEED)
    repeated = posterior.mean.expand(plan.residual_count, -1)
    for draw in model.residual_draws(repeated, generator):
        variance += summed(draw) ** 2 / plan.residual_count
    if not len(posterior.samples):
        variance[:] = float("nan")
    return (
        _scattered(mean[inside], inside),
        _scattered(variance[inside].sqrt(), inside),
    )


def _moments_along(
    model: ForwardModel,
    posterior: Posterior,
    summed: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over samples of what rays have seen so far.

    What the grid cannot resolve of different segments is independent: it adds up.
    """
    samples = posterior.samples
    if not len(samples):
        mean = summed(model.apply(posterior.mean))
        return mean, torch.full_like(mean, float("nan"))
    count = len(samples)
    first = second = unresolved = torch.zeros(())
    for sample in samples:
        tangent = model.linearise(sample)
        seen = summed(tangent.prediction)
        first, second = first + seen / count, second + seen**2 / count
        unresolved = unresolved + summed(tangent.variance) / count
    spread = (second - first**2).clamp(min=0.0) * count / max(count - 1, 1)
    return first, spread + unresolved


def _scattered(values: torch.Tensor, inside: torch.Tensor) -> np.ndarray:
    full = np.full(tuple(inside.shape), np.nan)
    full[inside.numpy()] = values.numpy()
    return full
