"""The data of a report, read or computed once."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from pipelines.base.calibration import Bin, Calibration, by_bins, calibrate, even_edges
from pipelines.base.progress import doing
from pipelines.catalog.schema import read_stars
from pipelines.figures.held_out import held_out_figure
from pipelines.figures.registry import PlotOptions, draw
from pipelines.figures.style import styled
from pipelines.maps.answers import Answers
from pipelines.maps.opening import open_run
from pipelines.maps.provenance import provenance
from pipelines.run.folder import Run
from pipelines.run.held_out import HeldOut, read_held_out
from pipelines.run.status import read_metrics

# Dots per inch of pictures, and pixels of the page.
_DPI = 180
_PIXELS_PER_INCH = 125
# Bins of held-out stars.
_BINS = 6
# Fewest stars in a bin for a meaningful coverage.
_FEWEST = 25
# Beginnings of a fit's messages about solvers and results.
_STATUS = ("mean: ", "samples: ", "sight lines ", "residual: ", "bound ")


class Picture(NamedTuple):
    """A PNG as a data URI, ``width`` pixels wide on the page.

    ``titles`` are those of its panels. Narrow pictures are side by side.
    """

    source: str
    width: int
    titles: str


@styled
def picture(figure: Figure) -> Picture:
    """Return a figure as a reproducible picture."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI, bbox_inches="tight")
    content = base64.b64encode(stream.getvalue()).decode("ascii")
    titles = dict.fromkeys(axes.get_title() for axes in figure.axes)
    return Picture(
        f"data:image/png;base64,{content}",
        round(_PIXELS_PER_INCH * figure.get_figwidth()),
        "; ".join(filter(None, titles)).replace("$", "").replace("\n", " "),
    )


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """A run, its map (``source``), and its held-out stars.

    ``nside`` is the resolution of sky maps; ``None`` for the map's default.
    """

    run: Run
    source: Answers
    nside: int | None = None
    records: list[dict[str, Any]]
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

    @cached_property
    def binned(self) -> dict[str, list[Bin]]:
        """Calibrations by bins of what errors of held-out stars may depend on."""
        stars, z = self.held_out, self.z
        assert stars is not None
        assert z is not None
        number = min(_BINS, max(1, len(z) // _FEWEST))
        return {
            name: by_bins(value, even_edges(value, number), stars.residual, z)
            for name, value in stars.quantities().items()
        }

    def held_out_figure(self) -> Picture:
        """Draw the held-out stars."""
        shown: Any = (self.held_out, self.z, self.judged, self.binned)
        return picture(held_out_figure(*shown))

    def figure(self, kind: str) -> Picture:
        """Draw a figure as `dustmap plot`."""
        doing(f"the figure {kind}")
        return picture(draw(self.source, kind, PlotOptions(nside=self.nside)))

    @property
    def messages(self) -> list[str]:
        """Messages of the fit, and notes of its plan."""
        return [*self.run.summary.get("messages", ()), *self.run.plan.notes]

    @property
    def doubts(self) -> list[str]:
        """Messages of a converged fit that are warnings."""
        run = self.run
        if not run.summary["converged"]:
            return []
        said = run.summary.get("messages", ())
        return [line for line in said if not line.startswith(_STATUS)]

    @property
    def sides(self) -> list[float]:
        """Sides of the box [pc]."""
        grid = self.run.plan.grid
        return [b - a for a, b in zip(grid.lower, grid.upper, strict=True)]

    @property
    def octaves(self) -> list[str]:
        """Factors on the prior's power at octaves below."""
        return [f"{math.exp(each):.2g}" for each in self.run.plan.bend]

    @property
    def spread_of_pairs(self) -> dict[str, float]:
        """Relative scatter of lengthscale and variance over the pairs of samples."""
        pairs = self.run.summary.get("pairs", ())
        drawn = {
            "lengthscale": [np.log(pair["lengthscale"]).mean() for pair in pairs],
            "variance": [2 * math.log(pair["std"]) for pair in pairs],
        }
        return {n: float(np.std(x, ddof=1)) for n, x in drawn.items() if len(x) > 1}

    @property
    def spread_of_octaves(self) -> list[float]:
        """Relative scatter of the power at every octave over the pairs of samples."""
        pairs = self.run.summary.get("pairs", ())
        if len(pairs) < 2:
            return []
        return np.log([pair["octaves"] for pair in pairs]).std(axis=0, ddof=1).tolist()

    @property
    def stages(self) -> dict[str, list[dict[str, Any]]]:
        """Timed records by part of the fit."""
        found: dict[str, list[dict[str, Any]]] = {}
        for record in self.records:
            if "seconds" in record:
                # Drop the numbers of the samples.
                part = re.sub(r" \d+-\d+$", "", record["stage"])
                found.setdefault(part, []).append(record)
        return found

    @property
    def everything(self) -> str:
        """All that is recorded, as JSON."""
        recorded = {"summary": self.run.summary, "provenance": self.run.provenance}
        return json.dumps(recorded, indent=1)


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
