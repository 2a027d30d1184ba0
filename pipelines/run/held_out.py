"""The held-out stars: observations and predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.base.calibration import coverage, predictive_z
from pipelines.base.quantiles import KINDS
from pipelines.catalog.schema import Stars, read_table
from pipelines.model.plan import Plan
from pipelines.run.baseline import Baseline, baseline_score
from pipelines.run.predict import write_predictions

FILE = "held_out.parquet"
_LEVELS = (0.68, 0.95)
_OBSERVED = ("extinction", "extinction_error", "noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Stars in the map that were not fitted, with columns of shape ``(n,)``.

    Parameters
    ----------
    l, b
        Galactic longitude and latitude [deg].
    distance
        Heliocentric distance [pc].
    observed, noise
        Extinction and its standard deviation [mag], with common noise and the effect of
        distance errors.
    predicted
        ``mean std`` and quantiles of the noise-free extinction [mag].
    baseline
        Predictions from neighbouring stars alone; ``None`` if there were too few.
    """

    l: np.ndarray  # noqa: E741  the standard symbol of Galactic longitude
    b: np.ndarray
    distance: np.ndarray
    observed: np.ndarray
    noise: np.ndarray
    predicted: dict[str, np.ndarray]
    baseline: Baseline | None = None

    @classmethod
    def of_columns(cls, columns: dict[str, np.ndarray]) -> HeldOut:
        """Return the stars of the file's columns."""
        found = None
        if "kriging" in columns:
            found = Baseline(columns["kriging"], columns["kriging_std"])
        return cls(
            l=columns["l"],
            b=columns["b"],
            distance=columns["distance"],
            observed=columns["extinction"],
            noise=columns["noise"],
            predicted={name: columns[f"extinction_{name}"] for name in KINDS},
            baseline=found,
        )

    @classmethod
    def of(cls, stars: Stars, plan: Plan, columns: dict[str, np.ndarray]) -> HeldOut:
        """Return the stars with extinctions, with their predicted columns."""
        places = {"l": stars.l, "b": stars.b, "distance": stars.distance}
        return cls.of_columns({**columns, **places, **_observed(stars, plan, columns)})

    def __len__(self) -> int:
        return len(self.l)

    @property
    def residual(self) -> np.ndarray:
        """Residuals, observed minus predicted mean [mag]."""
        return self.observed - self.predicted["mean"]

    @property
    def rmse(self) -> float:
        """Root mean square of the residual [mag]."""
        return float(np.sqrt(np.mean(self.residual**2)))

    def baseline_score(self) -> dict[str, float]:
        """Return `rmse` of the map and the baseline's scores; empty without one."""
        if self.baseline is None:
            return {}
        return {
            "rmse": self.rmse,
            **baseline_score(self.baseline, self.observed, self.predicted["mean"]),
        }

    @property
    def has_uncertainty(self) -> bool:
        """True if the predictions have standard deviations, from posterior samples."""
        return bool(np.isfinite(self.predicted["std"]).all())

    def z_scores(self, *, positive: bool) -> np.ndarray:
        """Return z-scores, with a log-normal prediction for a ``positive`` density."""
        return predictive_z(
            self.observed, self.noise, self.predicted, positive=positive
        )


def _observed(
    stars: Stars, plan: Plan, predictions: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return columns of the observation; ``noise`` is its total standard error."""
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    variance = stars.variance(predictions["density_mean"], plan.common_noise)
    columns = (stars.extinction, stars.extinction_error, np.sqrt(variance))
    return dict(zip(_OBSERVED, columns, strict=True))


def held_out_score(
    predictions: dict[str, np.ndarray], stars: Stars, plan: Plan
) -> dict[str, float]:
    """Return error, coverage and median z-score of held-out stars' extinctions."""
    if not len(stars):
        return {}
    held = HeldOut.of(stars, plan, predictions)
    score = {
        "stars": float(len(held)),
        "rmse": held.rmse,
        "scatter": float(np.std(held.observed)),
    }
    # The standard deviation needs posterior samples.
    if held.has_uncertainty:
        z = held.z_scores(positive=plan.is_lognormal)
        score["z_median"] = float(np.median(z))
        for found in coverage(z, _LEVELS):
            score[f"coverage_{100 * found.level:.0f}"] = found.held
    return score | held.baseline_score()


def write_held_out(
    path: Path, stars: Stars, plan: Plan, predictions: dict[str, np.ndarray]
) -> None:
    """Write predictions beside the observations."""
    observed = _observed(stars, plan, predictions)
    write_predictions(path, stars, {**observed, **predictions}, {})


def read_held_out(run: Path) -> HeldOut | None:
    """Read the held-out stars of a run; return ``None`` if unusable.

    Runs of earlier versions hold predictions only, or fewer quantiles.
    """
    if not (run / FILE).is_file():
        return None
    columns, _, _ = read_table(run / FILE)
    inside = columns["inside"].astype(bool)
    needed = {*_OBSERVED, *(f"extinction_{name}" for name in KINDS)}
    if not inside.any() or not needed <= columns.keys():
        return None
    return HeldOut.of_columns({name: c[inside] for name, c in columns.items()})
