"""A cube as FITS: an empty primary unit and one float32 image per field."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from astropy.io import fits

from pipelines.base.errors import InputError
from pipelines.cubes.cube import AXES, FRAME, Cube, field_title, field_unit
from pipelines.formats.hdus import open_checked, read_provenance, write_hdus

_SUMMARY = "Three-dimensional map of interstellar dust, heliocentric Galactic frame"


def write_fits(
    path: str | os.PathLike[str], cube: Cube, *, overwrite: bool = False
) -> None:
    """Write ``cube`` as images ``MEAN``, ``STD``, ``SUPPORT`` (upper-cased names).

    Images are uncompressed float32 (tile compression loses digits of floats), FITS
    axes 1, 2, 3 are x, y, z with a linear WCS [pc], and ``BUNIT`` is the cube's unit,
    blank where the field is dimensionless. Finer cubes have the same names and the next
    ``EXTVER``, of the coarsest 1. Every unit has CHECKSUM and DATASUM, and
    the primary unit has the provenance in HISTORY.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or cannot be written.
    ValueError
        If the provenance is not JSON, or a field's name is not lower case.
    """
    images = []
    for version, level in enumerate(cube.levels, start=1):
        for name, array in level.arrays.items():
            if not name.isidentifier() or name != name.lower():
                raise ValueError(f"array name {name!r} must be a lower-case identifier")
            data = np.asarray(array, dtype=np.float32)
            image = fits.ImageHDU(data, name=name.upper(), ver=version)
            _describe(image.header, level, name)
            images.append(image)
    write_hdus(path, images, cube.meta, _SUMMARY, overwrite=overwrite)


def read_fits(path: str | os.PathLike[str]) -> Cube:
    """Read a cube that :func:`write_fits` wrote, checksums and all (float32).

    Raises
    ------
    InputError
        If the file is absent, truncated, altered or not a cube of this program.
    """
    source = Path(path)
    with open_checked(source) as hdus:
        meta = read_provenance(hdus[0].header, source)
        images = hdus[1:]
        if not images or not all(isinstance(hdu, fits.ImageHDU) for hdu in images):
            raise InputError(f"{source}: expected image units only, one per field")
        versions = sorted({image.ver for image in images})
        cubes = [
            _read_level([i for i in images if i.ver == version], meta, source)
            for version in versions
        ]
        return replace(cubes[0], finer=tuple(cubes[1:]))


def _read_level(images: list[Any], meta: dict[str, Any], source: Path) -> Cube:
    """Read the cube of images on one grid."""
    grids = [_read_axes(image.header, source) for image in images]
    if any(not np.array_equal(g[a], grids[0][a]) for g in grids for a in AXES):
        raise InputError(f"{source}: expected images of one EXTVER on one grid")
    units = {str(i.header.get("BUNIT", "")).strip() for i in images} - {""}
    if len(units) != 1:
        raise InputError(f"{source}: expected one BUNIT, found {sorted(units)}")
    arrays = {i.name.lower(): np.asarray(i.data, dtype=np.float32) for i in images}
    try:
        x, y, z = (grids[0][axis] for axis in AXES)
        return Cube(x=x, y=y, z=z, arrays=arrays, unit=units.pop(), meta=meta)
    except ValueError as error:
        raise InputError(f"{source} is no cube: {error}") from error


def _describe(header: fits.Header, cube: Cube, name: str) -> None:
    header["BUNIT"] = (field_unit(name, cube.unit), field_title(name)[:45])
    header["WCSNAME"] = "Heliocentric Galactic"
    for number, axis in enumerate(AXES, start=1):
        centres = getattr(cube, axis)
        step = (centres[-1] - centres[0]) / (len(centres) - 1)
        header[f"CTYPE{number}"] = (axis.upper(), FRAME["axes"][axis][:45])
        header[f"CUNIT{number}"] = "pc"
        header[f"CRPIX{number}"] = (1.0, "centre of the first cell")
        header[f"CRVAL{number}"] = (float(centres[0]), "[pc]")
        header[f"CDELT{number}"] = (float(step), "[pc] cell size")


def _read_axes(header: Any, source: Path) -> dict[str, np.ndarray]:
    axes = {}
    for number, axis in enumerate(AXES, start=1):
        kind, unit = header.get(f"CTYPE{number}"), header.get(f"CUNIT{number}")
        if header.get("NAXIS") != 3 or kind != axis.upper() or unit != "pc":
            raise InputError(
                f"{source}: expected a cube with axis {number} = {axis.upper()} [pc], "
                f"found {header.get('NAXIS')} axes, {kind} [{unit}]"
            )
        cells = np.arange(1, header[f"NAXIS{number}"] + 1, dtype=np.float64)
        offset = cells - header[f"CRPIX{number}"]
        axes[axis] = header[f"CRVAL{number}"] + offset * header[f"CDELT{number}"]
    return axes
