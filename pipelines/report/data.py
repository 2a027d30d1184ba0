"""The data of a report, read or computed once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.base.calibration import Calibration, calibrate
from pipelines.catalog.schema import read_stars
from pipelines.maps.answers import Answers
from pipelines.maps.opening import open_run
from pipelines.maps.provenance import provenance
from pipelines.run.folder import Run
from pipelines.run.held_out import HeldOut, read_held_out
from pipelines.storage.metrics import Record, read_metrics

UNJUDGED = (
    "Nothing shows how well the map predicts: none of its stars were held out; raise "
    "data.holdout to have them."
)


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """A run, its map (``source``), and its held-out stars.

    ``nside`` is the resolution of sky maps; ``None`` for the map's default.
    """

    run: Run
    source: Answers
    nside: int | None = None
    records: list[Record]
    origin: dict[str, Any]
    held_out: HeldOut | None = None

    @cached_property
    def exact_distances(self) -> bool:
        """True if the stars have no distance errors."""
        return read_stars(self.run.path / "stars.parquet").distance_error is None

    @cached_property
    def z(self) -> np.ndarray | None:
        """z-scores of the held-out stars, ``None`` without uncertainties."""
        if self.held_out is None or not self.held_out.has_uncertainty:
            return None
        return self.held_out.z_scores(positive=self.run.plan.is_lognormal)

    @cached_property
    def judged(self) -> Calibration | None:
        """Errors of the held-out stars, and coverage if z-scores are known."""
        if self.held_out is None:
            return None
        residual = self.held_out.residual
        if self.z is not None:
            return calibrate(residual, self.z)
        found = calibrate(residual, np.zeros(len(residual)), levels=())
        return replace(found, z_mean=math.nan, z_std=math.nan, chi2=math.nan)


def gather(path: Path, *, nside: int | None = None) -> ReportData:
    """Read a run; exports in its folder are used, the rest is computed.

    Raises `InputError` if the run is incomplete or was altered.
    """
    source = open_run(path)
    run = source.fit
    assert run is not None
    return ReportData(
        run=run,
        source=source,
        nside=nside,
        records=read_metrics(run.path / "metrics.jsonl"),
        origin=provenance(run),
        held_out=read_held_out(run.path),
    )
