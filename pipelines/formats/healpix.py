"""Maps on HEALPix pixels as FITS tables that healpy reads: Galactic, float32.

In memory pixels are in NESTED order, in files in that or in RING, as ``ORDERING`` says.

With n maps, ``healpy.read_map(path, nest=None, field=i)`` is the mean of map i,
``field=n+i`` its standard deviation, and of a positive density the fields from ``2n``
on are its quantiles p2_5, p16, p50, p84 and p97_5 (columns ``P2P5_500PC ...``). The
last field of extinctions is how far stars look, ``LAST_STAR`` [pc]. What is NaN in
memory is healpy's UNSEEN.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import healpy
import numpy as np
from astropy.io import fits

from pipelines.base.errors import InputError
from pipelines.base.quantiles import KINDS, OLDER_KINDS
from pipelines.cubes.sky import ShellMaps, SkyMaps
from pipelines.formats.hdus import open_checked, read_provenance, write_hdus

SHELLS = "SHELLS"
_UNSEEN = np.float32(healpy.UNSEEN)
_ROW = 1024
# Of one FITS table.
_MOST_COLUMNS = 999
_CONVENTION = {"PIXTYPE": "HEALPIX", "COORDSYS": "G"}
ORDERINGS = ("nested", "ring")
_LAST_STAR, _FILLED = "LAST_STAR", "FILLED_"


class _Layout(NamedTuple):
    """Name of the table, and the cards ``KEYWORD{first}`` … that hold distances."""

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
        If ``path`` exists and ``overwrite`` is false, or cannot be written, or there
        are more maps than the 999 columns that a FITS table has room for.
    ValueError
        If the provenance is not JSON.
    """
    columns = _columns(skymaps.arrays, list(map(_label, skymaps.distances)), "mag")
    if skymaps.last_star is not None:
        columns[_LAST_STAR] = (skymaps.last_star, "pc")
    if skymaps.filled is not None:
        labels = map(_label, skymaps.distances)
        columns |= {
            f"{_FILLED}{label}PC": (values, "")
            for label, values in zip(labels, skymaps.filled, strict=True)
        }
    about = (skymaps.distances, skymaps.meta)
    _write(path, _SKY, columns, *about, ordering=ordering, overwrite=overwrite)


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
    columns = _columns(shells.arrays, labels, shells.unit)
    about = (shells.edges, shells.meta)
    _write(path, _SHELLS, columns, *about, ordering=ordering, overwrite=overwrite)


def read_healpix(path: str | os.PathLike[str]) -> SkyMaps:
    """Read maps that :func:`write_healpix` wrote, checksums and all (float32).

    Raises
    ------
    InputError
        If the file is absent, truncated, altered, not Galactic or not from this
        program.
    """
    found = _read(Path(path), _SKY)
    arrays = found.arrays
    return SkyMaps(
        distances=found.distances,
        mean=arrays.pop("mean"),
        std=arrays.pop("std"),
        quantiles=arrays,
        last_star=found.last_star,
        filled=found.filled,
        meta=found.meta,
    )


def read_shells(path: str | os.PathLike[str]) -> ShellMaps:
    """Read shells that :func:`write_shells` wrote; raises as `read_healpix`."""
    found = _read(Path(path), _SHELLS)
    arrays, unit = found.arrays, found.unit
    return ShellMaps(edges=found.distances, arrays=arrays, unit=unit, meta=found.meta)


def _columns(
    arrays: dict[str, np.ndarray], labels: list[str], unit: str
) -> dict[str, tuple[np.ndarray, str]]:
    if len(arrays) * len(labels) > _MOST_COLUMNS:
        raise InputError(
            f"a FITS table has room for {_MOST_COLUMNS // len(arrays)} maps of "
            f"{', '.join(arrays)}, got {len(labels)}"
        )
    return {
        f"{_written(kind)}_{label}PC": (values, unit)
        for kind, maps in arrays.items()
        for label, values in zip(labels, maps, strict=True)
    }


def _column(name: str, values: np.ndarray, unit: str, ordering: str) -> fits.Column:
    pixels = np.asarray(values, dtype=np.float32)
    if ordering == "ring":
        pixels = healpy.reorder(pixels, n2r=True)
    pixels = np.where(np.isnan(pixels), _UNSEEN, pixels)
    # healpy's own layout: rows of 1024 pixels, or of one pixel in small maps.
    width = _ROW if pixels.size % _ROW == 0 else 1
    return fits.Column(
        name=name, format=f"{width}E", unit=unit, array=pixels.reshape(-1, width)
    )


def _write(
    path: str | os.PathLike[str],
    layout: _Layout,
    columns: dict[str, tuple[np.ndarray, str]],
    distances: np.ndarray,
    meta: dict[str, Any],
    *,
    ordering: str,
    overwrite: bool,
) -> None:
    if ordering not in ORDERINGS:
        raise InputError(
            f"pixels are in {' or '.join(ORDERINGS)} order, got {ordering!r}"
        )
    written = [_column(n, values, u, ordering) for n, (values, u) in columns.items()]
    pixels = next(iter(columns.values()))[0].size
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
    for keyword, card in cards.items():
        table.header[keyword] = card
    write_hdus(path, [table], meta, layout.summary, overwrite=overwrite)


class _Found(NamedTuple):
    """Distances [pc], arrays ``(n, npix)`` by name, unit, provenance, and more."""

    distances: np.ndarray
    arrays: dict[str, np.ndarray]
    unit: str
    meta: dict[str, Any]
    last_star: np.ndarray | None
    filled: np.ndarray | None


def _read(source: Path, layout: _Layout) -> _Found:
    """What a file of this layout holds, in NESTED order."""
    with open_checked(source) as hdus:
        meta = read_provenance(hdus[0].header, source)
        if len(hdus) != 2 or hdus[1].name != layout.table:
            raise InputError(
                f"{source}: expected one HEALPix table named {layout.table}"
            )
        table = hdus[1]
        for keyword, expected in _CONVENTION.items():
            found = table.header.get(keyword)
            if found != expected:
                raise InputError(
                    f"{source}: {keyword} is {found!r}, expected {expected!r}"
                )
        distances = _numbered_cards(table.header, layout)
        ordering = str(table.header.get("ORDERING"))
        if ordering.lower() not in ORDERINGS:
            raise InputError(
                f"{source}: ORDERING is {ordering!r}, expected {' or '.join(ORDERINGS)}"
            )
        kind_of = {_written(kind): kind for kind in KINDS}
        every = [str(name) for name in table.columns.names]
        beside = [n for n in every if n == _LAST_STAR or n.startswith(_FILLED)]
        fields = [name for name in every if name not in beside]
        heads = [name.split("_")[0] for name in fields]
        names = [kind_of.get(head, head) for head in heads]
        units = {table.columns[name].unit for name in fields}
        columns = np.stack([np.ravel(table.data.field(name)) for name in fields])
        more = [np.ravel(table.data.field(name)) for name in beside]
    kinds = tuple(dict.fromkeys(names))
    count = len(distances) - 1 + layout.first
    ordered = names == [kind for kind in kinds for _ in range(count)]
    if kinds not in (KINDS[:2], KINDS, OLDER_KINDS) or not ordered or len(units) != 1:
        raise InputError(
            f"{source}: {len(names)} columns of {', '.join(kinds)} in {len(units)} "
            f"units for {count} maps; expected a mean and a std for each, and maybe "
            "quantiles"
        )
    maps = np.where(columns == _UNSEEN, np.float32(np.nan), columns.astype(np.float32))
    if ordering.lower() == "ring":
        maps = np.stack([np.asarray(healpy.reorder(m, r2n=True)) for m in maps])
        more = [np.asarray(healpy.reorder(one, r2n=True)) for one in more]
    own = dict(zip(beside, (one.astype(np.float64) for one in more)))
    last_star = own.pop(_LAST_STAR, None)
    filled = np.stack(list(own.values())) if own else None
    arrays = dict(zip(kinds, maps.reshape(len(kinds), count, -1)))
    return _Found(distances, arrays, units.pop(), meta, last_star, filled)


def _written(kind: str) -> str:
    """A statistic as part of a column's name."""
    return kind.upper().replace("_", "P")


def _label(distance: float) -> str:
    """A distance [pc] as part of a column's name."""
    return np.format_float_positional(distance, trim="-").replace(".", "P")


def _numbered_cards(header: Any, layout: _Layout) -> np.ndarray:
    """The numbers in the cards of a layout, as far as they go."""
    values: list[float] = []
    while (keyword := f"{layout.keyword}{len(values) + layout.first}") in header:
        values.append(float(header[keyword]))
    return np.array(values)
