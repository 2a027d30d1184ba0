#!/usr/bin/env python
"""Holds a map from real stars against the held-out ones, beside their neighbours."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pipelines.catalog.schema import read_stars, read_table
from pipelines.formats.zarr import read_zarr
from pipelines.run.baseline import NAME


def main() -> None:
    """Print errors on held-out stars by kind, without a map, and the cube."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what scripts/real_map.sh made")
    folder: Path = parser.parse_args().folder
    held_out, _, _ = read_table(folder / "run" / "held_out.parquet")
    held_out = {name: column[held_out["inside"]] for name, column in held_out.items()}
    lines = ["", "== extinction of the held-out stars (noise included) [mag]"]
    mean = held_out["extinction_mean"]
    # As the reference survey measures them.
    measured = held_out["extinction"]
    for kind, chosen in by_kind(folder, held_out).items():
        lines.append(
            f"{kind}: {chosen.sum()}, scatter {measured[chosen].std():.3f}; "
            f"map {errors((mean - measured)[chosen])}"
        )
    lines.append(f"no map, {NAME}: {errors(held_out['kriging'] - measured)}")
    print("\n".join([*lines, *cube_lines(folder)]))


def by_kind(folder: Path, held_out: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Which of the held-out stars are clusters, and which are single stars."""
    clusters = read_stars(folder / "clusters.parquet").source_id
    assert clusters is not None
    is_cluster = np.isin(held_out["source_id"], clusters)
    return {
        "all": np.ones_like(is_cluster),
        "open clusters": is_cluster,
        "stars in fields": ~is_cluster,
    }


def errors(difference: np.ndarray) -> str:
    """RMSE and median absolute error in words."""
    rmse = float(np.sqrt(np.mean(difference**2)))
    return f"RMSE {rmse:.3f}, median |error| {np.median(np.abs(difference)):.3f}"


def cube_lines(folder: Path) -> list[str]:
    """What part of the map the stars speak for, and how much of it is negative."""
    cube = read_zarr(folder / "run" / "map.zarr")
    seen = cube.arrays["support"] > 0
    mean = cube.arrays["mean"][seen]
    return [
        f"cube: {seen.mean():.1%} of the cells have a sight line; "
        f"{np.mean(mean < 0):.1%} of these have a negative mean"
    ]


if __name__ == "__main__":
    main()
