"""A map as a zarr v3 store: chunked, self-describing, and whole or refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr

from pipelines.base.errors import InputError
from pipelines.cubes.cube import AXES, FRAME, Cube, field_title, field_unit
from pipelines.cubes.sky import Columns, Integrated, statistic_title
from pipelines.formats.hdus import provenance_text
from pipelines.formats.zarr_arrays import (
    consolidate,
    level_groups,
    level_name,
    read_array,
    write_array,
)
from pipelines.formats.zarr_columns import (
    PREFIX,
    columns_of,
    describe_columns,
    write_columns,
)
from pipelines.storage.atomic import atomic_directory, check_manifest, write_manifest

_KIND = "dustmap cube"
_VERSION, _NESTED = 2, 3
# Version 1 had no integrated extinctions, version 3 has levels in groups.
_READABLE = (1, 2, 3)
_PREFIX = "extinction_"
_TAKEN = ("distance", "pixel", "last_star", "sample", "density_samples")
_DISTANCE = "distance from the observer"
_INTEGRAL = "extinction integrated from the observer"
# Numbers in a chunk of rays: 1 MiB of float32, all distances of a patch of the sky.
_RAY_CHUNK = 2**18


def write_zarr(
    path: str | os.PathLike[str],
    cube: Cube,
    integrated: Integrated | None = None,
    *,
    columns: Sequence[Columns] = (),
    samples: Sequence[np.ndarray] = (),
    overwrite: bool = False,
) -> None:
    """Write ``cube`` as a zarr v3 group of arrays with named dimensions ``z y x``.

    Each array keeps its data type. ``x y z`` [pc] are coordinate arrays, which is how
    xarray finds them. Frame, provenance, and out of the latter band and citation, are
    attributes of the group. A map with finer cubes has them all in groups ``level_0``,
    ``level_1``, …, the coarsest first. Integrated extinctions are arrays
    ``extinction_mean ...`` with the dimensions ``pixel distance`` (float32) and
    ``last_star`` by pixel; a chunk holds every distance of neighbouring pixels. Columns
    are arrays ``column_z_mean …`` on the coarsest cube's other axes. ``samples`` of the
    density, one array ``(sample, z, y, x)`` for each level, become ``density_samples``
    with one chunk for each sample. The manifest of
    hashes and the completion marker come last, and the store appears when it is whole.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or is a folder that is no zarr
        store (which overwriting would delete), or cannot be written.
    ValueError
        If the provenance is not JSON or an array's name clashes with another.
    """
    target = Path(path)
    if target.is_dir() and any(target.iterdir()) and not is_zarr(target):
        raise InputError(f"{target} is a folder and no zarr store: choose another path")
    attributes = _group_attributes(cube, integrated)
    if len(samples):
        attributes["samples"] = len(samples[0])
    if columns:
        attributes["columns"] = describe_columns(columns)
    for name in cube.arrays:
        taken = name in (*AXES, *_TAKEN) or name.startswith((_PREFIX, PREFIX))
        if taken or not name.isidentifier():
            raise ValueError(
                f"array name {name!r} must be an identifier other than "
                f"{', '.join((*AXES, *_TAKEN))}, {_PREFIX}... and {PREFIX}..."
            )
    with atomic_directory(target, overwrite=overwrite) as temporary:
        group = zarr.create_group(
            store=temporary, zarr_format=3, attributes=cast(Any, attributes)
        )
        cubes = cube.levels
        parts = level_groups(group, len(cubes))
        for part, level in zip(parts, cubes, strict=True):
            _write_cube(part, level)
        for part, draws in zip(parts, samples):
            _write_samples(part, draws, cube.unit)
        write_columns(parts[0], columns)
        if integrated is not None:
            _write_rays(group, integrated)
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
    with _opened(Path(path), verify=verify) as (group, attributes):
        cubes = [
            _read_cube(group, place, attributes) for place in level_prefixes(attributes)
        ]
        return replace(cubes[0], finer=tuple(cubes[1:]))


def _read_cube(group: zarr.Group, place: str, attributes: dict[str, Any]) -> Cube:
    """The cube of one level, whose arrays' names begin with ``place``."""
    x, y, z = (read_array(group, place + axis) for axis in AXES)
    return Cube(
        x=x,
        y=y,
        z=z,
        arrays={name: read_array(group, place + name) for name in attributes["arrays"]},
        unit=str(attributes["unit"]),
        meta=attributes["provenance"],
    )


def level_prefixes(attributes: dict[str, Any]) -> list[str]:
    """What the names of arrays begin with on every level, the coarsest first."""
    levels = int(attributes.get("levels", 1))
    names = (level_name(level, levels) for level in range(levels))
    return [f"{name}/" if name else "" for name in names]


def holds_integrated(path: str | os.PathLike[str]) -> bool:
    """Whether a store has integrated extinctions, by its description alone."""
    return "integrated" in open_cube(Path(path))[1]


def read_integrated(path: str | os.PathLike[str], *, verify: bool = True) -> Integrated:
    """Read the integrated extinctions of a map that :func:`write_zarr` wrote.

    Raises
    ------
    InputError
        As :func:`read_zarr`, and if the store has none.
    """
    source = Path(path)
    with _opened(source, verify=verify) as (group, attributes):
        if "integrated" not in attributes:
            raise InputError(
                f"{source} has no integrated extinctions: it is a simulation's truth "
                "or was written by an earlier version. Export the run again "
                f"(`dustmap export RUN --zarr {source.name}`)"
            )
        names = [str(name) for name in attributes["integrated"]["arrays"]]
        return Integrated(
            distance=read_array(group, "distance"),
            arrays={n.removeprefix(_PREFIX): read_array(group, n) for n in names},
            last_star=read_array(group, "last_star"),
            unit=str(group[names[0]].attrs["units"]),
        )


def read_columns(
    path: str | os.PathLike[str], *, verify: bool = True
) -> dict[str, Columns]:
    """Read the columns of a map that :func:`write_zarr` wrote, by axis; maybe none.

    Raises
    ------
    InputError
        As :func:`read_zarr`.
    """
    with _opened(Path(path), verify=verify) as (group, attributes):
        return columns_of(group, level_prefixes(attributes)[0], attributes)


def open_cube(path: Path) -> tuple[zarr.Group, dict[str, Any]]:
    """The group of a store and its attributes, without reading arrays or hashes.

    Raises
    ------
    InputError
        If it is none of this program's, or of another version.
    """
    if not is_zarr(path):
        raise InputError(f"{path} is no zarr store (expected a folder with zarr.json)")
    with _input_errors(path):
        group = zarr.open_group(path, mode="r", zarr_format=3)
        attributes = dict(group.attrs)
    kind, version = attributes.get("kind"), attributes.get("version")
    if kind != _KIND or version not in _READABLE:
        raise InputError(
            f"{path} is a zarr store of kind {kind!r} version {version!r}; expected "
            f"{_KIND!r} version {' or '.join(map(str, _READABLE))}, as `dustmap "
            "export` writes it"
        )
    return group, attributes


def is_zarr(path: Path) -> bool:
    """Whether a folder is a zarr group."""
    return (path / "zarr.json").is_file()


@contextmanager
def _opened(path: Path, *, verify: bool) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The group of a whole store of this program, and its attributes."""
    if is_zarr(path):
        check_manifest(path, hashes=verify)
    opened = open_cube(path)
    with _input_errors(path):
        yield opened


@contextmanager
def _input_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{path} is no cube of this program: {error}") from error


def _group_attributes(cube: Cube, integrated: Integrated | None) -> dict[str, Any]:
    provenance = json.loads(provenance_text(cube.meta))
    attributes = {
        "kind": _KIND,
        "version": _VERSION,
        "title": "Three-dimensional map of interstellar dust",
        "unit": cube.unit,
        "arrays": list(cube.arrays),
        "frame": FRAME,
        "provenance": provenance,
    }
    if cube.finer:
        attributes |= {"levels": len(cube.levels), "version": _NESTED}
    for name, key in (("band", "extinction_band"), ("citation", "citation")):
        if key in provenance:
            attributes[name] = provenance[key]
    if integrated is not None:
        attributes["integrated"] = {
            "nside": integrated.nside,
            "ordering": "NESTED",
            "frame": "galactic",
            "arrays": [_PREFIX + name for name in integrated.arrays],
            **integrated.regression,
        }
    return attributes


def _write_cube(group: zarr.Group, cube: Cube) -> None:
    for axis in AXES:
        centres = np.asarray(getattr(cube, axis), dtype=np.float64)
        about = {"units": "pc", "long_name": FRAME["axes"][axis]}
        write_array(group, axis, centres, dimensions=(axis,), attributes=about)
    for name, array in cube.arrays.items():
        units = field_unit(name, cube.unit) or "1"
        about = {"units": units, "long_name": field_title(name)}
        values = np.asarray(array)
        write_array(group, name, values, dimensions=AXES[::-1], attributes=about)


def _write_samples(group: zarr.Group, draws: np.ndarray, unit: str) -> None:
    write_array(
        group,
        "sample",
        np.arange(len(draws)),
        dimensions=("sample",),
        attributes={"long_name": "posterior sample"},
    )
    write_array(
        group,
        "density_samples",
        draws,
        dimensions=("sample", *AXES[::-1]),
        attributes={"units": unit, "long_name": "posterior samples of the density"},
        chunks=(1, *draws.shape[1:]),
    )


def _write_rays(group: zarr.Group, rays: Integrated) -> None:
    pixels, distances = len(rays.last_star), len(rays.distance)
    # A power of four: one square patch of the sky in NESTED order.
    room = max(_RAY_CHUNK // distances, 1)
    patch = 4 ** ((room.bit_length() - 1) // 2)
    long = (min(_RAY_CHUNK, pixels),)
    far = "end of the last stretch that a sight line crosses"
    healpix = "HEALPix pixel (NESTED, Galactic)"
    last = rays.last_star.astype(np.float32)
    for name, values, dimensions, units, title, chunks in (
        ("distance", rays.distance, ("distance",), "pc", _DISTANCE, (distances,)),
        ("pixel", np.arange(pixels), ("pixel",), "1", healpix, long),
        ("last_star", last, ("pixel",), "pc", far, long),
        *(
            (
                _PREFIX + name,
                np.asarray(array, dtype=np.float32),
                ("pixel", "distance"),
                rays.unit,
                statistic_title(name, _INTEGRAL),
                (min(patch, pixels), distances),
            )
            for name, array in rays.arrays.items()
        ),
    ):
        write_array(
            group,
            name,
            values,
            dimensions=dimensions,
            attributes={"units": units, "long_name": title},
            chunks=chunks,
        )
