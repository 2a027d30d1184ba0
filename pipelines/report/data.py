"""All that a report is made from, read or computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.base.calibration import Calibration, calibrate
from pipelines.base.errors import InputError
from pipelines.figures.integrals import near_the_sun
from pipelines.figures.regridding import shared_height
from pipelines.figures.sources import RunSource, open_source
from pipelines.maps.columns import Columns
from pipelines.maps.cube import Cube, LineOfSight, SkyMaps
from pipelines.products import provenance
from pipelines.run.folder import Run, read_run
from pipelines.run.held_out import FILE, HeldOut, read_held_out
from pipelines.storage.metrics import Record, read_metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Another map, and the run's own columns through what both cover."""

    name: str
    cube: Cube
    columns: Columns | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """A run, its products, and its held-out stars.

    ``columns`` are extinctions through the box by the axis they are integrated along.
    ``z`` (n,) are the z-scores of ``held_out`` and ``judged`` its figures, ``None``
    where there is nothing to judge by: then ``unjudged`` says why.
    """

    run: Run
    cube: Cube
    sky: SkyMaps
    columns: dict[str, Columns]
    lines: list[LineOfSight]
    records: list[Record]
    origin: dict[str, Any]
    held_out: HeldOut | None = None
    z: np.ndarray | None = None
    judged: Calibration | None = None
    unjudged: str = ""
    beside: Beside | None = None

    @property
    def band(self) -> str:
        """Which extinction it is."""
        return str(self.origin.get("extinction_band") or "as in the catalogue")


def gather(
    path: Path, *, nside: int | None = None, other: Path | None = None
) -> ReportData:
    """Read a run; exports that lie in its folder are used, the rest is computed.

    ``other`` is a map to set beside it: a run or an export.

    Raises
    ------
    InputError
        If a run or an export is incomplete or was altered.
    """
    source = RunSource(path, read_run(path))
    run, cube = source.run, source.cube()
    ends = {"y": near_the_sun(cube, "y"), "z": None}
    drawn = {along: source.columns(along, between) for along, between in ends.items()}
    return judge(
        ReportData(
            run=run,
            cube=cube,
            sky=source.skymaps(None, nside),
            columns={along: one for along, one in drawn.items() if one is not None},
            lines=source.lines(None),
            records=read_metrics(run.path / "metrics.jsonl"),
            origin=provenance(run),
            held_out=read_held_out(run.path),
            beside=None if other is None else _beside(source, other),
        )
    )


def _beside(source: RunSource, path: Path) -> Beside:
    other = open_source(path).cube()
    try:
        heights = shared_height(source.cube(), other)
    except ValueError as error:
        raise InputError(f"{path} cannot stand beside the run: {error}") from error
    return Beside(name=path.name, cube=other, columns=source.columns("z", heights))


def judge(data: ReportData) -> ReportData:
    """The same with the assessment by its held-out stars."""
    run, stars = data.run, data.held_out
    if stars is None:
        return replace(data, unjudged=_why_not(run))
    if not stars.has_uncertainty:
        return replace(data, judged=_by_residuals(stars))
    z = stars.z_scores(positive=run.plan.density == "lognormal")
    return replace(data, z=z, judged=calibrate(stars.residual, z))


def _by_residuals(stars: HeldOut) -> Calibration:
    """The figures of a map that states no uncertainty: no level, no z."""
    none = np.full(len(stars), 0.0)
    found = calibrate(stars.residual, none, levels=())
    nan = float("nan")
    return replace(found, z_mean=nan, z_std=nan, chi2=nan)


def _why_not(run: Run) -> str:
    if not (run.path / FILE).is_file():
        why = "no star was held out (data.holdout is 0)"
    elif not run.summary["counts"].get("held out"):
        why = "none of the held-out stars lies in the map"
    else:
        why = (
            "this run keeps no measured extinctions of its held-out stars, as runs of "
            "an earlier version do not: fit again to have them"
        )
    return f"Nothing tells how well the map predicts: {why}."
