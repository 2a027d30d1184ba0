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
    assert train.extinction is not None
    assert train.extinction_error is not None
    observed = _rays(train, train.extinction / train.distance)
    places = _rays(targets, np.ones(len(targets)))
    count = min(_HELD, int(_SHARE * len(train)))
    held = torch.randperm(len(train), generator=generator)[:count]
    kriging = learn_grid_free(
        observed,
        torch.as_tensor(train.extinction_error) ** 2,
        torch.as_tensor(placing_errors(train)),
        held,
    )
    mean, variance = kriging.predict(places)
    return {
        "neighbours": tune_neighbours(observed, generator).predict(places).numpy(),
        "kriging": mean.numpy(),
        "kriging_std": variance.sqrt().numpy(),
    }


def _rays(stars: Stars, density: np.ndarray) -> Rays:
    return Rays(
        directions=torch.as_tensor(unit_vectors(stars.l, stars.b)),
        lengths=torch.as_tensor(stars.distance),
        density=torch.as_tensor(density),
    )
