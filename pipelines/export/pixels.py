"""HEALPix columns of FITS tables as healpy reads them: NESTED, Galactic, float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import healpy
import numpy as np
from astropy.io import fits

from pipelines.errors import InputError

_UNSEEN = np.float32(healpy.UNSEEN)
_ROW = 1024
# Of one FITS table.
MOST_COLUMNS = 999


def pixel_column(name: str, values: np.ndarray, unit: str) -> fits.Column:
    """One map of shape ``(npix,)``; what is NaN becomes healpy's UNSEEN."""
    pixels = np.asarray(values, dtype=np.float32)
    pixels = np.where(np.isnan(pixels), _UNSEEN, pixels)
    # healpy's own layout: rows of 1024 pixels, or of one pixel in small maps.
    if pixels.size % _ROW == 0:
        return fits.Column(
            name=name, format=f"{_ROW}E", unit=unit, array=pixels.reshape(-1, _ROW)
        )
    return fits.Column(name=name, format="E", unit=unit, array=pixels)


def describe_pixels(header: fits.Header, npix: int) -> None:
    """Write the cards that tell pixelisation, ordering and frame."""
    for keyword, value, comment in (
        ("PIXTYPE", "HEALPIX", "HEALPix pixelisation"),
        ("ORDERING", "NESTED", "pixel ordering scheme, RING or NESTED"),
        ("COORDSYS", "G", "Galactic coordinates"),
        ("NSIDE", healpy.npix2nside(npix), "resolution parameter"),
        ("FIRSTPIX", 0, "first pixel (0 based)"),
        ("LASTPIX", npix - 1, "last pixel (0 based)"),
        ("INDXSCHM", "IMPLICIT", "indexing: IMPLICIT or EXPLICIT"),
        ("OBJECT", "FULLSKY", "sky coverage"),
        ("BAD_DATA", float(_UNSEEN), "value of pixels without a map"),
    ):
        header[keyword] = (value, comment)


def require_convention(header: Any, source: Path) -> None:
    """Raise an `InputError` unless pixels are HEALPix, NESTED and Galactic."""
    for keyword, expected in (
        ("PIXTYPE", "HEALPIX"),
        ("ORDERING", "NESTED"),
        ("COORDSYS", "G"),
    ):
        if header.get(keyword) != expected:
            raise InputError(
                f"{source}: {keyword} is {header.get(keyword)!r}, expected {expected!r}"
            )


def pixel_values(table: Any, index: int) -> np.ndarray:
    """The map in a column, NaN where it is UNSEEN."""
    pixels = np.asarray(table.data.field(index), dtype=np.float32).ravel()
    return np.where(pixels == _UNSEEN, np.float32(np.nan), pixels)


def distance_label(distance: float) -> str:
    """A distance [pc] as part of a column's name: ``P`` for the decimal point."""
    return np.format_float_positional(distance, trim="-").replace(".", "P")


def numbered_cards(header: Any, keyword: str, first: int = 1) -> np.ndarray:
    """The numbers in the cards ``KEYWORD1``, ``KEYWORD2``, … as far as they go."""
    values = []
    while f"{keyword}{len(values) + first}" in header:
        values.append(float(header[f"{keyword}{len(values) + first}"]))
    return np.array(values)
