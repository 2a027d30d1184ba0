"""What a file of samples costs, and what is lost: sizes, times, errors.

    python scripts/bench/redraw.py RUN [--catalogue STARS]

For each tolerance: the size beside that of the run's tensors (float32, and as
float16), the time to write and to decode; then what a user would notice, over the box
of the map and the stars that were fitted: the error of ln ρ, of its posterior standard
deviation, of extinctions in units of the posterior's and of the stars' own errors, and
the coverage of the stars that were held out, if the catalogue is given.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from dustmap.posterior import Moments
from pipelines.catalog.schema import read_stars
from pipelines.model.observations import rays
from pipelines.redraw import open_samples, write_samples
from pipelines.redraw.cubes import density_cube
from pipelines.run.folder import Run, read_run
from pipelines.run.held_out import held_out_score
from pipelines.run.predict import predict_columns

TOLERANCES = (1e-3, 3e-3, 1e-2, 3e-2)
_STARS = 5000


def log_densities(run: Run) -> np.ndarray:
    """ln ρ (of a Gaussian density ρ itself) of every sample in the box."""
    model = run.posterior.model
    cubes = [density_cube(run.plan, model, eps) for eps in run.posterior.samples]
    stack = np.stack(cubes).astype(np.float64)
    return np.log(stack) if model.positive else stack


def extinctions(run: Run, ends: np.ndarray) -> Moments:
    """Posterior moments of the sight lines to these places."""
    return run.posterior.moments(rays(run.plan, torch.as_tensor(ends)))


def relative_rms(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> float:
    """Root of the mean square of ``(a − b) / scale``."""
    return float((((a - b) / scale) ** 2).mean().sqrt())


class Measured:
    """A run, and all that its files of samples are compared with."""

    def __init__(self, path: Path, catalogue: Path | None) -> None:
        self.run = read_run(path)
        stars = read_stars(path / "stars.parquet")
        every = np.linspace(0, len(stars) - 1, min(_STARS, len(stars))).astype(int)
        self.stars = stars.select(every)
        self.ends = self.stars.positions()
        self.before = extinctions(self.run, self.ends)
        self.fields = log_densities(self.run)
        self.held_out = None
        if catalogue is not None:
            names = pq.read_table(path / "held_out.parquet")["source_id"].to_numpy()
            every = read_stars(catalogue)
            assert every.source_id is not None
            self.held_out = every.select(np.isin(every.source_id, names))

    def coverage(self, run: Run) -> str:
        """RMSE and coverage of the stars that were held out."""
        if self.held_out is None:
            return "no catalogue given"
        columns = predict_columns(run.plan, run.posterior, self.held_out)
        score = held_out_score(columns, self.held_out, run.plan)
        return (
            f"RMSE {score['rmse']:.5f}, 68% {score['coverage_68']:.3f}, "
            f"95% {score['coverage_95']:.3f}"
        )

    def lines(self, tolerance: float, folder: Path) -> list[str]:
        """What a file of this tolerance costs and loses."""
        path = folder / f"{tolerance}.samples"
        begun = time.perf_counter()
        report = write_samples(self.run.path, path, tolerance=tolerance)
        written = time.perf_counter()
        found = open_samples(path)
        assert len(found.posterior.samples)
        decoded = time.perf_counter()
        off = log_densities(found.run) - self.fields
        fields = self.fields + off
        ratio = fields.std(axis=0, ddof=1) / self.fields.std(axis=0, ddof=1)
        after = extinctions(found.run, self.ends)
        errors = self.stars.extinction_error
        assert errors is not None
        each = (after.mean - self.before.mean) / torch.as_tensor(errors)
        moved = relative_rms(after.mean, self.before.mean, self.before.std)
        widths = after.std / self.before.std
        return [
            f"tolerance {tolerance:g}: {report.size / 1e6:.3f} MB, 1/"
            f"{report.before / report.size:.1f} of float32, 1/"
            f"{report.before / report.size / 2:.1f} of float16; written in "
            f"{written - begun:.1f} s, decoded in {decoded - written:.1f} s",
            f"  field off by {report.rms:.2g} (worst {report.worst:.2g}) of the "
            f"prior's std; in the box by {np.sqrt((off**2).mean()):.2g} rms, "
            f"{np.abs(off).max():.2g} at worst; its std over samples times "
            f"{np.median(ratio):.5f} ({ratio.min():.3f} to {ratio.max():.3f})",
            f"  extinctions moved by {moved:.2g} of the posterior's std, "
            f"{float(each.abs().max()):.2g} of the star's error at most; their std "
            f"times {float(widths.median()):.5f} ({float(widths.min()):.3f} to "
            f"{float(widths.max()):.3f}); held out: {self.coverage(found.run)}",
        ]


def main() -> None:
    """Measure a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--catalogue", type=Path)
    parser.add_argument("--tolerances", nargs="+", type=float, default=TOLERANCES)
    chosen = parser.parse_args()
    measured = Measured(chosen.run, chosen.catalogue)
    plan, samples = measured.run.plan, measured.run.posterior.samples
    print(
        f"{chosen.run}: grid {plan.grid.shape}, torus {plan.torus_shape}, "
        f"{samples.shape[0]} samples of {samples.shape[1]} numbers, {plan.density}, "
        f"{plan.kernel}; held out: {measured.coverage(measured.run)}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for tolerance in chosen.tolerances:
            for line in measured.lines(tolerance, Path(folder)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
