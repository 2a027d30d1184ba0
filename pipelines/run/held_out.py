"""The held-out stars: observations and predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.base.calibration import coverage, z_scores, z_scores_lognormal
from pipelines.base.quantiles import KINDS, QUANTILES, WIDTH_95
from pipelines.catalog.schema import Stars, read_table
from pipelines.run.baseline import Baseline, baseline_score

if TYPE_CHECKING:
    # These need torch, which readers of a run do without.
    from dustmap.residual.field import ResidualField
    from dustmap.residual.predictive import Measured, PredictiveLaw
    from pipelines.model.plan import Plan

Columns = dict[str, np.ndarray]
"""Numbers by the name of a column, ``(n,)``."""
HELD_OUT_FILE = "held_out.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Stars in the map that were not fitted, with columns of shape ``(n,)``.

    Beside Galactic ``l, b`` [deg] and ``distance`` [pc], ``distance_error`` is its
    standard deviation [pc], zero if unknown. ``observed`` is the extinction, ``noise``
    its standard deviation [mag], with common noise and the effect of distance errors;
    ``predicted`` are ``mean std`` and quantiles of the noise-free extinction [mag],
    ``z`` the observations' z-scores by the law of the run, if it has one, ``baseline``
    predictions from neighbouring stars alone, ``None`` if there were too few, and
    ``survey`` the names of the stars' surveys, if there are several.
    """

    l: np.ndarray  # noqa: E741  the standard symbol of Galactic longitude
    b: np.ndarray
    distance: np.ndarray
    distance_error: np.ndarray
    observed: np.ndarray
    noise: np.ndarray
    predicted: Columns
    z: np.ndarray | None = None
    baseline: Baseline | None = None
    survey: np.ndarray | None = None

    @classmethod
    def of_columns(cls, columns: Columns) -> HeldOut:
        """Return the stars of the file's columns."""
        found = None
        if "kriging" in columns:
            found = Baseline(columns["kriging"], columns["kriging_std"])
        return cls(
            l=columns["l"],
            b=columns["b"],
            distance=columns["distance"],
            distance_error=columns.get("distance_error", 0 * columns["distance"]),
            observed=columns["extinction"],
            noise=columns["noise"],
            predicted={name: columns[f"extinction_{name}"] for name in KINDS},
            z=columns.get("z"),
            baseline=found,
            survey=columns.get("survey"),
        )

    @classmethod
    def of(cls, stars: Stars, plan: Plan, columns: Columns) -> HeldOut:
        """Return the stars with extinctions, with their predicted columns."""
        places = {"l": stars.l, "b": stars.b, "distance": stars.distance}
        if stars.survey is not None:
            places["survey"] = stars.survey
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

    @property
    def measured(self) -> Measured:
        """The quantities on which a law of measurements depends."""
        from dustmap.residual.predictive import Measured

        return Measured(
            std=np.hypot(self.predicted["std"], self.noise),
            extinction=self.predicted["mean"],
            distance_std=self.distance_error,
            distance=self.distance,
            survey=self.survey,
        )

    def by(self, predicted: Columns, law: PredictiveLaw | None) -> HeldOut:
        """Return the stars with other predictions ``(n,)``, judged by a law."""
        some = np.isfinite(predicted["mean"])
        changed: dict[str, Any] = {"z": None}
        own = ("l", "b", "distance", "distance_error", "observed", "noise", "survey")
        for name in own:
            values = getattr(self, name)
            changed[name] = None if values is None else values[some]
        if self.baseline is not None:
            changed["baseline"] = Baseline(*(each[some] for each in self.baseline))
        found = replace(
            self,
            predicted={name: values[some] for name, values in predicted.items()},
            **changed,
        )
        if law is None or not found.has_uncertainty:
            return found
        return replace(found, z=law.z_scores(found.residual, found.measured))

    def score(self, *, positive: bool) -> dict[str, float]:
        """Return error, coverage and median z-score.

        ``above_p97_5`` and ``below_p2_5`` are the shares beyond the intervals.
        """
        if not len(self):
            return {}
        score = {
            "stars": float(len(self)),
            "rmse": self.rmse,
            "scatter": float(np.std(self.observed)),
        }
        # The standard deviation needs posterior samples.
        if self.has_uncertainty:
            z = self.z_scores(positive=positive)
            score["z_median"] = float(np.median(z))
            for found in coverage(z, (0.68, 0.95)):
                score[f"coverage_{100 * found.level:.0f}"] = found.held
            score["above_p97_5"] = float(np.mean(z > WIDTH_95))
            score["below_p2_5"] = float(np.mean(z < -WIDTH_95))
        return score | self.baseline_score()

    def baseline_score(self) -> dict[str, float]:
        """Return `rmse` of the map and the baseline's scores; empty without one."""
        if self.baseline is None:
            return {}
        return {
            "rmse": self.rmse,
            **baseline_score(self.baseline, self.observed, self.predicted["mean"]),
        }

    def quantities(self) -> Columns:
        """Return the quantities on which errors may depend, by name and unit.

        Bins of the measured extinction would be biased by its noise: the predicted one
        takes its place.
        """
        mean, relative = self.predicted["mean"], self.distance_error / self.distance
        found = {"distance [pc]": self.distance, "predicted extinction [mag]": mean}
        return found | ({"relative distance error": relative} if relative.any() else {})

    @property
    def has_uncertainty(self) -> bool:
        """True if the predictions have standard deviations, from posterior samples."""
        return bool(np.isfinite(self.predicted["std"]).all())

    def z_scores(self, *, positive: bool) -> np.ndarray:
        """Return z-scores by the law of the run.

        Without one the noise is normal, and the prediction of a ``positive`` density
        log-normal.
        """
        if self.z is not None:
            return self.z
        if positive:
            return z_scores_lognormal(self.observed, self.noise, self.predicted)
        mean, std = self.predicted["mean"], self.predicted["std"]
        return z_scores(self.observed, self.noise, mean, std)


def _observed(stars: Stars, plan: Plan, predictions: Columns) -> Columns:
    """Return columns of the observation; ``noise`` is its total standard error."""
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    variance = stars.variance(predictions["density_mean"], plan.common_noise)
    return {
        "extinction": stars.extinction,
        "extinction_error": stars.extinction_error,
        "noise": np.sqrt(variance),
        "distance_error": stars.distance_std,
    }


def with_law(
    residual: ResidualField, stars: Stars, plan: Plan, predictions: Columns
) -> ResidualField:
    """Learn the law of measurements from stars that the predictions have not seen."""
    from dustmap.residual.predictive import learn_law

    held, along = HeldOut.of(stars, plan, predictions), np.argsort(stars.pixels())
    law = learn_law(held.residual[along], held.measured.select(along))
    return replace(residual, law=law)


def measured_columns(
    residual: ResidualField | None, stars: Stars, plan: Plan, predictions: Columns
) -> Columns:
    """Return the predicted measurements of stars, noise included.

    Columns are ``measured_mean``, ``measured_std`` and quantiles by the law of
    `residual` [mag], and the observations' ``z``; none if there is no law.
    """
    if residual is None or residual.law is None:
        return {}
    held, law = HeldOut.of(stars, plan, predictions), residual.law
    mean, measured = held.predicted["mean"], held.measured
    found = {"measured_mean": mean + law.mean(measured)}
    found["measured_std"] = law.std(measured)
    for name, probability in QUANTILES.items():
        found[f"measured_{name}"] = mean + law.quantile(measured, probability)
    return {**found, "z": law.z_scores(held.residual, measured)}


def held_out_score(predictions: Columns, stars: Stars, plan: Plan) -> dict[str, float]:
    """Return `HeldOut.score`, and the error of the predicted measurements."""
    if not len(stars):
        return {}
    held = HeldOut.of(stars, plan, predictions)
    score = held.score(positive=plan.is_lognormal)
    if "measured_mean" in predictions:
        error = held.observed - predictions["measured_mean"]
        score["measured_rmse"] = float(np.sqrt(np.mean(error**2)))
    return score


def write_held_out(path: Path, stars: Stars, plan: Plan, predictions: Columns) -> None:
    """Write predictions beside the observations."""
    from pipelines.run.predict import write_predictions

    observed = _observed(stars, plan, predictions)
    write_predictions(path, stars, {**observed, **predictions})


def read_held_out(run: Path) -> HeldOut | None:
    """Read the held-out stars of a run; return ``None`` if there are none."""
    if not (run / HELD_OUT_FILE).is_file():
        return None
    columns, _, _ = read_table(run / HELD_OUT_FILE)
    inside = columns["inside"].astype(bool)
    if not inside.any():
        return None
    return HeldOut.of_columns({name: c[inside] for name, c in columns.items()})
