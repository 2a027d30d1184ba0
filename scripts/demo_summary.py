#!/usr/bin/env python
"""Holds the demo's map against the truth it was simulated from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import read_table
from pipelines.cubes.cube import Cube, truth_extinction
from pipelines.formats.zarr import read_zarr

# Quantiles at the ends of the central intervals.
INTERVALS = {"68": ("p16", "p84"), "95": ("p2_5", "p97_5")}


def main() -> None:
    """Print error, correlation and coverage of extinction and density."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what scripts/demo made")
    parser.add_argument("--seconds", type=float, help="wall-clock time of the job")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    truth = read_zarr(folder / "truth.zarr")
    cube = read_zarr(folder / "run" / "map.zarr")
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
        f"files: {folder}/map.html figures/*.png run/ and in it map.zarr; "
        "map.fits, map.healpix.fits"
    )
    print("\n".join(["", "== the map against the truth", *lines]))


def extinction_lines(folder: Path, truth: Cube) -> list[str]:
    """Held-out stars: predicted against true extinction and density at their place."""
    held_out, _, _ = read_table(folder / "run" / "held_out.parquet")
    true = truth_extinction(truth, held_out["l"], held_out["b"], held_out["distance"])
    directions = unit_vectors(held_out["l"], held_out["b"])
    places = directions * held_out["distance"][:, None]
    density = truth.sample("density", places)
    known = held_out["inside"] & np.isfinite(true) & np.isfinite(density)

    def said(kind: str) -> dict[str, np.ndarray]:
        """Mean and quantiles of the stars whose truth is known."""
        ends = [end for pair in INTERVALS.values() for end in pair]
        return {name: held_out[f"{kind}_{name}"][known] for name in ("mean", *ends)}

    error = said("extinction")["mean"] - true[known]
    rmse, typical = np.sqrt(np.mean(error**2)), np.median(np.abs(error))
    return [
        f"held-out extinction, {known.sum()} stars: RMSE {rmse:.4f} mag, median error "
        f"{typical:.4f} mag (truth scatters by {true[known].std():.3f} mag); "
        f"{coverage(said('extinction'), true[known])}",
        f"density at these stars: {comparison(said('density'), density[known])}",
    ]


def density_lines(cube: Cube, truth: Cube) -> list[str]:
    """The cube where stars look through, against the truth at its grid points."""
    seen = cube.arrays["support"] > 0
    z, y, x = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
    true = truth.sample("density", np.stack([x[seen], y[seen], z[seen]], axis=1))
    known = np.isfinite(true)
    said = {name: values[seen][known] for name, values in cube.arrays.items()}
    return [
        f"density on {known.sum()} grid points with sight lines: "
        + comparison(said, true[known])
    ]


def comparison(said: dict[str, np.ndarray], true: np.ndarray) -> str:
    """Correlation and coverage in words."""
    correlation = np.corrcoef(said["mean"], true)[0, 1]
    return f"correlation {correlation:.3f}; {coverage(said, true)}"


def coverage(said: dict[str, np.ndarray], true: np.ndarray) -> str:
    """What fraction of the truth the intervals between stored quantiles hold."""
    held = [
        f"{name}% intervals hold "
        f"{np.mean((said[low] <= true) & (true <= said[high])):.3f}"
        for name, (low, high) in INTERVALS.items()
    ]
    return ", ".join(held)


if __name__ == "__main__":
    main()
