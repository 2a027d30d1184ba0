"""HEALPix columns of FITS tables as healpy reads them: NESTED, Galactic, float32."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import healpy
import numpy as np
from astropy.io import fits

from pipelines.base.errors import InputError
from pipelines.base.quantiles import KINDS
from pipelines.formats.hdus import (
    empty_primary,
    open_checked,
    read_provenance,
    write_hdus,
)

_UNSEEN = np.float32(healpy.UNSEEN)
_ROW = 1024
# Of one FITS table.
_MOST_COLUMNS = 999


class PixelTable(NamedTuple):
    """Maps of one table: the numbers of its cards, arrays ``(n, npix)`` by name."""

    numbers: np.ndarray
    arrays: dict[str, np.ndarray]
    unit: str
    meta: dict[str, Any]


def write_pixels(
    path: str | os.PathLike[str],
    name: str,
    labels: Sequence[str],
    arrays: Mapping[str, np.ndarray],
    cards: Mapping[str, tuple[float, str]],
    *,
    unit: str,
    meta: dict[str, Any],
    summary: str,
    overwrite: bool,
) -> None:
    """Write maps ``(n, npix)``, one column per array and label, as table ``name``.

    Raises
    ------
    InputError
        If there are more maps than a FITS table has columns, ``path`` exists and
        ``overwrite`` is false, or it cannot be written.
    ValueError
        If the provenance is not JSON.
    """
    if len(arrays) * len(labels) > _MOST_COLUMNS:
        raise InputError(
            f"a FITS table has room for {_MOST_COLUMNS // len(arrays)} maps of "
            f"{', '.join(arrays)}, got {len(labels)}"
        )
    columns = [
        _column(f"{kind.upper()}_{label}PC", values, unit)
        for kind, maps in arrays.items()
        for label, values in zip(labels, maps, strict=True)
    ]
    table = fits.BinTableHDU.from_columns(columns, name=name)
    _describe(table.header, next(iter(arrays.values())).shape[1])
    for keyword, card in cards.items():
        table.header[keyword] = card
    primary = empty_primary(meta, summary)
    write_hdus(path, fits.HDUList([primary, table]), overwrite=overwrite)


def read_pixels(
    path: str | os.PathLike[str], name: str, keyword: str, *, edges: bool = False
) -> PixelTable:
    """Read what :func:`write_pixels` wrote, with the cards ``KEYWORD1 KEYWORD2 …``.

    With ``edges`` they begin at 0, one more than maps.

    Raises
    ------
    InputError
        If the file is absent, truncated, altered or holds no such table.
    """
    source = Path(path)
    with open_checked(source) as hdus:
        meta = read_provenance(hdus[0].header, source)
        if len(hdus) != 2 or hdus[1].name != name:
            raise InputError(f"{source}: expected one HEALPix table named {name}")
        table = cast(Any, hdus)[1]
        _require_convention(table.header, source)
        numbers = _numbered_cards(table.header, keyword, first=0 if edges else 1)
        names = [column.split("_")[0].lower() for column in table.columns.names]
        units = set(table.columns.units)
        count, kinds = len(numbers) - edges, tuple(dict.fromkeys(names))
        ordered = names == [kind for kind in kinds for _ in range(count)]
        if kinds not in (KINDS[:2], KINDS) or not ordered or len(units) != 1:
            raise InputError(
                f"{source}: {len(names)} columns of {', '.join(kinds)} in {len(units)} "
                f"units for {count} maps by {keyword}i; expected a mean and a std for "
                "each, and maybe p16, p50 and p84"
            )
        maps = [_values(table, index) for index in range(len(names))]
    stacks = [np.stack(maps[i : i + count]) for i in range(0, len(maps), count)]
    return PixelTable(numbers, dict(zip(kinds, stacks)), units.pop(), meta)


def _column(name: str, values: np.ndarray, unit: str) -> fits.Column:
    """One map of shape ``(npix,)``; what is NaN becomes healpy's UNSEEN."""
    pixels = np.asarray(values, dtype=np.float32)
    pixels = np.where(np.isnan(pixels), _UNSEEN, pixels)
    # healpy's own layout: rows of 1024 pixels, or of one pixel in small maps.
    if pixels.size % _ROW == 0:
        return fits.Column(
            name=name, format=f"{_ROW}E", unit=unit, array=pixels.reshape(-1, _ROW)
        )
    return fits.Column(name=name, format="E", unit=unit, array=pixels)


def _describe(header: fits.Header, npix: int) -> None:
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


def _require_convention(header: Any, source: Path) -> None:
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


def _values(table: Any, index: int) -> np.ndarray:
    """The map in a column, NaN where it is UNSEEN."""
    pixels = np.asarray(table.data.field(index), dtype=np.float32).ravel()
    return np.where(pixels == _UNSEEN, np.float32(np.nan), pixels)


def distance_label(distance: float) -> str:
    """A distance [pc] as part of a column's name: ``P`` for the decimal point."""
    return np.format_float_positional(distance, trim="-").replace(".", "P")


def _numbered_cards(header: Any, keyword: str, first: int) -> np.ndarray:
    """The numbers in the cards ``KEYWORD1``, ``KEYWORD2``, … as far as they go."""
    values = []
    while f"{keyword}{len(values) + first}" in header:
        values.append(float(header[f"{keyword}{len(values) + first}"]))
    return np.array(values)
