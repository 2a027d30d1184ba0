"""A cube as a zarr v3 store: chunked, self-describing, and whole or refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr

from pipelines.base.errors import InputError
from pipelines.formats.zarr_arrays import (
    consolidate,
    read_array,
    write_array,
    write_integrated,
)
from pipelines.maps.cube import AXES, FRAME, Cube, field_title, field_unit
from pipelines.maps.integrated import (
    DISTANCE,
    LAST_STAR,
    PIXEL,
    PREFIX,
    Integrated,
)
from pipelines.storage.atomic import atomic_directory, check_manifest, write_manifest

_KIND = "dustmap cube"
_VERSION = 2
# Version 1 had no integrated extinctions, and is the same otherwise.
_READABLE = (1, 2)
_DIMENSIONS = ("z", "y", "x")


def write_zarr(
    path: str | os.PathLike[str],
    cube: Cube,
    integrated: Integrated | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write ``cube`` as a zarr v3 group of arrays with named dimensions ``z y x``.

    Each array keeps its data type. ``x y z`` [pc] are 1-D coordinate arrays of the
    same names as the dimensions, which is how xarray finds them. Frame, provenance,
    and out of the latter band and citation, are attributes of the group. The manifest
    of hashes and the completion marker come last, and the store appears under its
    name only when it is whole.

    Integrated extinctions are arrays ``extinction_mean ...`` with the dimensions
    ``pixel distance`` (float32) and ``last_star`` by pixel, beside the others. A chunk
    holds every distance of neighbouring pixels.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or is a folder that is no zarr
        store (which overwriting would delete), or cannot be written.
    ValueError
        If the provenance is not JSON or an array's name clashes with an axis.
    """
    target = Path(path)
    if target.is_dir() and any(target.iterdir()) and not is_zarr(target):
        raise InputError(f"{target} is a folder and no zarr store: choose another path")
    attributes = _group_attributes(cube, integrated)
    _check_names(cube)
    with atomic_directory(target, overwrite=overwrite) as temporary:
        group = zarr.create_group(
            store=temporary, zarr_format=3, attributes=cast(Any, attributes)
        )
        for axis in AXES:
            write_array(
                group,
                axis,
                np.asarray(getattr(cube, axis), dtype=np.float64),
                dimensions=(axis,),
                attributes={"units": "pc", "long_name": FRAME["axes"][axis]},
            )
        for name, array in cube.arrays.items():
            unit = field_unit(name, cube.unit)
            write_array(
                group,
                name,
                np.asarray(array),
                dimensions=_DIMENSIONS,
                attributes={"units": unit or "1", "long_name": field_title(name)},
            )
        if integrated is not None:
            write_integrated(group, integrated)
        consolidate(temporary)
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
    with _opened(source, verify=verify) as (group, attributes):
        names = cast(list[str], attributes["arrays"])
        return Cube(
            **{axis: read_array(group, axis) for axis in AXES},
            arrays={name: read_array(group, name) for name in names},
            unit=str(attributes["unit"]),
            meta=cast(dict[str, Any], attributes["provenance"]),
        )


def holds_integrated(path: str | os.PathLike[str]) -> bool:
    """Whether a store has integrated extinctions, by its description alone."""
    with _told(Path(path)):
        described = json.loads((Path(path) / "zarr.json").read_text())
        return "integrated" in described["attributes"]


def read_integrated(path: str | os.PathLike[str], *, verify: bool = True) -> Integrated:
    """Read the integrated extinctions of a map that :func:`write_zarr` wrote.

    Raises
    ------
    InputError
        As :func:`read_zarr`, and if the store has none.
    """
    source = Path(path)
    with _opened(source, verify=verify) as (group, attributes):
        described = cast(dict[str, Any] | None, attributes.get("integrated"))
        if described is None:
            raise InputError(
                f"{source} has no integrated extinctions: it is a simulation's truth "
                "or was written by an earlier version. Export the run again "
                f"(`dustmap export RUN --zarr {source.name}`)"
            )
        names = [str(name) for name in described["arrays"]]
        unit = cast(zarr.Array, group[names[0]]).attrs["units"]
        return Integrated(
            distance=read_array(group, DISTANCE),
            arrays={n.removeprefix(PREFIX): read_array(group, n) for n in names},
            last_star=read_array(group, LAST_STAR),
            unit=str(unit),
        )


def open_cube(path: Path) -> tuple[zarr.Group, dict[str, Any]]:
    """The group of a store and its attributes, without reading arrays or hashes.

    Raises
    ------
    InputError
        If it is none of this program's, or of another version.
    """
    if not is_zarr(path):
        raise InputError(f"{path} is no zarr store (expected a folder with zarr.json)")
    with _told(path):
        group = zarr.open_group(path, mode="r", zarr_format=3)
        attributes = dict(group.attrs)
        kind, version = attributes.get("kind"), attributes.get("version")
        if kind != _KIND or version not in _READABLE:
            raise InputError(
                f"{path} is a zarr store of kind {kind!r} version {version!r}; "
                f"expected {_KIND!r} version {' or '.join(map(str, _READABLE))}, as "
                "`dustmap export` writes it"
            )
        return group, attributes


@contextmanager
def _opened(
    source: Path, *, verify: bool
) -> Iterator[tuple[zarr.Group, dict[str, Any]]]:
    """The group of a whole store of this program, and its attributes."""
    if is_zarr(source):
        check_manifest(source, hashes=verify)
    with _told(source):
        yield open_cube(source)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What goes wrong with a store is an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{path} is no cube of this program: {error}") from error


def is_zarr(path: Path) -> bool:
    """Whether a folder is a zarr group."""
    return (path / "zarr.json").is_file()


def _group_attributes(cube: Cube, integrated: Integrated | None) -> dict[str, Any]:
    try:
        provenance = json.loads(json.dumps(cube.meta, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"provenance must be plain JSON: {error}") from error
    attributes = {
        "kind": _KIND,
        "version": _VERSION,
        "title": "Three-dimensional map of interstellar dust",
        "unit": cube.unit,
        "arrays": list(cube.arrays),
        "frame": FRAME,
        "provenance": provenance,
    }
    for name, key in (("band", "extinction_band"), ("citation", "citation")):
        if key in provenance:
            attributes[name] = provenance[key]
    if integrated is not None:
        attributes["integrated"] = {
            "nside": integrated.nside,
            "ordering": "NESTED",
            "frame": "galactic",
            "arrays": [PREFIX + name for name in integrated.arrays],
        }
    return attributes


def _check_names(cube: Cube) -> None:
    for name in cube.arrays:
        taken = name in (*AXES, DISTANCE, PIXEL, LAST_STAR) or name.startswith(PREFIX)
        if not name.isidentifier() or taken:
            raise ValueError(
                f"array name {name!r} must be a plain identifier other than x, y, z, "
                f"{DISTANCE}, {PIXEL}, {LAST_STAR} and {PREFIX}..."
            )
