"""Cumulative extinction on the sky as a HEALPix FITS table that healpy reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import healpy
import numpy as np
from astropy.io import fits

from pipelines.errors import InputError
from pipelines.export.cube import SkyMaps
from pipelines.export.hdus import (
    empty_primary,
    open_checked,
    read_provenance,
    write_hdus,
)

_SUMMARY = "Cumulative extinction from the Sun to each distance DISTi"
_UNSEEN = np.float32(healpy.UNSEEN)
_ROW = 1024
# A FITS table has at most 999 columns, and each distance needs two.
_MOST_DISTANCES = 499


def write_healpix(
    path: str | os.PathLike[str], skymaps: SkyMaps, *, overwrite: bool = False
) -> None:
    """Write one float32 column [mag] per distance for the mean, then for the std.

    Columns are ``MEAN_500PC ... STD_500PC ...`` (``P`` for a decimal point) and the
    header holds ``DIST1 ...`` [pc] in their order: with n distances,
    ``healpy.read_map(path, nest=None, field=i)`` is the mean to ``DIST{i+1}`` and
    ``field=n+i`` its standard deviation. Pixels are NESTED, Galactic; what is NaN in
    ``skymaps`` is healpy's UNSEEN in the file.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or cannot be written.
    ValueError
        If the provenance is not JSON, or there are more than 499 distances.
    """
    if len(skymaps.distances) > _MOST_DISTANCES:
        raise ValueError(
            f"a FITS table has room for {_MOST_DISTANCES} distances, got "
            f"{len(skymaps.distances)}"
        )
    labels = _labels(skymaps.distances)
    columns = [
        _column(f"{prefix}_{label}", values)
        for prefix, maps in (("MEAN", skymaps.mean), ("STD", skymaps.std))
        for label, values in zip(labels, maps)
    ]
    table = fits.BinTableHDU.from_columns(columns, name="EXTINCTION")
    _describe(table.header, skymaps, labels)
    primary = empty_primary(skymaps.meta, _SUMMARY)
    write_hdus(path, fits.HDUList([primary, table]), overwrite=overwrite)


def read_healpix(path: str | os.PathLike[str]) -> SkyMaps:
    """Read maps that :func:`write_healpix` wrote, checksums and all (float32).

    Raises
    ------
    InputError
        If the file is absent, truncated, altered, not NESTED, not Galactic or not
        from this program.
    """
    source = Path(path)
    with open_checked(source) as hdus:
        meta = read_provenance(hdus[0].header, source)
        if len(hdus) != 2 or not isinstance(hdus[1], fits.BinTableHDU):
            raise InputError(f"{source}: expected one HEALPix table after the primary")
        table = cast(Any, hdus)[1]
        _require_convention(table.header, source)
        distances = _read_distances(table.header)
        maps = [_values(table, index) for index in range(len(table.columns))]
        if not len(distances) or len(maps) != 2 * len(distances):
            raise InputError(
                f"{source}: {len(maps)} columns for {len(distances)} distances DISTi; "
                "expected a mean and a std for each"
            )
        try:
            return SkyMaps(
                distances=distances,
                mean=np.stack(maps[: len(distances)]),
                std=np.stack(maps[len(distances) :]),
                meta=meta,
            )
        except ValueError as error:
            raise InputError(f"{source} holds no sky maps: {error}") from error


def _labels(distances: np.ndarray) -> list[str]:
    return [
        np.format_float_positional(value, trim="-").replace(".", "P") + "PC"
        for value in distances
    ]


def _column(name: str, values: np.ndarray) -> fits.Column:
    pixels = np.asarray(values, dtype=np.float32)
    pixels = np.where(np.isnan(pixels), _UNSEEN, pixels)
    # healpy's own layout: rows of 1024 pixels, or of one pixel in small maps.
    if pixels.size % _ROW == 0:
        return fits.Column(
            name=name, format=f"{_ROW}E", unit="mag", array=pixels.reshape(-1, _ROW)
        )
    return fits.Column(name=name, format="E", unit="mag", array=pixels)


def _describe(header: fits.Header, skymaps: SkyMaps, labels: list[str]) -> None:
    npix = skymaps.mean.shape[1]
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
    for number, (distance, label) in enumerate(zip(skymaps.distances, labels), start=1):
        header[f"DIST{number}"] = (float(distance), f"[pc] of MEAN_{label}"[:45])


def _require_convention(header: fits.Header, source: Path) -> None:
    for keyword, expected in (
        ("PIXTYPE", "HEALPIX"),
        ("ORDERING", "NESTED"),
        ("COORDSYS", "G"),
    ):
        if header.get(keyword) != expected:
            raise InputError(
                f"{source}: {keyword} is {header.get(keyword)!r}, expected {expected!r}"
            )


def _read_distances(header: Any) -> np.ndarray:
    values = []
    while f"DIST{len(values) + 1}" in header:
        values.append(float(header[f"DIST{len(values) + 1}"]))
    return np.array(values)


def _values(table: Any, index: int) -> np.ndarray:
    pixels = np.asarray(table.data.field(index), dtype=np.float32).ravel()
    return np.where(pixels == _UNSEEN, np.float32(np.nan), pixels)
