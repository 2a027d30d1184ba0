"""Comparison of a map with unfitted stars: residuals, z-scores, coverage."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from scipy.spatial import KDTree

from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.residual.surveys import SurveyLaw
from pipelines.base.calibration import (
    Calibration,
    by_bins,
    calibrate,
    even_edges,
    z_scores,
)
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.table import Row, Table
from pipelines.catalog.schema import Stars, read_stars, read_table
from pipelines.compare.comparison import Comparison
from pipelines.config.loading import read_toml
from pipelines.figures.held_out import held_out_figure
from pipelines.maps.opening import open_run
from pipelines.maps.places import Places
from pipelines.run.baseline import NAME, in_words
from pipelines.run.folder import Run
from pipelines.run.held_out import (
    HELD_OUT_FILE,
    HeldOut,
    measured_columns,
    read_held_out,
)
from pipelines.run.kriged import predict_baseline
from pipelines.run.predict import predict_columns
from pipelines.run.surveys import calibrated


def compare_stars(run: Run, stars: Stars, *, name: str = "stars") -> Comparison:
    """Compare the map with measured extinctions of stars that were not fitted.

    Fitted stars (of the same direction and distance) and stars outside the box are
    counted and skipped. The error of a star includes the common noise of the fit and
    the effect of its distance error; z is that of the run's law of measurements. Stars
    of several surveys are calibrated like those that were fitted.

    Raises `InputError` if the table has no extinctions or no star remains.
    """
    if stars.extinction is None:
        raise InputError(f"{name} has positions only, expected extinctions")
    unseen, counts = _not_fitted(run, stars)
    kept = read_stars(run.path / "stars.parquet")
    laws = [SurveyLaw(**law) for law in run.summary.get("surveys", ())]
    unseen = calibrated(unseen, laws, kept)
    predicted = predict_columns(run.plan, run.posterior, unseen)
    inside = predicted.pop("inside")
    variance = unseen.variance(predicted["density_mean"], run.plan.common_noise)
    usable = inside & (variance > 0)
    counts["outside the box"] = int((~inside).sum())
    counts["without any error"] = int((inside & ~usable).sum())
    columns = {name: column[usable] for name, column in predicted.items()}
    judged = unseen.select(usable)
    columns |= measured_columns(run.posterior.residual, judged, run.plan, columns)
    if len(judged):
        counts["stars for the baseline"] = len(kept)
        found = predict_baseline(kept, judged, torch_stream(run.seed, Purpose.BASELINE))
        columns |= {} if found is None else found._asdict()
    found = _comparison(run, HeldOut.of(judged, run.plan, columns), counts, name)
    magnitude = read_toml(run.path / "config.toml").get("data", {}).get("magnitude")
    if magnitude is None:
        return found
    note = (
        f"The fit raised its stars' extinctions for the limit in data.magnitude = "
        f"{magnitude}; those of these stars are as measured, so that near the limit "
        "the map lies above them. Held-out stars of the run are raised alike."
    )
    return replace(found, words=(*found.words, note))


def compare_held_out(run: Run) -> Comparison:
    """Compare the map with the held-out stars of its run, as `compare_stars`.

    Raises `InputError` if the run has none.
    """
    held = read_held_out(run.path)
    if held is None:
        raise InputError(
            f"{run.path} does not hold what was observed of held-out stars: give the "
            "fitted table, to find them again, or other stars"
        )
    return _comparison(run, held, Counter({"held out": len(held)}), "held-out stars")


def _not_fitted(run: Run, stars: Stars) -> tuple[Stars, Counter[str]]:
    """Return the stars that were not fitted, and counts.

    Stars of the residual, if there is one, are all that were fitted, and those that it
    was learnt on. Means of merged stars do not tell which stars they are of.
    """
    counts, held_out = run.summary["counts"], run.path / HELD_OUT_FILE
    why, unsure = "fitted", "fitted, or not known to be held out"
    if counts.get("merged") and held_out.is_file():
        unseen = _among(stars, _places_in(held_out))
        if unseen.any():
            return stars.select(unseen), _counted(~unseen, unsure)
    if (field := run.posterior.residual) is not None:
        known = KDTree((field.rays.directions * field.rays.lengths[:, None]).numpy())
        # Rays are in single precision.
        seen = known.query(stars.positions())[0] < 1e-6 * stars.distance
        return stars.select(~seen), _counted(seen, why)
    named = _places_in(run.path / "stars.parquet")
    seen = _among(stars, named)
    if seen.any() and counts.get("fitted", 0) > len(named):
        # The run lists only some of the fitted stars, but all held-out ones.
        why, seen = unsure, ~_among(stars, _places_in(held_out))
    return stars.select(~seen), _counted(seen, why)


def _counted(seen: np.ndarray, why: str) -> Counter[str]:
    return Counter({"read": len(seen), why: int(seen.sum())})


def _places_in(path: Path) -> set[tuple[float, float, float]]:
    columns, _, _ = read_table(path)
    return set(zip(*(columns[name].tolist() for name in ("l", "b", "distance"))))


def _among(stars: Stars, places: set[tuple[float, float, float]]) -> np.ndarray:
    """Return a mask of the stars at exactly one of these places."""
    own = zip(stars.l.tolist(), stars.b.tolist(), stars.distance.tolist())
    return np.array([place in places for place in own], dtype=bool)


def _comparison(run: Run, held: HeldOut, counts: Counter[str], name: str) -> Comparison:
    if not len(held):
        found = ", ".join(f"{what}: {n}" for what, n in counts.items())
        raise InputError(
            f"{name}: no star is left to judge the map by ({found}): give stars that "
            "were not fitted, in the box"
        )
    if not held.has_uncertainty:
        raise InputError(
            f"{run.path} has no posterior samples, so its predictions have no error to "
            "judge: fit again with inference.samples of 2 or more"
        )
    z, residual = held.z_scores(positive=run.plan.is_lognormal), held.residual
    beyond = held.distance > open_run(run.path).last_star(
        Places.along(unit_vectors(held.l, held.b), held.distance[:, None])
    )
    counts["judged"] = len(held)
    counts["of these beyond the last fitted star of their line"] = int(beyond.sum())
    whole = calibrate(residual, z)
    binned = {
        name: by_bins(value, even_edges(value, 8), residual, z)
        for name, value in held.quantities().items()
    }
    bins = binned["distance [pc]"]

    def row(chosen: np.ndarray, **what: str) -> Row:
        return what | _figures(calibrate(residual[chosen], z[chosen]))

    summary = [{"what": f"{name}: all judged", **_figures(whole)}]
    if beyond.any() and not beyond.all():
        summary.append(row(~beyond, what="before the last fitted star"))
        summary.append(row(beyond, what="beyond it"))
    quadrant = np.floor(held.l % 360 / 90)
    regions, latitudes = [], (-90.0, -30.0, -5.0, 5.0, 30.0, 90.0)
    for quarter, (south, north) in product(range(4), pairwise(latitudes)):
        chosen = (quadrant == quarter) & (held.b >= south)
        # The last band includes the pole.
        chosen &= (held.b < north) | (north == 90)
        if chosen.any():
            place = (
                f"l {90 * quarter} to {90 * (quarter + 1)}, b {south:g} to {north:g}"
            )
            regions.append(row(chosen, **{"region [deg]": place}))
    without, beside = [], "What the stars predict without a map is not known for these."
    if (kriged := held.baseline) is not None:
        own = z_scores(held.observed, held.noise, kriged.kriging, kriged.kriging_std)
        found = _figures(calibrate(held.observed - kriged.kriging, own))
        without = [{"what": NAME, **found}]
        beside = f"{in_words(held.baseline_score())}."
    columns = {"l": held.l, "b": held.b, "distance": held.distance}
    columns |= {"extinction": held.observed, "noise": held.noise, **held.predicted}
    by_distance = [
        {"from [pc]": one.low, "to [pc]": one.high, **_figures(one.calibration)}
        for one in bins
    ]
    return Comparison(
        kind="stars",
        numbers={
            "counts": dict(counts),
            "scatter_of_observed": float(held.observed.std()),
            "all": asdict(whole),
            "baselines": held.baseline_score(),
            "by_distance": [asdict(each) for each in bins],
            "by_region": regions,
        },
        tables={
            "summary": Table.of_rows(summary),
            "without_a_map": Table.of_rows(without),
            "by_distance": Table.of_rows(by_distance),
            "by_region": Table.of_rows(regions),
            "stars": Table(columns={**columns, "z": z, "beyond_last_star": beyond}),
        },
        shown=("summary", "without_a_map", "by_distance", "by_region"),
        words=(*_words(held, z, counts, whole), beside),
        figures={"stars": held_out_figure(held, z, whole, binned)},
    )


def _figures(found: Calibration) -> Row:
    row: Row = {
        "stars": found.stars,
        "bias [mag]": found.bias,
        "RMSE [mag]": found.rmse,
        "1.48 MAD [mag]": found.scatter,
        "mean z": found.z_mean,
        "std z": found.z_std,
        "chi2/n": found.chi2,
    }
    return row | {
        f"in {each.level:.0%}": f"{each.held:.3f} ± {each.error:.3f}"
        for each in found.coverage
    }


def _words(
    held: HeldOut, z: np.ndarray, counts: Counter[str], whole: Calibration
) -> list[str]:
    found = "; ".join(f"{what}: {n}" for what, n in counts.items())
    words = [
        f"Stars: {found}. Only stars that the fit has not seen, in the box, are "
        "judged.",
        f"Observed extinctions scatter by {held.observed.std():.3f} mag, and by "
        f"{whole.rmse:.3f} mag around the map, their noise included; z-scores are of "
        "the map's error and the star's together.",
        "The errors of coverage are binomial; stars behind one cloud err together, so "
        "that the true errors are larger.",
    ]
    far = np.abs(z) > 5
    if far.any() and not far.all():
        words.append(
            f"{int(far.sum())} of {len(far)} lie beyond 5 sigma; without them "
            f"chi2/n is {np.mean(z[~far] ** 2):.2f} and the RMSE "
            f"{np.sqrt(np.mean(held.residual[~far] ** 2)):.3f} mag."
        )
    if whole.stars < 20:
        words.append(f"{whole.stars} stars are too few to judge intervals by.")
    return words
