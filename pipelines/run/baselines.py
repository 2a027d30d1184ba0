"""What a map has to beat: predictions from neighbouring stars alone."""

from __future__ import annotations

import numpy as np
import torch

from dustmap.residual.free_spectrum import Rays
from dustmap.residual.grid_free import learn_grid_free
from dustmap.residual.tuned_neighbours import tune_neighbours
from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import Stars
from pipelines.planning.selection import placing_errors

# Stars on which the covariance is learnt, and at most this part of all.
_HELD, _SHARE = 1500, 0.2


def baselines(
    train: Stars, targets: Stars, generator: torch.Generator
) -> dict[str, np.ndarray]:
    """Extinction [mag] of ``neighbours`` and of ``kriging``, with ``kriging_std``."""
    observed, noise = _observed(train)
    places = _rays(targets, np.ones(len(targets)))
    tuned = tune_neighbours(observed, generator)
    count = min(_HELD, int(_SHARE * len(train)))
    held = torch.randperm(len(train), generator=generator)[:count]
    mean, variance = learn_grid_free(observed, noise, held).predict(
        places.directions, places.lengths
    )
    return {
        "neighbours": tuned.predict(places.directions, places.lengths).numpy(),
        "kriging": mean.numpy(),
        "kriging_std": variance.sqrt().numpy(),
    }


def _observed(stars: Stars) -> tuple[Rays, torch.Tensor]:
    """Rays with extinction over distance, and the variance of the extinctions."""
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    density = stars.extinction / stars.distance
    noise = stars.extinction_error
    if stars.distance_error is not None:
        # By the mean density, as long as no map is there.
        mean = stars.extinction.sum() / stars.distance.sum()
        noise = np.hypot(noise, mean * placing_errors(stars))
    return _rays(stars, density), torch.as_tensor(noise) ** 2


def _rays(stars: Stars, density: np.ndarray) -> Rays:
    return Rays(
        directions=torch.as_tensor(unit_vectors(stars.l, stars.b)),
        lengths=torch.as_tensor(stars.distance),
        density=torch.as_tensor(density),
    )
