"""What a map has to beat: predictions of extinctions from neighbouring stars alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch

from dustmap.residual.free_spectrum import Rays
from dustmap.residual.grid_free import learn_grid_free
from dustmap.residual.tuned_neighbours import tune_neighbours
from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import Stars
from pipelines.model.plan import Plan
from pipelines.planning.selection import placing_errors

# Fewer stars than this teach neither.
FEWEST = 100
NO_BASELINES = f"baselines need {FEWEST} fitted stars, here are fewer"
# Stars on which the covariance is learnt, and at most this part of all.
_HELD, _SHARE = 1500, 0.2
# Standard errors by which a map must be worse before it is said to be.
_WORSE = 2.0
NAMES = {"neighbours": "tuned neighbours", "kriging": "grid-free kriging"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """Predictions for stars, each of shape ``(n,)``.

    Parameters
    ----------
    neighbours
        Mean extinction of the nearest stars [mag], as tuned.
    kriging, kriging_std
        Noise-free extinction by kriging without a grid, and its standard deviation
        [mag].
    separation
        Distance from the star to the sight line of its nearest fitted star [pc].
    """

    neighbours: np.ndarray
    kriging: np.ndarray
    kriging_std: np.ndarray
    separation: np.ndarray

    @classmethod
    def of_columns(cls, columns: dict[str, np.ndarray]) -> Baselines | None:
        """Of a table's columns; ``None`` if it has none of them."""
        if not set(cls.__dataclass_fields__) <= columns.keys():
            return None
        return cls(**{name: columns[name] for name in cls.__dataclass_fields__})

    def columns(self) -> dict[str, np.ndarray]:
        """The inverse of `of_columns`."""
        return asdict(self)


def predict_baselines(
    train: Stars, targets: Stars, generator: torch.Generator
) -> Baselines | None:
    """Both baselines from the stars of ``train``; ``None`` if these are too few.

    Raises
    ------
    FloatingPointError
        If a covariance of kriging is not positive definite.
    """
    if len(train) < FEWEST:
        return None
    assert train.extinction is not None
    assert train.extinction_error is not None
    observed = _rays(train, train.extinction / train.distance)
    places = _rays(targets, np.ones(len(targets)))
    count = min(_HELD, int(_SHARE * len(train)))
    kriging = learn_grid_free(
        observed,
        torch.tensor(train.extinction_error) ** 2,
        torch.tensor(placing_errors(train)),
        torch.randperm(len(train), generator=generator)[:count],
    )
    mean, variance = kriging.predict(places)
    tuned = tune_neighbours(observed, generator)
    return Baselines(
        neighbours=tuned.predict(places).numpy(),
        kriging=mean.numpy(),
        kriging_std=variance.sqrt().numpy(),
        separation=tuned.separation(places).numpy(),
    )


def kriging_noise(stars: Stars, found: Baselines) -> np.ndarray:
    """Standard errors of extinctions [mag] where no map gives a density at the star.

    The kriged mean density makes noise of an error of the distance.
    """
    assert stars.extinction_error is not None
    return np.hypot(
        stars.extinction_error, found.kriging / stars.distance * placing_errors(stars)
    )


def baseline_score(
    found: Baselines, observed: np.ndarray, predicted: np.ndarray | None = None
) -> dict[str, float]:
    """Errors of both, and of a map's predictions against the better one.

    ``excess`` is the mean difference of squared errors, map minus the better baseline,
    in its own standard errors.
    """
    squared = {name: (getattr(found, name) - observed) ** 2 for name in NAMES}
    score = {
        f"rmse_{name}": float(each.mean() ** 0.5) for name, each in squared.items()
    }
    score["separation"] = float(np.median(found.separation))
    if predicted is None or len(observed) < 2:
        return score
    best = min(squared.values(), key=np.mean)
    difference = (predicted - observed) ** 2 - best
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return {**score, "excess": float(difference.mean() / error) if error > 0 else 0.0}


def loses(score: dict[str, float]) -> bool:
    """Whether the map is worse than the better baseline, beyond chance."""
    return score.get("excess", 0.0) > _WORSE


def in_words(score: dict[str, float], plan: Plan) -> str:
    """The baselines' errors; where the map loses to one, that and a measured reason."""
    told = ", ".join(
        f"{name} {score[f'rmse_{key}']:.4g}" for key, name in NAMES.items()
    )
    told = f"RMSE without a map: {told} mag"
    best = min(NAMES, key=lambda key: score[f"rmse_{key}"])
    if not loses(score):
        return told
    return (
        f"{told}: the map, {score['rmse']:.4g}, loses to {NAMES[best]} "
        f"({score['excess']:.1f} standard errors); {_reason(score, plan)}"
    )


def _reason(score: dict[str, float], plan: Plan) -> str:
    """What of spacing and separation can be the reason, by their numbers."""
    spacing, apart = float(np.mean(plan.grid.spacing)), score["separation"]
    correlated = float(np.mean(plan.lengthscale))
    stars = f"the nearest fitted sight line passes a star at {apart:.3g} pc (median)"
    if spacing > apart:
        return (
            f"its grid of {spacing:.3g} pc is coarser than its stars are dense: {stars}"
        )
    if apart > correlated:
        return (
            f"too few stars: {stars}, beyond the density's lengthscale of "
            f"{correlated:.3g} pc"
        )
    return f"not for its grid of {spacing:.3g} pc: {stars}"


def _rays(stars: Stars, density: np.ndarray) -> Rays:
    return Rays(
        directions=torch.tensor(unit_vectors(stars.l, stars.b)),
        lengths=torch.tensor(stars.distance),
        density=torch.tensor(density),
    )
