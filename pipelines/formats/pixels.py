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
from pipelines.formats.hdus import open_checked, read_provenance, write_hdus

_UNSEEN = np.float32(healpy.UNSEEN)
_ROW = 1024
# Of one FITS table.
_MOST_COLUMNS = 999
_CONVENTION = {"PIXTYPE": "HEALPIX", "ORDERING": "NESTED", "COORDSYS": "G"}


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
    pixels = next(iter(arrays.values())).shape[1]
    described = {
        **_CONVENTION,
        "NSIDE": (healpy.npix2nside(pixels), "resolution parameter"),
        "FIRSTPIX": (0, "first pixel (0 based)"),
        "LASTPIX": (pixels - 1, "last pixel (0 based)"),
        "INDXSCHM": ("IMPLICIT", "indexing: IMPLICIT or EXPLICIT"),
        "OBJECT": ("FULLSKY", "sky coverage"),
        "BAD_DATA": (float(_UNSEEN), "value of pixels without a map"),
        **cards,
    }
    for keyword, card in described.items():
        table.header[keyword] = card
    write_hdus(path, [table], meta, summary, overwrite=overwrite)


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
        for card, expected in _CONVENTION.items():
            found = table.header.get(card)
            if found != expected:
                raise InputError(
                    f"{source}: {card} is {found!r}, expected {expected!r}"
                )
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
        maps = np.stack([_values(table, index) for index in range(len(names))])
    arrays = dict(zip(kinds, maps.reshape(len(kinds), count, -1)))
    return PixelTable(numbers, arrays, units.pop(), meta)


def distance_label(distance: float) -> str:
    """A distance [pc] as part of a column's name: ``P`` for the decimal point."""
    return np.format_float_positional(distance, trim="-").replace(".", "P")


def _column(name: str, values: np.ndarray, unit: str) -> fits.Column:
    """One map of shape ``(npix,)``; what is NaN becomes healpy's UNSEEN."""
    pixels = np.asarray(values, dtype=np.float32)
    pixels = np.where(np.isnan(pixels), _UNSEEN, pixels)
    # healpy's own layout: rows of 1024 pixels, or of one pixel in small maps.
    width = _ROW if pixels.size % _ROW == 0 else 1
    return fits.Column(
        name=name, format=f"{width}E", unit=unit, array=pixels.reshape(-1, width)
    )


def _values(table: Any, index: int) -> np.ndarray:
    """The map in a column, NaN where it is UNSEEN."""
    pixels = np.asarray(table.data.field(index), dtype=np.float32).ravel()
    return np.where(pixels == _UNSEEN, np.float32(np.nan), pixels)


def _numbered_cards(header: Any, keyword: str, first: int) -> np.ndarray:
    """The numbers in the cards ``KEYWORD1``, ``KEYWORD2``, … as far as they go."""
    values = []
    while f"{keyword}{len(values) + first}" in header:
        values.append(float(header[f"{keyword}{len(values) + first}"]))
    return np.array(values)
