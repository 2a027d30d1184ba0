"""The held-out stars: what was observed of them, and what the map says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.base.calibration import coverage, predictive_z
from pipelines.base.quantiles import KINDS
from pipelines.catalog.schema import Stars, read_table
from pipelines.model.plan import Plan
from pipelines.run.assessment import observation_noise
from pipelines.run.predict import write_predictions

FILE = "held_out.parquet"
_LEVELS = (0.68, 0.95)
_OBSERVED = ("extinction", "extinction_error", "noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Stars in the map that were not fitted, each of shape ``(n,)``.

    Parameters
    ----------
    l, b
        Galactic longitude and latitude [deg].
    distance
        Heliocentric distance [pc].
    observed, noise
        Extinction and its standard deviation [mag], with what common noise and the
        distance's error add.
    predicted
        ``mean std p16 p50 p84`` of the noise-free extinction [mag].
    """

    l: np.ndarray  # noqa: E741  the field's name for Galactic longitude
    b: np.ndarray
    distance: np.ndarray
    observed: np.ndarray
    noise: np.ndarray
    predicted: dict[str, np.ndarray]

    @classmethod
    def of(cls, stars: Stars, plan: Plan, columns: dict[str, np.ndarray]) -> HeldOut:
        """Stars with extinctions, beside the columns that were predicted of them."""
        assert stars.extinction is not None
        return cls(
            l=stars.l,
            b=stars.b,
            distance=stars.distance,
            observed=stars.extinction,
            noise=observation_noise(stars, plan, columns["density_mean"]),
            predicted={name: columns[f"extinction_{name}"] for name in KINDS},
        )

    def __len__(self) -> int:
        return len(self.l)

    @property
    def residual(self) -> np.ndarray:
        """Observed minus predicted mean [mag]."""
        return self.observed - self.predicted["mean"]

    @property
    def has_uncertainty(self) -> bool:
        """Whether the map states one: it does if it has posterior samples."""
        return bool(np.isfinite(self.predicted["std"]).all())

    def z_scores(self, *, positive: bool) -> np.ndarray:
        """Of a log-normal prediction where the density is ``positive``, else normal."""
        return predictive_z(
            self.observed, self.noise, self.predicted, positive=positive
        )


def held_out_score(
    predictions: dict[str, np.ndarray], stars: Stars, plan: Plan
) -> dict[str, float]:
    """Error and coverage of the noisy extinctions of the held-out stars.

    Coverage is that of `pipelines.base.calibration`, as reports have it.
    """
    if not len(stars):
        return {}
    held = HeldOut.of(stars, plan, predictions)
    score = {
        "stars": float(len(held)),
        "rmse": float(np.sqrt(np.mean(held.residual**2))),
        "scatter": float(np.std(held.observed)),
    }
    # Without posterior samples there is no standard deviation to judge.
    if held.has_uncertainty:
        z = held.z_scores(positive=plan.density == "lognormal")
        for found in coverage(z, _LEVELS):
            score[f"coverage_{found.level:.0%}".rstrip("%")] = found.held
    return score


def write_held_out(
    path: Path, stars: Stars, plan: Plan, predictions: dict[str, np.ndarray]
) -> None:
    """Predictions beside what was observed; ``noise`` is its whole standard error."""
    assert stars.extinction_error is not None
    held = HeldOut.of(stars, plan, predictions)
    columns = (held.observed, stars.extinction_error, held.noise)
    observed = dict(zip(_OBSERVED, columns, strict=True))
    write_predictions(path, stars, {**observed, **predictions}, {})


def read_held_out(run: Path) -> HeldOut | None:
    """Those of a run folder that lie in its map; None if it has none to judge by.

    Runs of an earlier version keep the predictions only.
    """
    if not (run / FILE).is_file():
        return None
    columns, _, _ = read_table(run / FILE)
    if not {*_OBSERVED} <= set(columns):
        return None
    inside = columns["inside"].astype(bool)
    if not inside.any():
        return None
    kept = {name: column[inside] for name, column in columns.items()}
    return HeldOut(
        l=kept["l"],
        b=kept["b"],
        distance=kept["distance"],
        observed=kept["extinction"],
        noise=kept["noise"],
        predicted={name: kept[f"extinction_{name}"] for name in KINDS},
    )
