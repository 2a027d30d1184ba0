"""Maps on HEALPix pixels as FITS tables for healpy: Galactic, float32.

Pixels are in NESTED order in memory, and in the order of ``ORDERING`` in files.

With n maps, ``healpy.read_map(path, nest=None, field=i)`` is the mean of map i,
``field=n+i`` its standard deviation, and for a positive density the fields from ``2n``
on are its quantiles p2_5, p16, p50, p84 and p97_5 (columns ``P2P5_500PC ...``). The
last field of extinctions is the distance of the last stars, ``LAST_STAR`` [pc]. NaN in
memory is healpy's UNSEEN. Answers between distances are linear in the distance, with
the error of that (`PixelRays.between`).
"""

from __future__ import annotations

from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from astropy.io import fits

from pipelines.base.errors import InputError
from pipelines.base.quantiles import KINDS
from pipelines.cubes.sky import SkyMaps
from pipelines.formats.fits import (
    filled_by_another,
    open_checked,
    read_provenance,
    write_hdus,
)
from pipelines.storage.atomic import AnyPath

ORDERINGS = ("nested", "ring")
_TABLE = "EXTINCTION"
_LAST_STAR = "LAST_STAR"
_UNSEEN = np.float32(-1.6375e30)
_CONVENTION = {"PIXTYPE": "HEALPIX", "COORDSYS": "G"}


def write_healpix(
    path: AnyPath,
    skymaps: SkyMaps,
    *,
    ordering: str = "nested",
    overwrite: bool = False,
) -> None:
    """Write columns ``MEAN_500PC ... STD_500PC ...`` [mag] (``P``: decimal point).

    The header holds ``DIST1 ...`` [pc] in their order; ``ordering`` of the pixels is
    ``nested`` or ``ring``.

    Raises `InputError` if ``path`` exists and ``overwrite`` is false, or cannot be
    written, or the maps need more than the 999 columns of a FITS table; `ValueError` if
    the provenance is not JSON.
    """
    if ordering not in ORDERINGS:
        raise InputError(f"ordering must be {' or '.join(ORDERINGS)}, got {ordering!r}")
    positional = (np.format_float_positional(d, trim="-") for d in skymaps.distances)
    labels = [text.replace(".", "P") for text in positional]
    # The FITS standard allows 999 columns.
    room = (999 - (skymaps.last_star is not None)) // len(skymaps.arrays)
    if len(labels) > room:
        raise InputError(
            f"a FITS table has room for {room} maps of {', '.join(skymaps.arrays)}, "
            f"got {len(labels)}"
        )
    columns = {
        f"{_head(kind)}_{label}PC": (values, "mag")
        for kind, maps in skymaps.arrays.items()
        for label, values in zip(labels, maps, strict=True)
    }
    if skymaps.last_star is not None:
        columns[_LAST_STAR] = (skymaps.last_star, "pc")
    pixels = 12 * skymaps.nside**2
    # healpy's own layout: rows of 1024 pixels, or of one pixel in small maps.
    width = 1024 if pixels % 1024 == 0 else 1
    written = []
    for name, (values, unit) in columns.items():
        stored = np.asarray(values, dtype=np.float32)
        if ordering == "ring":
            import healpy

            stored = healpy.reorder(stored, n2r=True)
        rows = np.where(np.isnan(stored), _UNSEEN, stored).reshape(-1, width)
        written.append(fits.Column(name, format=f"{width}E", unit=unit, array=rows))
    table = fits.BinTableHDU.from_columns(written, name=_TABLE)
    cards = {
        **_CONVENTION,
        "ORDERING": (ordering.upper(), "of the pixels"),
        "NSIDE": (skymaps.nside, "resolution parameter"),
        "FIRSTPIX": (0, "first pixel (0 based)"),
        "LASTPIX": (pixels - 1, "last pixel (0 based)"),
        "INDXSCHM": ("IMPLICIT", "indexing: IMPLICIT or EXPLICIT"),
        "OBJECT": ("FULLSKY", "sky coverage"),
        "BAD_DATA": (float(_UNSEEN), "value of pixels without a map"),
    }
    for number, distance in enumerate(skymaps.distances, start=1):
        cards[f"DIST{number}"] = (float(distance), "[pc]")
    table.header.update(cards)
    summary = "Cumulative extinction from the Sun to each distance DISTi"
    write_hdus(path, [table], skymaps.meta, summary, overwrite=overwrite)


def read_healpix(path: AnyPath) -> SkyMaps:
    """Read maps by :func:`write_healpix`, with checksums (float32).

    Raises `InputError` if the file is absent, truncated, altered, not Galactic or not
    from this program.
    """
    source = Path(path)
    with open_checked(source) as hdus:
        meta = read_provenance(hdus[0].header, source)
        if len(hdus) != 2 or hdus[1].name != _TABLE:
            raise InputError(f"{source}: expected one HEALPix table named {_TABLE}")
        table, header = hdus[1], hdus[1].header
        expected = {keyword: [value] for keyword, value in _CONVENTION.items()}
        expected["ORDERING"] = [ordering.upper() for ordering in ORDERINGS]
        for keyword, known in expected.items():
            if (found := header.get(keyword)) not in known:
                raise InputError(
                    f"{source}: {keyword} is {found!r}, expected {' or '.join(known)}"
                )
        cards = takewhile(header.__contains__, map("DIST{}".format, count(1)))
        distances = np.array([float(header[card]) for card in cards])
        every: Any = None
        import healpy

        values = healpy.read_map(table, field=every, nest=True)
        values = np.where(values == _UNSEEN, np.float32(np.nan), values)
        columns = dict(zip(table.columns.names, values, strict=True))
    last_star = columns.pop(_LAST_STAR, None)
    maps, kind_of = len(distances), {_head(kind): kind for kind in KINDS}
    heads = [str(name).split("_")[0] for name in columns]
    if "FILLED" in heads:
        raise filled_by_another(source, meta)
    names = [kind_of.get(head, head) for head in heads]
    kinds = tuple(dict.fromkeys(names))
    ordered = names == [kind for kind in kinds for _ in range(maps)]
    if kinds not in (KINDS[:1], KINDS[:2], KINDS) or not ordered:
        raise InputError(
            f"{source}: {len(names)} columns of {', '.join(kinds)} for {maps} maps; "
            "expected a mean for each, and maybe a std and quantiles"
        )
    stacked = np.stack(list(columns.values())).reshape(len(kinds), maps, -1)
    return SkyMaps(
        distances=distances,
        arrays=dict(zip(kinds, stacked)),
        last_star=None if last_star is None else last_star.astype(np.float64),
        meta=meta,
    )


def _head(kind: str) -> str:
    """Return the beginning of a column's name for a statistic."""
    return kind.upper().replace("_", "P")
