"""Coverage of maps on the sky as multi-order coverage maps (IVOA MOC 2.0), ICRS.

Needs ``pip install 'dustmap[moc]'``. A cell has half the side of the map's pixels, and
is covered where its centre lies in a pixel with a value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from astropy import units as u
from astropy.coordinates import ICRS, Galactic, SkyCoord

from pipelines.base.errors import InputError
from pipelines.cubes.sky import SkyMaps
from pipelines.storage.atomic import AnyPath, atomic_file


def moc_path(path: Path, distance: str) -> Path:
    """Return ``map.healpix.500pc.moc.fits`` for ``map.healpix.fits``."""
    return path.with_name(f"{path.stem}.{distance}pc.moc.fits")


def write_mocs(
    path: AnyPath, skymaps: SkyMaps, *, overwrite: bool = False
) -> list[Path]:
    """Write a MOC for each distance beside ``path``, and return their paths.

    Its header holds the distance as ``DIST`` [pc], and the band as ``EXTBAND``.

    Raises `InputError` if mocpy is not installed, or a file exists and ``overwrite`` is
    false, or cannot be written.
    """
    try:
        from mocpy import MOC
    except ImportError as error:
        raise InputError(
            "--moc needs the package mocpy: pip install 'dustmap[moc]'"
        ) from error
    import healpy

    nside = 2 * skymaps.nside
    cells = np.arange(12 * nside**2, dtype=np.uint64)
    lon, lat = healpy.pix2ang(nside, cells.astype(np.int64), nest=True, lonlat=True)
    sky: Any = SkyCoord(lon * u.deg, lat * u.deg, frame=ICRS).transform_to(Galactic())
    pixels = healpy.ang2pix(skymaps.nside, sky.l.deg, sky.b.deg, nest=True, lonlat=True)
    order, written = int(nside).bit_length() - 1, []
    for distance, values in zip(skymaps.distances, skymaps.mean, strict=True):
        moc = MOC.from_healpix_cells(cells[np.isfinite(values)[pixels]], order, order)
        target = moc_path(Path(path), np.format_float_positional(distance, trim="-"))
        band = skymaps.meta.get("extinction_band", "")
        cards = {"DIST": str(float(distance)), "EXTBAND": band}
        with atomic_file(target, overwrite=overwrite) as temporary:
            moc.save(str(temporary), "fits", overwrite=True, fits_keywords=cards)
        written.append(target)
    return written
