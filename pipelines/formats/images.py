"""Extinctions on the pixels of any celestial WCS, as FITS images for DS9 and Aladin.

Each statistic has an extension: an image for one distance, or a cube with the distance
as its third axis.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from astropy.io import fits
from astropy.wcs import WCS
from astropy.wcs.utils import proj_plane_pixel_area

from pipelines.base.errors import InputError
from pipelines.cubes.sky import SkyMaps
from pipelines.formats.fits import write_hdus

PROJECTIONS = ("CAR", "ZEA", "TAN", "ARC", "SIN", "STG", "AIT", "MOL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A part of the sky on pixels.

    Raises `InputError` if a value is invalid, or the header has no celestial WCS or no
    size.
    """

    projection: str = "CAR"
    """One of `PROJECTIONS`: ``CAR`` is plate carrée; ``ZEA`` (equal areas), ``TAN``,
    ``ARC``, ``SIN``, ``STG`` are zenithal; ``AIT`` and ``MOL`` show the whole sky."""
    centre: tuple[float, float] = (0.0, 0.0)
    """Galactic ``l, b`` [deg]."""
    size: tuple[float, float] | None = None
    """Width and height [deg]."""
    pixel: float | None = None
    """Side of a pixel [deg], by default 0.5 or a pixel of the map, if that is wider."""
    header: Path | None = None
    """FITS file, or text file of header cards, instead of all other values."""

    def __post_init__(self) -> None:
        size = self.size or (1.0, 1.0)
        if self.projection not in PROJECTIONS:
            raise InputError(
                f"--projection must be one of {', '.join(PROJECTIONS)}, got "
                f"{self.projection!r}"
            )
        pixel = 1.0 if self.pixel is None else self.pixel
        if not (pixel > 0 and min(size) > 0 and abs(self.centre[1]) <= 90):
            raise InputError(
                "pixels and fields need positive sizes, and centres latitudes up to 90 "
                f"deg; got pixels of {pixel:g} deg, a field of {size} deg around "
                f"{self.centre} deg"
            )

    def wcs(self) -> Any:
        """Return `astropy.wcs.WCS` with its ``array_shape`` (rows, columns)."""
        found = _made(self) if self.header is None else _read_wcs(self.header)
        if np.prod(found.array_shape) > (most := 1 << 24):
            raise InputError(
                f"an image of {found.array_shape[1]} x {found.array_shape[0]} pixels "
                f"is too large, expected at most {most}: choose larger pixels "
                "(--pixel) or a smaller field (--field)"
            )
        return found


def _made(field: Field) -> Any:
    whole = field.projection in ("CAR", "AIT", "MOL")
    usual = (360.0, 180.0) if whole else (20.0, 20.0)
    pixel = field.pixel or 0.5
    columns, rows = (max(round(s / pixel), 1) for s in field.size or usual)
    longitude, latitude = field.centre
    wcs: Any = WCS(naxis=2)
    wcs.wcs.ctype = [f"{axis}-{field.projection}" for axis in ("GLON", "GLAT")]
    wcs.wcs.cunit = ["deg", "deg"]
    wcs.wcs.cdelt = [-pixel, pixel]
    # Cylindrical projections are undistorted only near the equator.
    wcs.wcs.crval = [longitude, 0.0 if whole else latitude]
    below = latitude / pixel if whole else 0.0
    wcs.wcs.crpix = [(columns + 1) / 2, (rows + 1) / 2 - below]
    wcs.wcs.set()
    wcs.array_shape = (rows, columns)
    return wcs


def pixel_side(wcs: Any) -> float:
    """Return the side of an image's pixel where its projection is true [deg]."""
    return math.sqrt(proj_plane_pixel_area(wcs))


def write_images(
    path: str | os.PathLike[str], maps: SkyMaps, wcs: Any, *, overwrite: bool = False
) -> None:
    """Write extensions ``MEAN``, ``STD``, ... [mag] of sky maps, interpolated.

    Raises `InputError` if several distances are not evenly spaced, or ``path`` exists
    and ``overwrite`` is false, or cannot be written.
    """
    # Its import takes seconds.
    from reproject import reproject_from_healpix

    distances = maps.distances
    steps = np.diff(distances)
    if len(steps) and np.ptp(steps) > 1e-6 * steps[0]:
        raise InputError(
            "the distances of an image's third axis must be evenly spaced, such as "
            f"--distances 100,200,300; got {', '.join(f'{d:g}' for d in distances)}"
        )
    how = {"shape_out": wcs.array_shape, "order": "bilinear", "nested": True}
    units = []
    for name, part in maps.arrays.items():
        header = wcs.to_header(relax=True)
        header["BUNIT"] = "mag"
        if len(steps):
            header["WCSAXES"] = 3
            header["CTYPE3"], header["CUNIT3"] = "DIST", "pc"
            header["CRPIX3"], header["CRVAL3"] = 1.0, float(distances[0])
            header["CDELT3"] = float(steps[0])
        header["DIST"] = (float(distances[-1]), "[pc] extinction out to here")
        planes = [
            reproject_from_healpix((plane.astype(float), "galactic"), wcs, **how)[0]
            for plane in part
        ]
        array = np.array(planes if len(steps) else planes[0], dtype=np.float32)
        units.append(fits.ImageHDU(array, header, name.upper()))
    summary = "Cumulative extinction from the Sun, on the pixels of an image"
    write_hdus(path, units, maps.meta, summary, overwrite=overwrite)


def _read_wcs(path: Path) -> Any:
    """Read the first celestial axes of any header, and their size."""
    if not path.is_file():
        raise InputError(f"{path} is not a file: expected FITS, or header cards")
    with path.open("rb") as stream:
        start = stream.read(81)
    try:
        # A text file of cards also begins with SIMPLE, but has lines.
        if start.startswith(b"SIMPLE  =") and b"\n" not in start[80:]:
            with fits.open(path) as hdus:
                headers: list[Any] = [hdu.header for hdu in list[Any](hdus)]
        else:
            headers = [fits.Header.fromtextfile(str(path))]
    except (OSError, ValueError) as error:
        raise InputError(f"{path} holds no FITS header: {error}") from error
    for header in headers:
        with suppress(ValueError):
            wcs: Any = WCS(header, naxis=2)
            if wcs.has_celestial and header.get("NAXIS1") and header.get("NAXIS2"):
                wcs.array_shape = (int(header["NAXIS2"]), int(header["NAXIS1"]))
                return wcs
    raise InputError(
        f"{path} has no header with a celestial WCS and a size: expected CTYPE1, "
        "CTYPE2, CRVAL, CRPIX, CDELT (or CD, PC) and NAXIS1, NAXIS2"
    )
