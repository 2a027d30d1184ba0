"""A map as a zarr v3 store: chunked, self-describing, and whole or refused."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr
from zarr.storage import FsspecStore, LocalStore, WrapperStore

from dustmap.memory import rows_within
from pipelines.base.errors import InputError
from pipelines.cubes.cube import AXES, FRAME, Cube, field_title, field_unit
from pipelines.cubes.sky import ESTIMATE, REGRESSION, Columns, Curves, statistic_title
from pipelines.formats.citation import provenance_text
from pipelines.storage import atomic

_KIND = "dustmap cube"
# Version 1 had no integrated extinctions, 3 had levels in groups; from 4 on attributes
# are numbers and texts, of JSON where they were lists and objects, as netCDF has them;
# 5 has nodes of extinctions, and columns of every level.
_VERSION = 5
_READABLE = (1, 2, 3, 4, 5)
_RAYS = "extinction_"
_COLUMNS = "column_"
_TAKEN = (*AXES, "distance", "node", "pixel", "last_star", "sample")
SAMPLES = "density_samples"


def write_zarr(
    path: atomic.AnyPath,
    cube: Cube,
    curves: Curves | None = None,
    *,
    columns: Sequence[dict[str, Columns]] = (),
    samples: Sequence[np.ndarray] = (),
    overwrite: bool = False,
) -> None:
    """Write ``cube`` as a zarr v3 group of arrays with named dimensions ``z y x``.

    Each array keeps its data type. ``x y z`` [pc] are coordinate arrays for xarray.
    Frame, provenance, band and citation are attributes of the group. A map with finer
    cubes has all cubes in groups ``level_0``, ``level_1``, …, the coarsest first.
    Integrated extinctions are the array ``extinction_mean`` with the dimensions ``pixel
    distance``, others with ``pixel node`` (float32), and ``last_star`` by pixel
    (`Curves`); a chunk holds all distances of neighbouring pixels. ``columns`` by axis,
    one dictionary per level, are arrays ``column_z_mean …`` on the cube's other axes.
    ``samples`` of the density, one array ``(sample, z, y, x)`` per level, become
    ``density_samples`` with one chunk per sample. The manifest of hashes
    and the completion marker are written last, and the complete store appears at the
    end.

    Raises `InputError` if ``path`` exists and ``overwrite`` is false, or is a folder
    that this program did not write, or cannot be written; `ValueError` if the
    provenance is not JSON or an array's name clashes with another.
    """
    target = Path(path)
    for name in cube.arrays:
        taken = name in _TAKEN or name.startswith((_RAYS, _COLUMNS, SAMPLES))
        if taken or not name.isidentifier():
            raise ValueError(
                f"array name {name!r} must be an identifier other than "
                f"{', '.join(_TAKEN)}, {_RAYS}... and {_COLUMNS}..."
            )
    attributes = _description(cube, curves, columns, samples)
    # As texts of JSON lists and objects are valid in netCDF.
    flat: Any = {
        name: json.dumps(value) if isinstance(value, dict | list) else value
        for name, value in attributes.items()
    }
    with atomic.atomic_directory(target, overwrite=overwrite) as temporary:
        group = zarr.create_group(store=temporary, zarr_format=3, attributes=flat)
        # Levels are siblings: in xarray's trees a group inherits coordinates.
        names = [place.rstrip("/") for place in level_prefixes(attributes)]
        parts = [group.create_group(name) if name else group for name in names]
        for part, level in zip(parts, cube.levels, strict=True):
            for axis in AXES:
                centres = np.asarray(getattr(level, axis), dtype=np.float64)
                _write(part, axis, centres, (axis,), "pc", FRAME["axes"][axis])
            for name, array in level.arrays.items():
                unit, title = field_unit(name, cube.unit) or "1", field_title(name)
                _write(part, name, np.asarray(array), AXES[::-1], unit, title)
        for part, draws in zip(parts, samples):
            numbers, title = np.arange(len(draws)), "posterior sample"
            _write(part, "sample", numbers, ("sample",), "1", title)
            dimensions, title = ("sample", *AXES[::-1]), f"{title}s of the density"
            chunks = (1, *draws.shape[1:])
            _write(part, SAMPLES, draws, dimensions, cube.unit, title, chunks)
        for part, by_axis in zip(parts, columns):
            for along, one in by_axis.items():
                ends = f"extinction along {along}, from {one.low:g} to {one.high:g} pc"
                # Up and across.
                plane = tuple(axis for axis in AXES[::-1] if axis != along)
                for name, values in one.arrays.items():
                    title = statistic_title(name, ends)
                    _write(
                        part, f"{_COLUMNS}{along}_{name}", values, plane, "mag", title
                    )
        if curves is not None:
            _write_rays(group, curves)
        # With consolidated metadata xarray does not list the members, which would warn
        # about the manifest. zarr warns that the v3 specification has none yet.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Consolidated metadata", UserWarning)
            zarr.consolidate_metadata(temporary, zarr_format=3)
        atomic.write_manifest(temporary)


def _description(
    cube: Cube,
    curves: Curves | None,
    columns: Sequence[dict[str, Columns]],
    samples: Sequence[np.ndarray],
) -> dict[str, Any]:
    """Return the attributes of the group."""
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
        attributes["levels"] = len(cube.levels)
    for name, key in (("band", "extinction_band"), ("citation", "citation")):
        if key in provenance:
            attributes[name] = provenance[key]
    if curves is not None:
        attributes["integrated"] = {
            "nside": curves.nside,
            "ordering": "NESTED",
            "frame": "galactic",
            "arrays": [_RAYS + name for name in curves.arrays],
            **curves.meta,
        }
    if columns:
        attributes["columns"] = [
            {
                along: {"low": one.low, "high": one.high, "arrays": list(one.arrays)}
                for along, one in by_axis.items()
            }
            for by_axis in columns
        ]
    if len(samples):
        attributes["samples"] = len(samples[0])
    return attributes


def _write_rays(group: zarr.Group, rays: Curves) -> None:
    pixels, distances = len(rays.last_star), len(rays.distances)
    # Chunks of 1 MiB of float32: all distances of a power of four of pixels, one square
    # patch of the sky in NESTED order.
    room = rows_within(4 * distances, limit=2**20)
    patch = 4 ** ((room.bit_length() - 1) // 2)
    by_pixel, long = ("pixel",), (min(2**18, pixels),)
    title = "distance from the observer"
    _write(group, "distance", rays.distances, ("distance",), "pc", title, (distances,))
    nodes = rays.distances[rays.nodes]
    _write(group, "node", nodes, ("node",), "pc", title, (len(nodes),))
    title = "HEALPix pixel (NESTED, Galactic)"
    _write(group, "pixel", np.arange(pixels), by_pixel, "1", title, long)
    # xdggs takes the attributes for the parameters of a grid, and refuses others.
    level = (pixels // 12).bit_length() // 2
    grid = {"grid_name": "healpix", "level": level, "indexing_scheme": "nested"}
    group["pixel"].attrs.put(grid)
    last, title = rays.last_star, "end of the last stretch that a sight line crosses"
    _write(group, "last_star", last.astype(np.float32), by_pixel, "pc", title, long)
    for name, array in rays.arrays.items():
        values = np.asarray(array, dtype=np.float32)
        title = statistic_title(name, "extinction integrated from the observer")
        chunks = min(patch, pixels), values.shape[1]
        both = "pixel", "distance" if name == "mean" else "node"
        _write(group, _RAYS + name, values, both, "mag", title, chunks)


def _write(
    group: zarr.Group,
    name: str,
    data: np.ndarray,
    dimensions: tuple[str, ...],
    units: str,
    title: str,
    chunks: tuple[int, ...] | None = None,
) -> None:
    """Write one array with named dimensions, in chunks of 64 along each by default."""
    # Empty chunks are written too, so that the manifest lists every chunk.
    group.create_array(
        name,
        data=np.ascontiguousarray(data),
        chunks=chunks or tuple(min(64, size) for size in data.shape),
        dimension_names=dimensions,
        attributes={"units": units, "long_name": title},
        fill_value=np.nan if data.dtype.kind == "f" else 0,
        config={"write_empty_chunks": True},
    )


def read_zarr(path: atomic.AnyPath) -> Cube:
    """Read a cube by :func:`write_zarr`.

    Every file of a folder is compared with its SHA-256; of a store at a URL only the
    presence of what is read is checked.

    Raises `InputError` if the store is absent, incomplete, altered, or not one of this
    program's.
    """
    with _opened(path) as (group, about):
        cubes = []
        for place in level_prefixes(about):
            x, y, z = (_read(group, place + axis) for axis in AXES)
            arrays = {name: _read(group, place + name) for name in about["arrays"]}
            unit, meta = str(about["unit"]), about["provenance"]
            cubes.append(Cube(x=x, y=y, z=z, arrays=arrays, unit=unit, meta=meta))
        return replace(cubes[0], finer=tuple(cubes[1:]))


def read_curves(path: atomic.AnyPath) -> Curves:
    """Read the integrated extinctions of a map by :func:`write_zarr`.

    Raises `InputError` as :func:`read_zarr`, and if the store has none.
    """
    with _opened(path) as (group, about):
        if "integrated" not in about:
            raise InputError(f"{path} has no integrated extinctions")
        described = about["integrated"]
        names = [str(name) for name in described.pop("arrays")]
        distances = _read(group, "distance")
        return Curves(
            distances=distances,
            nodes=nodes_of(group, distances),
            arrays={name.removeprefix(_RAYS): _read(group, name) for name in names},
            last_star=_read(group, "last_star"),
            meta={n: described[n] for n in (REGRESSION, ESTIMATE) if n in described},
        )


def nodes_of(group: zarr.Group, distances: np.ndarray) -> np.ndarray:
    """Return the numbers of the distances at which all kinds are known."""
    if "node" not in group:
        return np.arange(len(distances))
    return np.searchsorted(distances, _read(group, "node"))


def read_columns(path: atomic.AnyPath) -> list[dict[str, Columns]]:
    """Read the columns of a map by :func:`write_zarr` by level; possibly none.

    Raises `InputError` as :func:`read_zarr`.
    """
    with _opened(path) as (group, about):
        described = about.get("columns", [])
        # Before version 5 those of the coarsest level alone.
        described = [described] if isinstance(described, dict) else described
        columns = []
        for place, by_axis in zip(level_prefixes(about), described):
            columns.append({})
            for along, one in by_axis.items():
                head = f"{place}{_COLUMNS}{along}_"
                arrays = {name: _read(group, head + name) for name in one["arrays"]}
                ends = {"low": float(one["low"]), "high": float(one["high"])}
                columns[-1][along] = Columns(along=along, arrays=arrays, **ends)
        return columns


def read_samples(path: atomic.AnyPath) -> list[np.ndarray]:
    """Read posterior samples of the density by level, ``(sample, z, y, x)``.

    Raises `InputError` as :func:`read_zarr`.
    """
    with _opened(path) as (group, about):
        return [_read(group, place + SAMPLES) for place in level_prefixes(about)]


def level_prefixes(attributes: dict[str, Any]) -> list[str]:
    """Return the prefixes of array names by level, the coarsest first."""
    levels = int(attributes.get("levels", 1))
    return [""] if levels == 1 else [f"level_{level}/" for level in range(levels)]


def open_cube(path: atomic.AnyPath) -> tuple[zarr.Group, dict[str, Any]]:
    """Open the group of a store, and its attributes, without reading arrays or hashes.

    ``path`` is a folder or a URL, as fsspec has them.

    Raises `InputError` if this program did not write it, or wrote another version, or a
    store at a URL cannot be reached or is incomplete; later if a chunk is missing.
    """
    if is_url(path):
        store = _store_at(str(path))
    elif is_zarr(Path(path)):
        store = LocalStore(Path(path), read_only=True)
    else:
        raise InputError(f"{path} is no zarr store: expected a folder with zarr.json")
    with _input_errors(path):
        group = zarr.open_group(_WholeStore(store), mode="r", zarr_format=3)
        attributes: dict[str, Any] = dict(group.attrs)
        for name, value in attributes.items():
            if isinstance(value, str) and value[:1] in ("{", "["):
                attributes[name] = json.loads(value)
    kind, version = attributes.get("kind"), attributes.get("version")
    if kind != _KIND or version not in _READABLE:
        raise InputError(
            f"{path} is a zarr store of kind {kind!r} version {version!r}; expected "
            f"{_KIND!r} version {' or '.join(map(str, _READABLE))}, as `dustmap "
            "export` writes it"
        )
    return group, attributes


class _WholeStore(WrapperStore):
    """A store that lacks no chunk: zarr reads a missing one as an empty one."""

    async def get(self, key: str, *args: Any, **how: Any) -> Any:
        """Return a file; raises `InputError` if it is a chunk and missing."""
        content = await super().get(key, *args, **how)
        if content is None and "/c/" in key:
            raise InputError(f"{self._store} lacks {key}: restore it from a copy")
        return content


def _store_at(url: str) -> FsspecStore:
    """Return the complete store at a URL."""
    try:
        import fsspec

        files = fsspec.get_mapper(url)
        content, marker = (files.get(n) for n in (atomic.MANIFEST, atomic.MARKER))
        store = FsspecStore.from_mapper(files, read_only=True)
    except ImportError as error:
        raise InputError(
            f"{url} needs a package ({error}): pip install 'dustmap[remote]'"
        ) from error
    except Exception as error:  # servers' clients have no common base
        raise InputError(f"{url} cannot be read: {error}") from error
    if content is None or marker is None:
        raise InputError(
            f"{url} is no complete map store: it has no {atomic.MANIFEST} and "
            f"{atomic.MARKER}; expected the folder that `dustmap export --zarr` writes"
        )
    if marker.decode().strip() != hashlib.sha256(content).hexdigest():
        raise InputError(
            f"{url} is altered: {atomic.MANIFEST} and {atomic.MARKER} disagree"
        )
    return store


def is_url(place: atomic.AnyPath) -> bool:
    """Return true for a URL, also of a folder in a zip: ``zip://map.zarr::map.zip``."""
    return "://" in str(place)


def is_zarr(path: Path) -> bool:
    """Return true if a folder is a zarr group."""
    return (path / "zarr.json").is_file()


def is_own_store(path: Path) -> bool:
    """Return true if a zarr group, damaged or not, is one of this program."""
    marks = [path / name for name in (atomic.MANIFEST, atomic.MARKER)]
    if any(mark.is_file() for mark in marks):
        return True
    try:
        return _KIND in (path / "zarr.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


@contextmanager
def _opened(path: atomic.AnyPath) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open the group of a complete store of this program, and its attributes."""
    if not is_url(path) and is_zarr(Path(path)):
        atomic.check_manifest(path)
    opened = open_cube(path)
    with _input_errors(path):
        yield opened


@contextmanager
def _input_errors(path: atomic.AnyPath) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{path} is not a cube of this program: {error}") from error


def _read(group: zarr.Group, name: str) -> np.ndarray:
    return np.asarray(cast(zarr.Array, group[name])[...])
