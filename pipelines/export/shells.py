"""Mean density in HEALPix shells as a FITS table that healpy reads."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from astropy.io import fits

from pipelines.errors import InputError
from pipelines.export.hdus import (
    empty_primary,
    open_checked,
    read_provenance,
    write_hdus,
)
from pipelines.export.pixels import (
    MOST_COLUMNS,
    describe_pixels,
    distance_label,
    numbered_cards,
    pixel_column,
    pixel_values,
    require_convention,
)

TABLE = "SHELLS"
_SUMMARY = "Mean density in each HEALPix pixel between the distances EDGE0, EDGE1, ..."
_KINDS = ("mean", "std", "p16", "p50", "p84")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellMaps:
    """Density averaged over the pixels of spherical shells around the observer.

    Parameters
    ----------
    edges
        Increasing distances [pc] between which the shells lie, shape ``(n + 1,)``.
    arrays
        Name to array of shape ``(n, npix)`` [unit], HEALPix NESTED in Galactic
        coordinates: ``mean``, ``std`` of the average, and of a positive density its
        quantiles ``p16``, ``p50``, ``p84``; NaN where a pixel reaches out of the map.
    unit
        Of the arrays.
    meta
        Provenance: JSON-serialisable.
    """

    edges: np.ndarray
    arrays: dict[str, np.ndarray]
    unit: str = "mag pc-1"
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_edges(self.edges)
        if tuple(self.arrays) not in (_KINDS[:2], _KINDS):
            raise ValueError(
                f"arrays must be mean, std and maybe p16, p50, p84, got "
                f"{', '.join(self.arrays)}"
            )
        shapes = {array.shape for array in self.arrays.values()}
        npix = self.arrays["mean"].shape[-1]
        nside = math.isqrt(npix // 12)
        if shapes != {(len(self.edges) - 1, 12 * nside**2)} or nside & (nside - 1):
            raise ValueError(
                f"arrays have shapes {sorted(shapes)}; expected "
                f"({len(self.edges) - 1}, 12 nside²) with nside a power of two (NESTED)"
            )

    @property
    def nside(self) -> int:
        """HEALPix resolution."""
        return math.isqrt(self.arrays["mean"].shape[1] // 12)


def check_edges(edges: np.ndarray) -> None:
    """Raise a ValueError unless these are two or more increasing distances."""
    sound = edges.ndim == 1 and len(edges) > 1 and bool(np.isfinite(edges).all())
    if not sound or edges[0] < 0 or not (np.diff(edges) > 0).all():
        raise ValueError(
            "shells lie between two or more increasing distances from 0 on [pc], got "
            f"{np.asarray(edges).tolist()}"
        )


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
    count = len(shells.edges) - 1
    if len(shells.arrays) * count > MOST_COLUMNS:
        raise InputError(
            f"a FITS table has room for {MOST_COLUMNS // len(shells.arrays)} shells of "
            f"{', '.join(shells.arrays)}, got {count}"
        )
    labels = [distance_label(edge) for edge in shells.edges]
    columns = [
        pixel_column(f"{name.upper()}_{low}_{high}PC", values, shells.unit)
        for name, array in shells.arrays.items()
        for low, high, values in zip(labels[:-1], labels[1:], array, strict=True)
    ]
    table = fits.BinTableHDU.from_columns(columns, name=TABLE)
    describe_pixels(table.header, shells.arrays["mean"].shape[1])
    for number, edge in enumerate(shells.edges):
        table.header[f"EDGE{number}"] = (float(edge), "[pc] between two shells")
    primary = empty_primary(shells.meta, _SUMMARY)
    write_hdus(path, fits.HDUList([primary, table]), overwrite=overwrite)


def read_shells(path: str | os.PathLike[str]) -> ShellMaps:
    """Read shells that :func:`write_shells` wrote, checksums and all (float32).

    Raises
    ------
    InputError
        If the file is absent, truncated, altered or holds no shells of this program.
    """
    source = Path(path)
    with open_checked(source) as hdus:
        meta = read_provenance(hdus[0].header, source)
        if len(hdus) != 2 or hdus[1].name != TABLE:
            raise InputError(f"{source}: expected one HEALPix table named {TABLE}")
        table = hdus[1]
        require_convention(table.header, source)
        edges = numbered_cards(table.header, "EDGE", first=0)
        names = [name.split("_")[0].lower() for name in table.columns.names]
        maps = [pixel_values(table, index) for index in range(len(names))]
        units = set(table.columns.units)
    count = max(len(edges) - 1, 1)
    kinds = list(dict.fromkeys(names))
    if names != [kind for kind in kinds for _ in range(count)] or len(units) != 1:
        raise InputError(
            f"{source}: {len(names)} columns of {', '.join(kinds)} in "
            f"{len(units)} units for {count} shells between EDGEi"
        )
    stacks = [np.stack(maps[i : i + count]) for i in range(0, len(maps), count)]
    try:
        return ShellMaps(
            edges=edges,
            arrays=dict(zip(kinds, stacks, strict=True)),
            unit=units.pop(),
            meta=meta,
        )
    except ValueError as error:
        raise InputError(f"{source} holds no shells: {error}") from error
