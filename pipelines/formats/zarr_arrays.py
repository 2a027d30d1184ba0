"""Arrays of a zarr group with named dimensions, units and titles."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr

_CHUNK = 64


def write_array(
    group: zarr.Group,
    name: str,
    data: np.ndarray,
    *,
    dimensions: tuple[str, ...],
    attributes: dict[str, Any],
    chunks: tuple[int, ...] | None = None,
) -> None:
    """One array with named dimensions; chunks of 64 along each unless given."""
    # Empty chunks are written too: every chunk is then a file the manifest lists.
    group.create_array(
        name,
        data=np.ascontiguousarray(data),
        chunks=chunks or tuple(min(_CHUNK, size) for size in data.shape),
        dimension_names=dimensions,
        attributes=attributes,
        fill_value=np.nan if data.dtype.kind == "f" else 0,
        config={"write_empty_chunks": True},
    )


def level_name(level: int, levels: int) -> str:
    """The group that holds the arrays of a level; of one alone the store itself.

    Levels lie beside each other: in xarray's trees a group inherits coordinates.
    """
    return "" if levels == 1 else f"level_{level}"


def level_groups(group: zarr.Group, levels: int) -> list[zarr.Group]:
    """New groups for so many levels, the coarsest first."""
    if levels == 1:
        return [group]
    return [group.create_group(level_name(level, levels)) for level in range(levels)]


def consolidate(path: Path) -> None:
    """Put the metadata of all arrays into that of their group."""
    # xarray then need not list the members, which warns about the manifest. zarr in
    # turn warns that the v3 specification does not have consolidated metadata yet.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata", UserWarning)
        zarr.consolidate_metadata(path, zarr_format=3)


def read_array(group: zarr.Group, name: str) -> np.ndarray:
    """A whole array of a group."""
    return np.asarray(cast(zarr.Array, group[name])[...])
