"""The first screen: whether the map can be used, what it shows, how good it is."""

from __future__ import annotations

from pipelines.figures import face_on, sky
from pipelines.report.blocks import Block, Notice, Section, Table, picture
from pipelines.report.data import ReportData
from pipelines.report.numbers import percent, plain, significant
from pipelines.report.summary import warnings_of
from pipelines.run.baseline import NAME
from pipelines.run.verdict import Grade


def overview(data: ReportData) -> Section:
    """The verdict with all warnings, the face-on and the sky map, and three figures."""
    judged, warnings = data.run.verdict, warnings_of(data)
    blocks: list[Block] = [
        Notice(
            title=str(judged),
            lines=tuple(warnings),
            loud=bool(warnings) or judged.grade != Grade.USABLE,
        ),
        *_figures(data),
    ]
    reach = plain(float(data.sky.distances[-1]))
    blocks += [
        picture(
            face_on(data.cube, data.columns["z"]),
            alt="Map of the extinction through the box seen from the north Galactic "
            "pole, the Sun at the origin",
            caption="Face-on: mean extinction through the whole box along z, and its "
            "standard deviation.",
        ),
        picture(
            sky(data.sky),
            alt="Extinction over the whole sky in Galactic coordinates out to several "
            f"distances, the last {reach} pc",
            caption="The sky: extinction from the Sun to a distance, Galactic "
            "coordinates, l = 0° in the middle and growing to the left.",
        ),
    ]
    return Section(key="overview", title="At a glance", blocks=tuple(blocks))


def _figures(data: ReportData) -> list[Block]:
    """Error and coverages of held-out stars, beside predictions without a map."""
    score = data.run.summary.get("held_out", {})
    if not score:
        return []
    beside = [score["rmse_kriging"]] if "rmse_kriging" in score else []
    errors = (f"{significant(error)} mag" for error in (score["rmse"], *beside))
    rows = [("error of held-out extinctions (RMSE)", *errors)]
    rows += [
        (f"stars in {level}% intervals", percent(score[key]), *("" for _ in beside))
        for level, key in ((68, "coverage_68"), (95, "coverage_95"))
        if key in score
    ]
    header = ("", "this map", *(f"no map: {NAME}" for _ in beside))
    caption = f"{score['stars']:.0f} held-out stars"
    return [Table(caption=caption, header=header, rows=tuple(rows))]
