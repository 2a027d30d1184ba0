"""Mean density in HEALPix shells as a FITS table that healpy reads."""

from __future__ import annotations

import os
from itertools import pairwise

from pipelines.base.errors import InputError
from pipelines.formats.pixels import distance_label, read_pixels, write_pixels
from pipelines.maps.shells import ShellMaps

TABLE = "SHELLS"
_SUMMARY = "Mean density in each HEALPix pixel between the distances EDGE0, EDGE1, ..."


def write_shells(
    path: str | os.PathLike[str], shells: ShellMaps, *, overwrite: bool = False
) -> None:
    """Write one float32 column per shell for the mean, then for the std.

    Columns are ``MEAN_0_100PC ... STD_0_100PC ...`` and of a positive density
    ``P16_… P50_… P84_…``, the header holds the edges as ``EDGE0 EDGE1 ...`` [pc]: with
    n shells, ``healpy.read_map(path, nest=None, field=i)`` is the mean density between
    ``EDGEi`` and ``EDGE{i+1}``, and ``field=n+i`` its std.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, cannot be written, or there are
        more shells than a table has columns for.
    """
    labels = [distance_label(edge) for edge in shells.edges]
    write_pixels(
        path,
        TABLE,
        [f"{low}_{high}" for low, high in pairwise(labels)],
        shells.arrays,
        {
            f"EDGE{number}": (float(edge), "[pc] between two shells")
            for number, edge in enumerate(shells.edges)
        },
        unit=shells.unit,
        meta=shells.meta,
        summary=_SUMMARY,
        overwrite=overwrite,
    )


def read_shells(path: str | os.PathLike[str]) -> ShellMaps:
    """Read shells that :func:`write_shells` wrote, checksums and all (float32).

    Raises
    ------
    InputError
        If the file is absent, truncated, altered or holds no shells of this program.
    """
    edges, arrays, unit, meta = read_pixels(path, TABLE, "EDGE", edges=True)
    try:
        return ShellMaps(edges=edges, arrays=arrays, unit=unit, meta=meta)
    except ValueError as error:
        raise InputError(f"{path} holds no shells: {error}") from error
