"""How well held-out stars are predicted."""

from __future__ import annotations

import numpy as np

from pipelines.base.calibration import Bin, Calibration, by_bins, even_edges
from pipelines.figures import held_out as drawing
from pipelines.report.blocks import Block, Section, Table, Text, facts, picture
from pipelines.report.data import ReportData
from pipelines.report.numbers import count, percent, significant
from pipelines.run.baseline import NAME, in_words
from pipelines.run.held_out import HeldOut

_BINS = 6
# Stars in a bin of which a coverage still says something.
_FEWEST = 25


def validation(data: ReportData) -> Section:
    """Errors, z-scores and coverage of the held-out stars, also by bins."""
    stars, judged = data.held_out, data.judged
    if stars is None or judged is None:
        blocks: list[Block] = [Text((data.unjudged,))]
    else:
        blocks = [Text(_method(data)), _errors(judged), *_without_a_map(data)]
        if data.z is None:
            blocks.append(_scatter(stars))
        else:
            blocks += [_coverage(judged), _scatter(stars)]
            blocks += _calibration(judged, data.z)
            blocks += _binned(stars, data.z)
    title = "Held-out stars"
    return Section(key="held-out", title=title, blocks=tuple(blocks), folded=True)


def _method(data: ReportData) -> tuple[str, ...]:
    kind = "normal"
    if data.run.plan.is_lognormal:
        kind = "the distribution between the posterior's five quantiles"
    return (
        "These stars took no part in the fit. The map predicts the extinction of each "
        "from its position; what was measured differs from that by the map's error and "
        "the measurement's. The latter is the catalogue's error, the common noise, and "
        "what an error of the distance makes of the dust at the star.",
        f"The prediction is taken as {kind}, and the measurement's error as normal. If "
        "both are as stated, z-scores are standard normal and intervals hold what they "
        "say. Errors of coverages are binomial, for independent stars: stars behind "
        "one cloud are not, so that they are the least that is possible.",
    )


def _errors(judged: Calibration) -> Table:
    rows = [
        ("stars", count(judged.stars)),
        ("root mean square", f"{significant(judged.rmse)} mag"),
        (
            "robust scatter (1.4826 × median absolute deviation)",
            f"{significant(judged.scatter)} mag",
        ),
        ("mean", f"{significant(judged.bias)} mag"),
    ]
    if judged.coverage:
        rows += [
            ("mean of z", significant(judged.z_mean, 2)),
            ("standard deviation of z", significant(judged.z_std)),
            ("mean of z² (reduced χ²)", significant(judged.chi2)),
        ]
    return facts("Measured minus predicted extinction", rows)


def _without_a_map(data: ReportData) -> list[Block]:
    """What neighbouring stars alone predict of the same stars."""
    stars = data.held_out
    if stars is None or stars.baseline is None:
        return []
    score = stars.baseline_score()
    rows = [
        ("this map", f"{significant(score['rmse'])} mag"),
        (f"no map: {NAME}", f"{significant(score['rmse_kriging'])} mag"),
    ]
    return [
        facts("Root mean square of measured minus predicted", rows),
        Text((f"{in_words(score)}.",)),
    ]


def _scatter(stars: HeldOut) -> Block:
    figure = drawing.alone(lambda axes: drawing.observed(axes, stars), height=4.2)
    return picture(
        figure,
        alt=f"Measured against predicted extinction of {len(stars)} held-out stars "
        "with the line of equality",
        caption="Measured against predicted extinction; bars are the measurement's "
        "standard errors.",
    )


def _coverage(judged: Calibration) -> Table:
    rows = []
    for c in judged.coverage:
        deviation = f"{(c.held - c.level) / c.error:+.1f} σ"
        deviation = deviation.replace("-", "\N{MINUS SIGN}")
        rows.append((f"{c.level:.0%}", percent(c.held, c.error), deviation))
    return Table(
        caption="Stars inside central intervals",
        header=("stated", "held", "deviation"),
        rows=tuple(rows),
    )


def _calibration(judged: Calibration, z: np.ndarray) -> list[Block]:
    held = ", ".join(f"{percent(c.held)} in {c.level:.0%}" for c in judged.coverage)
    return [
        picture(
            drawing.alone(lambda axes: drawing.coverage(axes, judged)),
            alt=f"Stars inside intervals against the stated probability: {held}",
            caption="Stars inside central intervals against what is stated.",
            vector=True,
        ),
        picture(
            drawing.alone(lambda axes: drawing.z_scores(axes, z)),
            alt="Histogram of z-scores beside a standard normal; mean "
            f"{significant(judged.z_mean, 2)}, standard deviation "
            f"{significant(judged.z_std)}",
            caption="z-scores of the held-out stars and, as a line, a standard normal.",
            vector=True,
        ),
    ]


def _binned(stars: HeldOut, z: np.ndarray) -> list[Block]:
    """Tables and figures by distance and by predicted extinction.

    Not by the measured one: noise alone would bias the bins.
    """
    tables: list[Block] = []
    pictures: list[Block] = []
    number = min(_BINS, max(1, len(z) // _FEWEST))
    for name, value, unit in (
        ("distance", stars.distance, "pc"),
        ("predicted extinction", stars.predicted["mean"], "mag"),
    ):
        found = by_bins(value, even_edges(value, number), stars.residual, z)
        tables.append(_bin_table(found, name, unit))
        pictures.append(
            picture(
                drawing.by_bins_figure(found, f"{name} [{unit}]"),
                alt=f"Coverage, bias and error of held-out stars against {name}; the "
                "tables before it have the numbers",
                caption=f"By {name}: above, stars inside the intervals and, as lines, "
                "what is stated; below, errors.",
                vector=True,
            )
        )
    return tables + pictures


def _bin_table(bins: list[Bin], name: str, unit: str) -> Table:
    levels = [f"in {c.level:.0%}" for c in bins[0].calibration.coverage]
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
        for one in bins
    ]
    return Table(caption=f"By {name}", header=(*header, *levels), rows=tuple(rows))
