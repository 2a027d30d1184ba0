"""Arrays of a zarr group with named dimensions, units and titles."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr

from pipelines.maps.integrated import (
    DISTANCE,
    LAST_STAR,
    PIXEL,
    PREFIX,
    RAY_DIMENSIONS,
    Integrated,
    integrated_title,
)

_LAST_STAR_TITLE = "end of the last stretch that a star looks through"
# What the group of posterior samples calls itself.
SAMPLES = "dustmap samples"
_CHUNK = 64
# Numbers in a chunk of rays: 1 MiB of float32, all distances of a patch of the sky.
_RAY_CHUNK = 2**18


def write_integrated(group: zarr.Group, integrated: Integrated) -> None:
    """Arrays by pixel and distance with their coordinates, as float32."""
    pixels, distances = len(integrated.last_star), len(integrated.distance)
    last_star = integrated.last_star.astype(np.float32)
    # A power of four: one square patch of the sky in NESTED order.
    room = max(_RAY_CHUNK // distances, 1)
    patch = 4 ** ((room.bit_length() - 1) // 2)
    for name, values, dimension, units, title in (
        (DISTANCE, integrated.distance, DISTANCE, "pc", "distance from the observer"),
        (PIXEL, np.arange(pixels), PIXEL, "1", "HEALPix pixel (NESTED, Galactic)"),
        (LAST_STAR, last_star, PIXEL, "pc", _LAST_STAR_TITLE),
    ):
        write_array(
            group,
            name,
            np.asarray(values),
            dimensions=(dimension,),
            attributes={"units": units, "long_name": title},
            chunks=(min(_RAY_CHUNK, len(values)),),
        )
    for name, array in integrated.arrays.items():
        write_array(
            group,
            PREFIX + name,
            np.asarray(array, dtype=np.float32),
            dimensions=RAY_DIMENSIONS,
            attributes={
                "units": integrated.unit,
                "long_name": integrated_title(name),
            },
            chunks=(min(patch, pixels), distances),
        )


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


def consolidate(path: Path) -> None:
    """Put the metadata of all arrays into that of their group."""
    # Readers that list a group's members (xarray) warn about the manifest and marker
    # beside them; consolidated metadata spares them the listing. zarr in turn warns
    # that the v3 specification does not have it yet: readers without it ignore it.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata", UserWarning)
        zarr.consolidate_metadata(path, zarr_format=3)


def read_array(group: zarr.Group, name: str) -> np.ndarray:
    """A whole array of a group."""
    return np.asarray(cast(zarr.Array, group[name])[...])


def is_samples(path: str | Path) -> bool:
    """Whether a folder is a zarr store that says it holds samples."""
    try:
        record = json.loads((Path(path) / "zarr.json").read_text())
        return record["attributes"]["kind"] == SAMPLES
    except (OSError, ValueError, KeyError, TypeError):
        return False
