"""Maps on HEALPix pixels as FITS tables that healpy reads: NESTED, Galactic, float32.

With n maps, ``healpy.read_map(path, nest=None, field=i)`` is the mean of map i,
``field=n+i`` its standard deviation, and of a positive density the fields from ``2n``
on are its quantiles p2_5, p16, p50, p84 and p97_5 (columns ``P2P5_500PC ...``). What is
NaN in memory is healpy's UNSEEN.
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
from pipelines.formats.hdus import open_checked, read_provenance, write_hdus
from pipelines.maps.cube import SkyMaps
from pipelines.maps.integrated import ShellMaps

SHELLS = "SHELLS"
_UNSEEN = np.float32(healpy.UNSEEN)
_ROW = 1024
# Of one FITS table.
_MOST_COLUMNS = 999
_CONVENTION = {"PIXTYPE": "HEALPIX", "ORDERING": "NESTED", "COORDSYS": "G"}


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
    path: str | os.PathLike[str], skymaps: SkyMaps, *, overwrite: bool = False
) -> None:
    """Write columns ``MEAN_500PC ... STD_500PC ...`` [mag] (``P``: decimal point).

    The header holds ``DIST1 ...`` [pc] in their order.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or cannot be written, or there
        are more maps than the 999 columns that a FITS table has room for.
    ValueError
        If the provenance is not JSON.
    """
    columns = _columns(skymaps.arrays, list(map(_label, skymaps.distances)), "mag")
    _write(path, _SKY, columns, skymaps.distances, skymaps.meta, overwrite=overwrite)


def write_shells(
    path: str | os.PathLike[str], shells: ShellMaps, *, overwrite: bool = False
) -> None:
    """Write columns ``MEAN_0_100PC ... STD_0_100PC ...``, one per shell.

    The header holds the edges as ``EDGE0 EDGE1 ...`` [pc]. Raises as `write_healpix`.
    """
    labels = [f"{_label(low)}_{_label(high)}" for low, high in pairwise(shells.edges)]
    columns = _columns(shells.arrays, labels, shells.unit)
    _write(path, _SHELLS, columns, shells.edges, shells.meta, overwrite=overwrite)


def read_healpix(path: str | os.PathLike[str]) -> SkyMaps:
    """Read maps that :func:`write_healpix` wrote, checksums and all (float32).

    Raises
    ------
    InputError
        If the file is absent, truncated, altered, not NESTED, not Galactic or not
        from this program.
    """
    distances, arrays, _, meta = _read(Path(path), _SKY)
    mean, std = arrays.pop("mean"), arrays.pop("std")
    return SkyMaps(distances=distances, mean=mean, std=std, quantiles=arrays, meta=meta)


def read_shells(path: str | os.PathLike[str]) -> ShellMaps:
    """Read shells that :func:`write_shells` wrote; raises as `read_healpix`."""
    edges, arrays, unit, meta = _read(Path(path), _SHELLS)
    return ShellMaps(edges=edges, arrays=arrays, unit=unit, meta=meta)


def _columns(arrays: dict[str, np.ndarray], labels: list[str], unit: str) -> list[Any]:
    if len(arrays) * len(labels) > _MOST_COLUMNS:
        raise InputError(
            f"a FITS table has room for {_MOST_COLUMNS // len(arrays)} maps of "
            f"{', '.join(arrays)}, got {len(labels)}"
        )
    return [
        _column(f"{_written(kind)}_{label}PC", values, unit)
        for kind, maps in arrays.items()
        for label, values in zip(labels, maps, strict=True)
    ]


def _column(name: str, values: np.ndarray, unit: str) -> fits.Column:
    pixels = np.asarray(values, dtype=np.float32)
    pixels = np.where(np.isnan(pixels), _UNSEEN, pixels)
    # healpy's own layout: rows of 1024 pixels, or of one pixel in small maps.
    width = _ROW if pixels.size % _ROW == 0 else 1
    return fits.Column(
        name=name, format=f"{width}E", unit=unit, array=pixels.reshape(-1, width)
    )


def _write(
    path: str | os.PathLike[str],
    layout: _Layout,
    columns: list[Any],
    distances: np.ndarray,
    meta: dict[str, Any],
    *,
    overwrite: bool,
) -> None:
    pixels = columns[0].array.size
    table = fits.BinTableHDU.from_columns(columns, name=layout.table)
    cards = {
        **_CONVENTION,
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


def _read(
    source: Path, layout: _Layout
) -> tuple[np.ndarray, dict[str, np.ndarray], str, dict[str, Any]]:
    """Distances [pc], arrays ``(n, npix)`` by name, unit and provenance."""
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
        kind_of = {_written(kind): kind for kind in KINDS}
        heads = [str(name).split("_")[0] for name in table.columns.names]
        names = [kind_of.get(head, head) for head in heads]
        units = set(table.columns.units)
        columns = np.stack([np.ravel(table.data.field(i)) for i in range(len(names))])
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
    arrays = dict(zip(kinds, maps.reshape(len(kinds), count, -1)))
    return distances, arrays, units.pop(), meta


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
