"""A map against stars it was not fitted to: residuals, z-scores, coverage."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from pipelines.base.calibration import Bin, Calibration, by_bins, calibrate, even_edges
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.measurement import Row
from pipelines.catalog.schema import Stars
from pipelines.compare.comparison import Comparison, rows_of
from pipelines.compare.unseen import not_fitted
from pipelines.figures import held_out as drawing
from pipelines.figures.panels import panels
from pipelines.products.integrated import last_star
from pipelines.run.assessment import observation_noise
from pipelines.run.folder import Run
from pipelines.run.held_out import HeldOut, read_held_out
from pipelines.run.predict import predict_columns

_DISTANCE_BINS = 8
_LATITUDES = (-90.0, -30.0, -5.0, 5.0, 30.0, 90.0)
# Fewer stars than this say nothing of a tail.
_FEW = 20
# Standard deviations that a star is named beyond.
_FAR = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedStars:
    """Stars with their z-scores, and which lie beyond the last star of their line.

    ``residual`` is observed minus predicted mean [mag]; all have shape ``(n,)``.
    """

    stars: HeldOut
    residual: np.ndarray
    z: np.ndarray
    beyond: np.ndarray


def compare_stars(run: Run, stars: Stars, *, name: str = "stars") -> Comparison:
    """Hold the map against measured extinctions of stars it was not fitted to.

    Stars that were fitted (the same direction and distance) and those outside the box
    are counted and not judged. The error of a star is its own, the noise that the fit
    found common to all, and what an uncertain distance adds where there is dust; z is
    that of the posterior predictive, log-normal for a positive density.

    Raises
    ------
    InputError
        If the table has no extinctions or no star is left.
    """
    if stars.extinction is None:
        raise InputError(f"{name} has positions only: extinctions are needed")
    unseen, counts = not_fitted(run, stars)
    predicted = predict_columns(run.plan, run.posterior, unseen)
    inside = predicted.pop("inside")
    noise = observation_noise(unseen, run.plan, predicted["density_mean"])
    usable = inside & (noise > 0)
    counts["outside the box"] = int((~inside).sum())
    counts["without any error"] = int((inside & ~usable).sum())
    columns = {name: column[usable] for name, column in predicted.items()}
    held = HeldOut.of(unseen.select(usable), run.plan, columns)
    return _comparison(_judge(run, held, counts, name), counts, name)


def compare_held_out(run: Run) -> Comparison:
    """`compare_stars` for the stars held out of the fit, as the run has them.

    Raises
    ------
    InputError
        If it kept none, or an earlier version kept their predictions only.
    """
    held = read_held_out(run.path)
    if held is None:
        raise InputError(
            f"{run.path} does not hold what was observed of held-out stars: name "
            "the table that was fitted, in which they are found again, or other stars"
        )
    counts = Counter({"held out": len(held)})
    return _comparison(_judge(run, held, counts, "held-out"), counts, "held-out stars")


def _judge(run: Run, held: HeldOut, counts: Counter[str], name: str) -> ValidatedStars:
    if not len(held):
        told = ", ".join(f"{what}: {n}" for what, n in counts.items())
        raise InputError(f"{name}: no star is left to judge the map by ({told})")
    if not held.has_uncertainty:
        raise InputError(
            f"{run.path} has no posterior samples, so that its predictions have no "
            "error to judge: fit it with inference.samples of 2 or more"
        )
    last = last_star(run, unit_vectors(held.l, held.b))
    judged = ValidatedStars(
        stars=held,
        residual=held.residual,
        z=held.z_scores(positive=run.plan.density == "lognormal"),
        beyond=held.distance > last,
    )
    counts["judged"] = len(held)
    beyond = int(judged.beyond.sum())
    counts["of these beyond the last fitted star of their line"] = beyond
    return judged


def _comparison(judged: ValidatedStars, counts: Counter[str], name: str) -> Comparison:
    whole = calibrate(judged.residual, judged.z)
    edges = even_edges(judged.stars.distance, _DISTANCE_BINS)
    bins = by_bins(judged.stars.distance, edges, judged.residual, judged.z)
    by_distance = [
        {"from [pc]": each.low, "to [pc]": each.high, **_figures(each.calibration)}
        for each in bins
    ]
    regions = _by_region(judged)
    return Comparison(
        kind="stars",
        numbers={
            "counts": dict(counts),
            "scatter_of_observed": float(judged.stars.observed.std()),
            "all": asdict(whole),
            "by_distance": [asdict(each) for each in bins],
            "by_region": regions,
        },
        tables={
            "summary": _summary(judged, whole, name),
            "by_distance": by_distance,
            "by_region": regions,
            "stars": _per_star(judged),
        },
        shown=("summary", "by_distance", "by_region"),
        words=_words(judged, counts, whole),
        figures={"stars": _figure(judged, whole, bins)},
    )


def _figure(judged: ValidatedStars, whole: Calibration, bins: list[Bin]) -> Figure:
    """Predicted and observed, z-scores, coverage, and errors by distance."""
    figure, places = panels(2, 2)
    drawing.observed(places[0], judged.stars)
    drawing.z_scores(places[1], judged.z)
    drawing.coverage(places[2], whole)
    drawing.errors(places[3], bins, "distance [pc]")
    return figure


def _summary(judged: ValidatedStars, whole: Calibration, name: str) -> list[Row]:
    """All stars, and where some lie beyond the last star of their line both parts."""
    rows = [{"what": f"{name}: all judged", **_figures(whole)}]
    for what, chosen in (
        ("before the last fitted star", ~judged.beyond),
        ("beyond it", judged.beyond),
    ):
        if chosen.any() and judged.beyond.any():
            part = calibrate(judged.residual[chosen], judged.z[chosen])
            rows.append({"what": what, **_figures(part)})
    return rows


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
    for each in found.coverage:
        row[f"in {each.level:.0%}"] = f"{each.held:.3f} ± {each.error:.3f}"
    return row


def _by_region(judged: ValidatedStars) -> list[Row]:
    """Galactic quadrants times bands of latitude; those without stars are left out."""
    quadrant = np.floor(judged.stars.l % 360 / 90).astype(int)
    rows = []
    for number in range(4):
        for low, high in pairwise(_LATITUDES):
            chosen = (judged.stars.b >= low) & (
                judged.stars.b < high if high < 90 else judged.stars.b <= high
            )
            chosen &= quadrant == number
            if chosen.any():
                found = calibrate(judged.residual[chosen], judged.z[chosen])
                place = f"l {90 * number} to {90 * (number + 1)}, b {low:g} to {high:g}"
                rows.append({"region [deg]": place, **_figures(found)})
    return rows


def _per_star(judged: ValidatedStars) -> list[Row]:
    stars = judged.stars
    columns = {"l": stars.l, "b": stars.b, "distance": stars.distance}
    columns |= {"extinction": stars.observed, "noise": stars.noise, **stars.predicted}
    return rows_of({**columns, "z": judged.z, "beyond_last_star": judged.beyond})


def _words(
    judged: ValidatedStars, counts: Counter[str], whole: Calibration
) -> tuple[str, ...]:
    told = "; ".join(f"{what}: {n}" for what, n in counts.items())
    words = [
        f"Stars: {told}. Only stars that the fit has not seen and that lie in the box "
        "are judged.",
        f"Measured extinctions, so that their noise is in every figure: they scatter "
        f"by {judged.stars.observed.std():.3f} mag, and by {whole.rmse:.3f} mag around "
        "the map. z-scores are of the map's error and the star's together.",
        "The errors given for coverage are binomial. Stars behind one cloud err "
        "together: the true errors are larger.",
    ]
    far = np.abs(judged.z) > _FAR
    if far.any() and not far.all():
        words.append(
            f"{int(far.sum())} of {len(far)} lie beyond {_FAR:g} sigma; without them "
            f"chi2/n is {np.mean(judged.z[~far] ** 2):.2f} and the RMSE "
            f"{np.sqrt(np.mean(judged.residual[~far] ** 2)):.3f} mag: bins with large "
            "values of either may hold one of them."
        )
    if whole.stars < _FEW:
        words.append(f"{whole.stars} stars are too few to judge intervals by.")
    return tuple(words)
