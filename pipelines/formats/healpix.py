"""Maps on HEALPix pixels as FITS tables for healpy: Galactic, float32.

Pixels are in NESTED order in memory, and in the order of ``ORDERING`` in files.

With n maps, ``healpy.read_map(path, nest=None, field=i)`` is the mean of map i,
``field=n+i`` its standard deviation, and for a positive density the fields from ``2n``
on are its quantiles p2_5, p16, p50, p84 and p97_5 (columns ``P2P5_500PC ...``). The
last field of extinctions is the distance of the last stars, ``LAST_STAR`` [pc]. NaN in
memory is healpy's UNSEEN.
"""

from __future__ import annotations

import os
from itertools import count, pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import healpy
import numpy as np
from astropy.io import fits

from pipelines.base.errors import InputError
from pipelines.base.quantiles import KINDS, OLDER_KINDS
from pipelines.cubes.sky import ShellMaps, SkyMaps
from pipelines.formats.fits import open_checked, read_provenance, write_hdus

ORDERINGS = ("nested", "ring")
SHELLS = "SHELLS"
_LAST_STAR, _FILLED = "LAST_STAR", "FILLED_"
_UNSEEN = np.float32(healpy.UNSEEN)
# healpy's own layout: rows of 1024 pixels, or of one pixel in small maps.
_ROW = 1024
# Most columns of a table in the FITS standard.
_MOST_COLUMNS = 999
_CONVENTION = {"PIXTYPE": "HEALPIX", "COORDSYS": "G"}


Named = dict[str, np.ndarray]


class _Layout(NamedTuple):
    """Name of the table, and the cards ``KEYWORD{first}`` … of distances."""

    table: str
    keyword: str
    first: int
    summary: str


_SKY = _Layout(
    "EXTINCTION", "DIST", 1, "Cumulative extinction from the Sun to each distance DISTi"
)
_SHELLS = _Layout(
    SHELLS, "EDGE", 0, "Mean density in each HEALPix pixel between EDGE0, EDGE1, ..."
)


def write_healpix(
    path: str | os.PathLike[str],
    skymaps: SkyMaps,
    *,
    ordering: str = "nested",
    overwrite: bool = False,
) -> None:
    """Write columns ``MEAN_500PC ... STD_500PC ...`` [mag] (``P``: decimal point).

    The header holds ``DIST1 ...`` [pc] in their order; ``ordering`` of the pixels is
    ``nested`` or ``ring``.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or cannot be written, or the maps
        need more than the 999 columns of a FITS table.
    ValueError
        If the provenance is not JSON.
    """
    labels = [_label(distance) for distance in skymaps.distances]
    columns = _named(skymaps.arrays, labels, "mag")
    if skymaps.last_star is not None:
        columns[_LAST_STAR] = (skymaps.last_star, "pc")
    if skymaps.filled is not None:
        for label, values in zip(labels, skymaps.filled, strict=True):
            columns[f"{_FILLED}{label}PC"] = (values, "")
    table = _table(_SKY, columns, skymaps.distances, ordering)
    write_hdus(path, [table], skymaps.meta, _SKY.summary, overwrite=overwrite)


def write_shells(
    path: str | os.PathLike[str],
    shells: ShellMaps,
    *,
    ordering: str = "nested",
    overwrite: bool = False,
) -> None:
    """Write columns ``MEAN_0_100PC ... STD_0_100PC ...``, one per shell.

    The header holds the edges as ``EDGE0 EDGE1 ...`` [pc]. Raises as `write_healpix`.
    """
    labels = [f"{_label(low)}_{_label(high)}" for low, high in pairwise(shells.edges)]
    columns = _named(shells.arrays, labels, shells.unit)
    table = _table(_SHELLS, columns, shells.edges, ordering)
    write_hdus(path, [table], shells.meta, _SHELLS.summary, overwrite=overwrite)


def read_healpix(path: str | os.PathLike[str]) -> SkyMaps:
    """Read maps by :func:`write_healpix`, with checksums (float32).

    Raises
    ------
    InputError
        If the file is absent, truncated, altered, not Galactic or not from this
        program.
    """
    distances, arrays, beside, meta, _ = _read(Path(path), _SKY)
    last_star = beside.pop(_LAST_STAR, None)
    return SkyMaps(
        distances=distances,
        arrays=arrays,
        last_star=None if last_star is None else last_star.astype(np.float64),
        filled=np.stack(list(beside.values())) if beside else None,
        meta=meta,
    )


def read_shells(path: str | os.PathLike[str]) -> ShellMaps:
    """Read shells by :func:`write_shells`; raises as `read_healpix`."""
    edges, arrays, _, meta, unit = _read(Path(path), _SHELLS)
    return ShellMaps(edges=edges, arrays=arrays, unit=unit, meta=meta)


def _named(
    arrays: Named, labels: list[str], unit: str
) -> dict[str, tuple[np.ndarray, str]]:
    """Name every map of arrays ``(n, npix)``, statistic by statistic."""
    if len(arrays) * len(labels) > _MOST_COLUMNS:
        raise InputError(
            f"a FITS table has room for {_MOST_COLUMNS // len(arrays)} maps of "
            f"{', '.join(arrays)}, got {len(labels)}"
        )
    return {
        f"{_head(kind)}_{label}PC": (values, unit)
        for kind, maps in arrays.items()
        for label, values in zip(labels, maps, strict=True)
    }


def _table(
    layout: _Layout,
    columns: dict[str, tuple[np.ndarray, str]],
    distances: np.ndarray,
    ordering: str,
) -> fits.BinTableHDU:
    """Return a table of NESTED pixels, with units, in the order of the file."""
    if ordering not in ORDERINGS:
        raise InputError(f"ordering must be {' or '.join(ORDERINGS)}, got {ordering!r}")
    pixels = next(iter(columns.values()))[0].size
    width = _ROW if pixels % _ROW == 0 else 1
    written = []
    for name, (values, unit) in columns.items():
        stored = np.asarray(values, dtype=np.float32)
        if ordering == "ring":
            stored = healpy.reorder(stored, n2r=True)
        rows = np.where(np.isnan(stored), _UNSEEN, stored).reshape(-1, width)
        written.append(fits.Column(name, format=f"{width}E", unit=unit, array=rows))
    table = fits.BinTableHDU.from_columns(written, name=layout.table)
    cards = {
        **_CONVENTION,
        "ORDERING": (ordering.upper(), "of the pixels"),
        "NSIDE": (healpy.npix2nside(pixels), "resolution parameter"),
        "FIRSTPIX": (0, "first pixel (0 based)"),
        "LASTPIX": (pixels - 1, "last pixel (0 based)"),
        "INDXSCHM": ("IMPLICIT", "indexing: IMPLICIT or EXPLICIT"),
        "OBJECT": ("FULLSKY", "sky coverage"),
        "BAD_DATA": (float(_UNSEEN), "value of pixels without a map"),
    }
    for number, distance in enumerate(distances, start=layout.first):
        cards[f"{layout.keyword}{number}"] = (float(distance), "[pc]")
    table.header.update(cards)
    return table


def _read(
    source: Path, layout: _Layout
) -> tuple[np.ndarray, Named, Named, dict[str, Any], str]:
    """Read distances [pc], statistics, other columns, provenance and the maps' unit.

    Statistics have shape ``(n, npix)``, the others ``(npix,)``, both in NESTED order.
    """
    with open_checked(source) as hdus:
        meta = read_provenance(hdus[0].header, source)
        if len(hdus) != 2 or hdus[1].name != layout.table:
            raise InputError(
                f"{source}: expected one HEALPix table named {layout.table}"
            )
        table = hdus[1]
        for keyword, expected in _CONVENTION.items():
            if (found := table.header.get(keyword)) != expected:
                raise InputError(
                    f"{source}: {keyword} is {found!r}, expected {expected!r}"
                )
        ordering = str(table.header.get("ORDERING")).lower()
        if ordering not in ORDERINGS:
            named, known = ordering.upper(), " or ".join(ORDERINGS)
            raise InputError(f"{source}: ORDERING is {named!r}, expected {known}")
        cards = map(f"{layout.keyword}{{}}".format, count(layout.first))
        cards = takewhile(table.header.__contains__, cards)
        distances = np.array([float(table.header[card]) for card in cards])
        columns, beside, units = {}, {}, set()
        for column in table.columns:
            values = np.ravel(table.data.field(column.name)).astype(np.float32)
            values = np.where(values == _UNSEEN, np.float32(np.nan), values)
            if ordering == "ring":
                values = np.asarray(healpy.reorder(values, r2n=True))
            if column.name.startswith((_LAST_STAR, _FILLED)):
                beside[column.name] = values
            else:
                columns[column.name] = values
                units.add(str(column.unit))
    if len(units) != 1:
        raise InputError(f"{source}: expected maps in one unit, got {units}")
    maps, kind_of = len(distances) + layout.first - 1, {_head(k): k for k in KINDS}
    heads = [str(name).split("_")[0] for name in columns]
    names = [kind_of.get(head, head) for head in heads]
    kinds = tuple(dict.fromkeys(names))
    ordered = names == [kind for kind in kinds for _ in range(maps)]
    if kinds not in (KINDS[:2], KINDS, OLDER_KINDS) or not ordered:
        raise InputError(
            f"{source}: {len(names)} columns of {', '.join(kinds)} for {maps} maps; "
            "expected a mean and a std for each, and maybe quantiles"
        )
    stacked = np.stack(list(columns.values())).reshape(len(kinds), maps, -1)
    return distances, dict(zip(kinds, stacked)), beside, meta, units.pop()


def _head(kind: str) -> str:
    """Return the beginning of a column's name for a statistic."""
    return kind.upper().replace("_", "P")


def _label(distance: float) -> str:
    """Return the part of a column's name for a distance [pc]."""
    return np.format_float_positional(distance, trim="-").replace(".", "P")
