#!/usr/bin/env python
"""Holds the demo's map against the truth it was simulated from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import read_table
from pipelines.formats.zarr import read_zarr
from pipelines.maps.cube import Cube
from pipelines.maps.truth import truth_density, truth_extinction

# Half-widths of the central 68% and 95% of a Gaussian in standard deviations.
INTERVALS = {"68": 0.9945, "95": 1.9600}


def main() -> None:
    """Print error, correlation and coverage of extinction and density."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what scripts/demo made")
    parser.add_argument("--seconds", type=float, help="wall-clock time of the job")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    truth = read_zarr(folder / "truth.zarr")
    cube = read_zarr(folder / "map.zarr")
    run = json.loads((folder / "run" / "run.json").read_text())
    lines = [
        *extinction_lines(folder, truth),
        *density_lines(cube, truth),
        f"converged: {run['summary']['converged']}",
    ]
    if arguments.seconds is not None:
        peak = run["summary"]["peak_memory_bytes"] / 2**30
        lines.append(f"{arguments.seconds:.0f} s in all, {peak:.2f} GiB at the peak")
    lines.append(
        f"files: {folder}/report.html figures/*.png map.zarr map.fits map.healpix.fits "
        "run/"
    )
    print("\n".join(["", "== the map against the truth", *lines]))


def extinction_lines(folder: Path, truth: Cube) -> list[str]:
    """Held-out stars: predicted against true extinction and density at their place."""
    held_out, _, _ = read_table(folder / "run" / "held_out.parquet")
    true = truth_extinction(truth, held_out["l"], held_out["b"], held_out["distance"])
    directions = unit_vectors(held_out["l"], held_out["b"])
    places = directions * held_out["distance"][:, None]
    density = truth_density(truth, places)
    known = held_out["inside"] & np.isfinite(true) & np.isfinite(density)
    mean, std = held_out["extinction_mean"][known], held_out["extinction_std"][known]
    error = mean - true[known]
    rmse, typical = np.sqrt(np.mean(error**2)), np.median(np.abs(error))
    return [
        f"held-out extinction, {known.sum()} stars: RMSE {rmse:.4f} mag, median error "
        f"{typical:.4f} mag (truth scatters by {true[known].std():.3f} mag); "
        f"{coverage(error, std)}",
        "density at these stars: "
        + comparison(
            held_out["density_mean"][known],
            held_out["density_std"][known],
            density[known],
        ),
    ]


def density_lines(cube: Cube, truth: Cube) -> list[str]:
    """The cube where stars look through, against the truth at its grid points."""
    seen = cube.arrays["support"] > 0
    z, y, x = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
    true = truth_density(truth, np.stack([x[seen], y[seen], z[seen]], axis=1))
    known = np.isfinite(true)
    mean, std = (cube.arrays[name][seen][known] for name in ("mean", "std"))
    return [
        f"density on {known.sum()} grid points with sight lines: "
        + comparison(mean, std, true[known])
    ]


def comparison(mean: np.ndarray, std: np.ndarray, true: np.ndarray) -> str:
    """Correlation and coverage in words."""
    correlation = np.corrcoef(mean, true)[0, 1]
    return f"correlation {correlation:.3f}; {coverage(mean - true, std)}"


def coverage(error: np.ndarray, std: np.ndarray) -> str:
    """What fraction of the truth the intervals hold."""
    held = [
        f"{name}% intervals hold {np.mean(np.abs(error) < width * std):.3f}"
        for name, width in INTERVALS.items()
    ]
    return ", ".join(held)


if __name__ == "__main__":
    main()
