"""What a run records of its fit: settings, solvers, and held-out stars."""

from __future__ import annotations

import base64
import io
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipelines.base.calibration import Bin, Calibration, by_bins, calibrate, even_edges
from pipelines.figures.held_out import held_out_figure
from pipelines.figures.style import styled
from pipelines.run.held_out import HeldOut, read_held_out
from pipelines.run.status import read_metrics
from pipelines.run.verdict import Verdict, verdict
from pipelines.saving.workspace import read_json

# Dots per inch of the picture of held-out stars.
_DPI = 180
# Bins of held-out stars.
_BINS = 6
# Fewest stars in a bin for a meaningful coverage.
_FEWEST = 25
# Correlations of the prior, by the names of the configuration.
_KERNELS = {
    "matern12": "Matérn-1/2",
    "matern32": "Matérn-3/2",
    "matern52": "Matérn-5/2",
    "squared-exponential": "squared exponential",
}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run beside its map: parts of ``run.json``, ``metrics`` and held-out stars.

    ``exact_distances`` is true if the stars have no distance errors, ``shared`` if
    neighbours share a residual.
    """

    path: Path
    plan: dict[str, Any]
    summary: dict[str, Any]
    provenance: dict[str, Any]
    metrics: list[dict[str, Any]]
    exact_distances: bool
    shared: bool
    held_out: HeldOut | None = None

    @property
    def verdict(self) -> Verdict:
        """The grade of the map, its reason, and advice."""
        return verdict(self.summary["converged"], self.summary.get("held_out", {}))

    @property
    def is_lognormal(self) -> bool:
        """True if the density is lognormal."""
        return self.plan["density"] == "lognormal"

    @cached_property
    def z(self) -> np.ndarray | None:
        """z-scores of the held-out stars, ``None`` without uncertainties."""
        if self.held_out is None or not self.held_out.has_uncertainty:
            return None
        return self.held_out.z_scores(positive=self.is_lognormal)

    @cached_property
    def judged(self) -> Calibration | None:
        """Errors of the held-out stars, and coverage if z-scores are known."""
        if self.held_out is None:
            return None
        residual = self.held_out.residual
        if self.z is not None:
            return calibrate(residual, self.z)
        errors = calibrate(residual, np.zeros(len(residual)), levels=())
        return replace(errors, z_mean=math.nan, z_std=math.nan, chi2=math.nan)

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

    @styled
    def picture(self) -> str:
        """Draw the held-out stars, as a data URI."""
        shown: Any = (self.held_out, self.z, self.judged, self.binned)
        stream = io.BytesIO()
        held_out_figure(*shown).savefig(stream, format="png", dpi=_DPI)
        content = base64.b64encode(stream.getvalue()).decode("ascii")
        return f"data:image/png;base64,{content}"

    @property
    def warnings(self) -> list[str]:
        """Messages of a converged fit that remain of concern."""
        return self.summary.get("warnings", []) if self.summary["converged"] else []

    @property
    def messages(self) -> list[str]:
        """All other messages of the fit, and notes of its plan."""
        said = [*self.summary.get("messages", ()), *self.plan["notes"]]
        return [line for line in said if line not in self.warnings]

    @property
    def grids(self) -> list[dict[str, Any]]:
        """The nested grids, the coarsest first, with their ``ends`` by axis [pc]."""
        grids = [torus["grid"] for torus in self.plan["tori"]]
        for grid in grids:
            axes = zip(grid["origin"], grid["shape"], grid["spacing"], strict=True)
            grid["ends"] = {
                axis: (first, first + (points - 1) * step)
                for axis, (first, points, step) in zip("xyz", axes, strict=True)
            }
        return grids

    @property
    def kernel(self) -> str:
        """The prior's correlation."""
        return _KERNELS[self.plan["kernel"]]

    @property
    def octaves(self) -> list[str]:
        """Factors on the prior's power at octaves below."""
        return [f"{math.exp(each):.2g}" for each in self.plan["bend"]]

    @property
    def spread_of_pairs(self) -> dict[str, float]:
        """Relative scatter of lengthscale and variance over the pairs of samples."""
        pairs = self.summary.get("pairs", ())
        drawn = {
            "lengthscale": [np.log(pair["lengthscale"]).mean() for pair in pairs],
            "variance": [2 * math.log(pair["std"]) for pair in pairs],
        }
        return {n: float(np.std(x, ddof=1)) for n, x in drawn.items() if len(x) > 1}

    @property
    def spread_of_octaves(self) -> list[float]:
        """Relative scatter of the power at every octave over the pairs of samples."""
        pairs = self.summary.get("pairs", ())
        if len(pairs) < 2:
            return []
        return np.log([pair["octaves"] for pair in pairs]).std(axis=0, ddof=1).tolist()

    @property
    def stages(self) -> dict[str, list[dict[str, Any]]]:
        """Records by part of the fit."""
        parts: dict[str, list[dict[str, Any]]] = {}
        for record in self.metrics:
            parts.setdefault(record["stage"], []).append(record)
        return parts

    @property
    def configuration(self) -> str:
        """The configuration as TOML."""
        return (self.path / "config.toml").read_text(encoding="utf-8")

    @property
    def everything(self) -> str:
        """All that is recorded, as JSON."""
        recorded = {"summary": self.summary, "provenance": self.provenance}
        return json.dumps(recorded, indent=1)


def read_record(path: Path) -> RunRecord:
    """Read the records of a finished run, whose folder has been checked."""
    stars = pq.read_schema(path / "stars.parquet").names
    return RunRecord(
        path=path,
        **{n: x for n, x in read_json(path / "run.json").items() if n != "choices"},
        metrics=read_metrics(path / "metrics.jsonl"),
        exact_distances="distance_error" not in stars,
        shared=(path / "residual.safetensors").is_file(),
        held_out=read_held_out(path),
    )
