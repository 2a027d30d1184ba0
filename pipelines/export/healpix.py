"""Cumulative extinction on the sky as a HEALPix FITS table that healpy reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from pipelines.export.pixels import (
    MOST_COLUMNS,
    describe_pixels,
    distance_label,
    numbered_cards,
    pixel_column,
    pixel_values,
    require_convention,
)

TABLE = "EXTINCTION"
_SUMMARY = "Cumulative extinction from the Sun to each distance DISTi"
_QUANTILES = ("p16", "p50", "p84")


def write_healpix(
    path: str | os.PathLike[str],
    skymaps: SkyMaps,
    quantiles: Mapping[str, np.ndarray] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write one float32 column [mag] per distance for the mean, then for the std.

    Columns are ``MEAN_500PC ... STD_500PC ...`` (``P`` for a decimal point) and the
    header holds ``DIST1 ...`` [pc] in their order: with n distances,
    ``healpy.read_map(path, nest=None, field=i)`` is the mean to ``DIST{i+1}`` and
    ``field=n+i`` its standard deviation. Pixels are NESTED, Galactic; what is NaN in
    ``skymaps`` is healpy's UNSEEN in the file.

    Parameters
    ----------
    quantiles
        ``p16``, ``p50`` and ``p84`` [mag] of shape ``(n, npix)``, of a positive
        density: columns ``P16_500PC ...`` from ``field=2n`` on, in this order.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or cannot be written, or there
        are more maps than the 999 columns that a FITS table has room for.
    ValueError
        If the provenance is not JSON.
    """
    labels = [f"{distance_label(d)}PC" for d in skymaps.distances]
    maps = {"mean": skymaps.mean, "std": skymaps.std, **(quantiles or {})}
    if len(maps) * len(labels) > MOST_COLUMNS:
        raise InputError(
            f"a FITS table has room for {MOST_COLUMNS // len(maps)} distances of "
            f"{', '.join(maps)}, got {len(labels)}"
        )
    columns = [
        pixel_column(f"{name.upper()}_{label}", values, "mag")
        for name, values_by_distance in maps.items()
        for label, values in zip(labels, values_by_distance, strict=True)
    ]
    table = fits.BinTableHDU.from_columns(columns, name=TABLE)
    describe_pixels(table.header, skymaps.mean.shape[1])
    for number, (distance, label) in enumerate(zip(skymaps.distances, labels), start=1):
        comment = f"[pc] of MEAN_{label}"[:45]
        table.header[f"DIST{number}"] = (float(distance), comment)
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
    distances, maps, meta = _read(Path(path))
    try:
        return SkyMaps(
            distances=distances,
            mean=maps["mean"],
            std=maps["std"],
            median=maps.get("p50"),
            meta=meta,
        )
    except ValueError as error:
        raise InputError(f"{path} holds no sky maps: {error}") from error


def read_quantiles(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The quantiles [mag] in such a file, shape ``(n, npix)`` each; may be empty."""
    _, maps, _ = _read(Path(path))
    return {name: values for name, values in maps.items() if name in _QUANTILES}


def _read(source: Path) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, Any]]:
    with open_checked(source) as hdus:
        meta = read_provenance(hdus[0].header, source)
        if len(hdus) != 2 or not isinstance(hdus[1], fits.BinTableHDU):
            raise InputError(f"{source}: expected one HEALPix table after the primary")
        table = hdus[1]
        require_convention(table.header, source)
        distances = numbered_cards(table.header, "DIST")
        names = [name.split("_")[0].lower() for name in table.columns.names]
        kinds = list(dict.fromkeys(names))
        expected = [kind for kind in kinds for _ in distances]
        if kinds not in (["mean", "std"], ["mean", "std", *_QUANTILES]) or (
            names != expected
        ):
            raise InputError(
                f"{source}: {len(names)} columns of {', '.join(kinds)} for "
                f"{len(distances)} distances DISTi; expected a mean and a std for "
                "each, and maybe p16, p50 and p84"
            )
        maps = [pixel_values(table, index) for index in range(len(names))]
    count = len(distances)
    starts = range(0, len(maps), max(count, 1))
    stacks = [np.stack(maps[start : start + count]) for start in starts]
    return distances, dict(zip(kinds, stacks, strict=True)), meta
