"""A cube as a zarr v3 store: chunked, self-describing, and whole or refused."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr

from pipelines.errors import InputError
from pipelines.export.cube import AXES, FRAME, Cube, field_title, field_unit
from pipelines.store import atomic_directory, check_manifest, write_manifest

_KIND = "dustmap cube"
_VERSION = 1
_CHUNK = 64
_DIMENSIONS = ("z", "y", "x")


def write_zarr(
    path: str | os.PathLike[str], cube: Cube, *, overwrite: bool = False
) -> None:
    """Write ``cube`` as a zarr v3 group of arrays with named dimensions ``z y x``.

    Each array keeps its data type. ``x y z`` [pc] are 1-D coordinate arrays of the
    same names as the dimensions, which is how xarray finds them. Frame and provenance
    are attributes of the group. The manifest of hashes and the completion marker come
    last, and the store appears under its name only when it is whole.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or is a folder that is no zarr
        store (which overwriting would delete), or cannot be written.
    ValueError
        If the provenance is not JSON or an array's name clashes with an axis.
    """
    target = Path(path)
    if target.is_dir() and any(target.iterdir()) and not _is_zarr(target):
        raise InputError(f"{target} is a folder and no zarr store: choose another path")
    attributes = _group_attributes(cube)
    _check_names(cube)
    with atomic_directory(target, overwrite=overwrite) as temporary:
        group = zarr.create_group(
            store=temporary, zarr_format=3, attributes=cast(Any, attributes)
        )
        for axis in AXES:
            _write_array(
                group,
                axis,
                np.asarray(getattr(cube, axis), dtype=np.float64),
                dimensions=(axis,),
                attributes={"units": "pc", "long_name": FRAME["axes"][axis]},
            )
        for name, array in cube.arrays.items():
            unit = field_unit(name, cube.unit)
            _write_array(
                group,
                name,
                np.asarray(array),
                dimensions=_DIMENSIONS,
                attributes={"units": unit or "1", "long_name": field_title(name)},
            )
        _consolidate(temporary)
        write_manifest(temporary)


def read_zarr(path: str | os.PathLike[str], *, verify: bool = True) -> Cube:
    """Read a cube that :func:`write_zarr` wrote.

    Parameters
    ----------
    verify
        Compare every file with its SHA-256. Without it only the marker and the
        presence and size of the files are checked.

    Raises
    ------
    InputError
        If the store is absent, incomplete, altered, or not one of this program's.
    """
    source = Path(path)
    if not _is_zarr(source):
        raise InputError(
            f"{source} is no zarr store (expected a folder with zarr.json)"
        )
    check_manifest(source, hashes=verify)
    try:
        group = zarr.open_group(source, mode="r", zarr_format=3)
        attributes = dict(group.attrs)
        if attributes.get("kind") != _KIND or attributes.get("version") != _VERSION:
            raise InputError(
                f"{source} is a zarr store of kind {attributes.get('kind')!r} version "
                f"{attributes.get('version')!r}; expected {_KIND!r} version {_VERSION}"
            )
        names = cast(list[str], attributes["arrays"])
        return Cube(
            **{axis: _read_array(group, axis) for axis in AXES},
            arrays={name: _read_array(group, name) for name in names},
            unit=str(attributes["unit"]),
            meta=cast(dict[str, Any], attributes["provenance"]),
        )
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{source} is no cube of this program: {error}") from error


def _is_zarr(path: Path) -> bool:
    return (path / "zarr.json").is_file()


def _group_attributes(cube: Cube) -> dict[str, Any]:
    try:
        provenance = json.loads(json.dumps(cube.meta, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"provenance must be plain JSON: {error}") from error
    return {
        "kind": _KIND,
        "version": _VERSION,
        "title": "Three-dimensional map of interstellar dust",
        "unit": cube.unit,
        "arrays": list(cube.arrays),
        "frame": FRAME,
        "provenance": provenance,
    }


def _check_names(cube: Cube) -> None:
    for name in cube.arrays:
        if not name.isidentifier() or name in AXES:
            raise ValueError(
                f"array name {name!r} must be a plain identifier other than x, y, z"
            )


def _write_array(
    group: zarr.Group,
    name: str,
    data: np.ndarray,
    *,
    dimensions: tuple[str, ...],
    attributes: dict[str, Any],
) -> None:
    # Empty chunks are written too: every chunk is then a file the manifest lists.
    group.create_array(
        name,
        data=np.ascontiguousarray(data),
        chunks=tuple(min(_CHUNK, size) for size in data.shape),
        dimension_names=dimensions,
        attributes=attributes,
        fill_value=np.nan if data.dtype.kind == "f" else 0,
        config={"write_empty_chunks": True},
    )


def _consolidate(path: Path) -> None:
    # Readers that list a group's members (xarray) warn about the manifest and marker
    # beside them; consolidated metadata spares them the listing. zarr in turn warns
    # that the v3 specification does not have it yet: readers without it ignore it.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata", UserWarning)
        zarr.consolidate_metadata(path, zarr_format=3)


def _read_array(group: zarr.Group, name: str) -> np.ndarray:
    return np.asarray(cast(zarr.Array, group[name])[...])
