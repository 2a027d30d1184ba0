"""Columns through the box in a map's zarr store: arrays ``column_z_mean`` and so on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zarr

from pipelines.cubes.sky import Columns, statistic_title
from pipelines.formats.zarr_arrays import read_array, write_array

PREFIX = "column_"
# What the columns along an axis lie on: up and across.
_PLANES = {"x": ("z", "y"), "y": ("z", "x"), "z": ("y", "x")}


def describe_columns(columns: Sequence[Columns]) -> dict[str, Any]:
    """Ends [pc] and statistics by axis, for the store's attributes."""
    return {
        one.along: {"low": one.low, "high": one.high, "arrays": list(one.arrays)}
        for one in columns
    }


def write_columns(group: zarr.Group, columns: Sequence[Columns]) -> None:
    """Write them beside the cube whose coordinates they have."""
    for one in columns:
        integral = f"extinction along {one.along}, from {one.low:g} to {one.high:g} pc"
        for name, values in one.arrays.items():
            about = {"units": "mag", "long_name": statistic_title(name, integral)}
            write_array(
                group,
                f"{PREFIX}{one.along}_{name}",
                values,
                dimensions=_PLANES[one.along],
                attributes=about,
            )


def columns_of(
    group: zarr.Group, place: str, attributes: dict[str, Any]
) -> dict[str, Columns]:
    """Those in a store, by axis; the arrays' names begin with ``place``."""
    return {
        along: Columns(
            along=along,
            low=float(about["low"]),
            high=float(about["high"]),
            arrays={
                name: read_array(group, f"{place}{PREFIX}{along}_{name}")
                for name in about["arrays"]
            },
        )
        for along, about in attributes.get("columns", {}).items()
    }
