"""The validation of a map by held-out stars."""

from __future__ import annotations

import numpy as np

from pipelines.base.calibration import Calibration, by_bins, even_edges
from pipelines.figures import held_out as drawing
from pipelines.report.blocks import (
    Block,
    Table,
    count,
    percent,
    picture,
    significant,
)
from pipelines.report.data import UNJUDGED, ReportData
from pipelines.run.baseline import NAME, in_words
from pipelines.run.held_out import HeldOut

_BINS = 6
# Fewest stars in a bin for a meaningful coverage.
_FEWEST = 25


def validation(data: ReportData) -> list[Block]:
    """Write errors, z-scores and coverage of the held-out stars, also by bins."""
    stars, judged, z = data.held_out, data.judged, data.z
    if stars is None or judged is None:
        return [UNJUDGED]
    scatter = picture(
        drawing.alone(lambda axes: drawing.observed(axes, stars), height=4.2),
        f"Measured against predicted extinction of {len(stars)} held-out stars "
        "with the line of equality",
        "Measured against predicted extinction; bars are the measurement's "
        "standard errors.",
    )
    blocks = _errors(stars, judged, positive=data.run.plan.is_lognormal)
    if z is None:
        return [*blocks, scatter]
    coverage, *pictures = _coverage(judged, z)
    return [*blocks, coverage, scatter, *pictures, *_binned(stars, z)]


def _errors(stars: HeldOut, judged: Calibration, *, positive: bool) -> list[Block]:
    """Write the method, and errors beside those without a map."""
    kind = "the distribution between the posterior's five quantiles"
    robust = "robust scatter (1.4826 × median absolute deviation)"
    rows = [
        ("stars", count(judged.stars)),
        ("root mean square", f"{significant(judged.rmse)} mag"),
        (robust, f"{significant(judged.scatter)} mag"),
        ("mean", f"{significant(judged.bias)} mag"),
    ]
    if judged.coverage:
        rows += [
            ("mean of z", significant(judged.z_mean, 2)),
            ("standard deviation of z", significant(judged.z_std)),
            ("mean of z² (reduced χ²)", significant(judged.chi2)),
        ]
    blocks: list[Block] = [
        "These stars took no part in the fit. The map predicts the extinction of each "
        "from its position; what was measured differs from that by the map's error and "
        "the measurement's. The latter is the catalogue's error, the common noise, and "
        "what an error of the distance makes of the dust at the star.",
        f"The prediction is taken as {kind if positive else 'normal'}, and the "
        "measurement's error as normal. If "
        "both are as stated, z-scores are standard normal and intervals hold what they "
        "say. Errors of coverages are binomial, for independent stars: stars behind "
        "one cloud are not, so that they are the least that is possible.",
        Table("Measured minus predicted extinction", rows),
    ]
    if score := stars.baseline_score():
        beside = [
            ("this map", f"{significant(score['rmse'])} mag"),
            (f"no map: {NAME}", f"{significant(score['rmse_kriging'])} mag"),
        ]
        caption = "Root mean square of measured minus predicted"
        blocks += [Table(caption, beside), f"{in_words(score)}."]
    return blocks


def _coverage(judged: Calibration, z: np.ndarray) -> list[Block]:
    """Tabulate and draw stars inside central intervals, and draw their z-scores."""
    rows = []
    for c in judged.coverage:
        deviation = f"{(c.held - c.level) / c.error:+.1f} σ"
        deviation = deviation.replace("-", "\N{MINUS SIGN}")
        rows.append((f"{c.level:.0%}", percent(c.held, c.error), deviation))
    held = ", ".join(f"{percent(c.held)} in {c.level:.0%}" for c in judged.coverage)
    return [
        Table("Stars inside central intervals", rows, ("stated", "held", "deviation")),
        picture(
            drawing.alone(lambda axes: drawing.coverage(axes, judged)),
            f"Stars inside intervals against the stated probability: {held}",
            "Stars inside central intervals against what is stated.",
            vector=True,
        ),
        picture(
            drawing.alone(lambda axes: drawing.z_scores(axes, z)),
            "Histogram of z-scores beside a standard normal; mean "
            f"{significant(judged.z_mean, 2)}, standard deviation "
            f"{significant(judged.z_std)}",
            "z-scores of the held-out stars and, as a line, a standard normal.",
            vector=True,
        ),
    ]


def _binned(stars: HeldOut, z: np.ndarray) -> list[Block]:
    """Tabulate and draw errors and coverage by distance and predicted extinction.

    Bins of the measured extinction would be biased by noise alone.
    """
    tables: list[Block] = []
    pictures: list[Block] = []
    number = min(_BINS, max(1, len(z) // _FEWEST))
    for name, value, unit in (
        ("distance", stars.distance, "pc"),
        ("predicted extinction", stars.predicted["mean"], "mag"),
    ):
        found = by_bins(value, even_edges(value, number), stars.residual, z)
        levels = [f"in {c.level:.0%}" for c in found[0].calibration.coverage]
        header = (f"{name} [{unit}]", "stars", "mean [mag]", "RMSE [mag]", "std of z")
        rows = [
            (
                f"{significant(one.low)}–{significant(one.high)}",
                count(one.calibration.stars),
                significant(one.calibration.bias, 2),
                significant(one.calibration.rmse),
                significant(one.calibration.z_std),
                *(percent(c.held, c.error) for c in one.calibration.coverage),
            )
            for one in found
        ]
        tables.append(Table(f"By {name}", rows, (*header, *levels)))
        drawn = picture(
            drawing.by_bins_figure(found, f"{name} [{unit}]"),
            f"Coverage, bias and error of held-out stars against {name}; the "
            "tables before it have the numbers",
            f"By {name}: above, stars inside the intervals and, as lines, "
            "what is stated; below, errors.",
            vector=True,
        )
        pictures.append(drawn)
    return tables + pictures
