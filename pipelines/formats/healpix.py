"""Cumulative extinction on the sky as a HEALPix FITS table that healpy reads."""

from __future__ import annotations

import os

from pipelines.base.errors import InputError
from pipelines.formats.pixels import distance_label, read_pixels, write_pixels
from pipelines.maps.cube import SkyMaps

TABLE = "EXTINCTION"
_SUMMARY = "Cumulative extinction from the Sun to each distance DISTi"


def write_healpix(
    path: str | os.PathLike[str], skymaps: SkyMaps, *, overwrite: bool = False
) -> None:
    """Write one float32 column [mag] per distance for the mean, then for the std.

    Columns are ``MEAN_500PC ... STD_500PC ...`` (``P`` for a decimal point) and the
    header holds ``DIST1 ...`` [pc] in their order: with n distances,
    ``healpy.read_map(path, nest=None, field=i)`` is the mean to ``DIST{i+1}`` and
    ``field=n+i`` its standard deviation. Pixels are NESTED, Galactic; what is NaN in
    ``skymaps`` is healpy's UNSEEN in the file. Quantiles are columns ``P16_500PC ...``
    from ``field=2n`` on, in the order p16, p50, p84.

    Raises
    ------
    InputError, ValueError
        As :func:`pipelines.formats.pixels.write_pixels`.
    """
    labels = [distance_label(distance) for distance in skymaps.distances]
    numbered = enumerate(zip(skymaps.distances, labels), start=1)
    write_pixels(
        path,
        TABLE,
        labels,
        skymaps.arrays,
        {
            f"DIST{i}": (float(d), f"[pc] of MEAN_{label}PC")
            for i, (d, label) in numbered
        },
        unit="mag",
        meta=skymaps.meta,
        summary=_SUMMARY,
        overwrite=overwrite,
    )


def read_healpix(path: str | os.PathLike[str]) -> SkyMaps:
    """Read maps that :func:`write_healpix` wrote, checksums and all (float32).

    Raises
    ------
    InputError
        If the file is absent, truncated, altered, not NESTED, not Galactic or not
        from this program.
    """
    distances, maps, _, meta = read_pixels(path, TABLE, "DIST")
    mean, std = maps.pop("mean"), maps.pop("std")
    try:
        return SkyMaps(
            distances=distances, mean=mean, std=std, quantiles=maps, meta=meta
        )
    except ValueError as error:
        raise InputError(f"{path} holds no sky maps: {error}") from error
