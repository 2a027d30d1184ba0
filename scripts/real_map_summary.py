#!/usr/bin/env python
"""Judges a map from several real surveys by held-out rows, beside their neighbours."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pipelines.base.quantiles import WIDTH_95
from pipelines.catalog.schema import read_table
from pipelines.formats.zarr import read_zarr
from pipelines.run.baseline import NAME


def main() -> None:
    """Print errors on held-out rows by survey, without a map, and the cube."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what scripts/real_map.sh made")
    folder: Path = parser.parse_args().folder
    held_out, _, _ = read_table(folder / "run" / "held_out.parquet")
    held_out = {name: column[held_out["inside"]] for name, column in held_out.items()}
    lines = ["", "== extinction of the held-out rows (noise included) [mag]"]
    # On the scale of the reference survey.
    measured, names = held_out["extinction"], held_out["survey"].astype(str)
    others = held_out["kriging"] - measured
    for name in ("all", *np.unique(names)):
        some = names == name if name != "all" else np.ones(len(names), dtype=bool)
        z = np.abs(held_out["z"][some])
        lines.append(
            f"{name}: {some.sum()}, scatter {measured[some].std():.3f}; map "
            f"{errors((held_out['extinction_mean'] - measured)[some])}; {NAME} "
            f"{errors(others[some])}; intervals hold {np.mean(z < 1):.1%} (68%) and "
            f"{np.mean(z < WIDTH_95):.1%} (95%)"
        )
    print("\n".join([*lines, *cube_lines(folder)]))


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
