"""Predictions of stars from their neighbours alone: kriging without a grid."""

from __future__ import annotations

import numpy as np
import torch

from dustmap.residual.covariance import CPU, Rays
from dustmap.residual.learning import (
    LocalMeanKriging,
    learn_local_mean_kriging,
    near_rays,
)
from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import Stars
from pipelines.run.baseline import Baseline

# Fewest stars to learn the covariance from.
FEWEST = 100
NO_BASELINE = f"a baseline needs {FEWEST} fitted stars, got fewer"


def predict_baseline(
    train: Stars, targets: Stars, generator: torch.Generator
) -> Baseline | None:
    """Krige from the stars of ``train``; return ``None`` if there are too few.

    Raises `FloatingPointError` if a covariance is not positive definite.
    """
    kriging = learn_baseline(train, targets, generator)
    return None if kriging is None else krige_stars(kriging, targets)


def krige_stars(kriging: LocalMeanKriging, targets: Stars) -> Baseline:
    """Return the predictions of stars."""
    mean, variance = kriging.predict(rays_of(targets, np.ones(len(targets))))
    return Baseline(kriging=mean.numpy(), kriging_std=variance.sqrt().numpy())


def learn_baseline(
    train: Stars,
    targets: Stars,
    generator: torch.Generator,
    device: torch.device = CPU,
) -> LocalMeanKriging | None:
    """Learn kriging of the targets; return ``None`` if there are too few stars.

    It is learnt from a fifth of the stars of ``train``, at most 1,500, and predicts
    from all of them, or, if there are more than 200,000, from the 150 nearest to each
    target and each star that it is learnt from.

    Raises `FloatingPointError` if a covariance is not positive definite.
    """
    if len(train) < FEWEST:
        return None
    assert train.extinction is not None
    count = min(1500, int(0.2 * len(train)))
    held = torch.randperm(len(train), generator=generator)[:count]
    observed = rays_of(train, train.extinction / train.distance)
    noise = torch.as_tensor(train.variance())
    distance_std = torch.as_tensor(train.distance_std)
    if len(train) > 200_000:
        some = near_rays(observed, held, rays_of(targets, np.ones(len(targets))), 150)
        observed, noise, distance_std = observed[some], noise[some], distance_std[some]
        held = torch.searchsorted(some, held)
    return learn_local_mean_kriging(observed, noise, distance_std, held, device)


def rays_of(stars: Stars, density: np.ndarray) -> Rays:
    """Return rays to stars, with mean densities [mag/pc]."""
    return Rays(
        directions=torch.tensor(unit_vectors(stars.l, stars.b)),
        lengths=torch.tensor(stars.distance),
        density=torch.tensor(density),
    )
