"""A map with the call signature of the package ``mwdust`` (Bovy et al. 2016).

Needs ``pip install mwdust``. Population-synthesis codes that take one of its maps take
this one: ``dust(l, b, d)`` with degrees and kpc.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import healpy
import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.bands import wanted_conversion
from pipelines.base.errors import InputError
from pipelines.query.filling import FilledMap
from pipelines.query.map import DustMap
from pipelines.query.opening import open_map

try:
    with warnings.catch_warnings():
        # Of escapes in its texts, when it is first compiled.
        warnings.simplefilter("ignore")
        from mwdust.DustMap3D import DustMap3D as _Base
        from mwdust.util.extCurves import aebv
except ImportError as error:
    raise InputError(
        "maps for the package mwdust need it installed: pip install mwdust"
    ) from error

# HEALPix resolution of a disc's pixels.
_NSIDE = 512
# What that package calls the extinction without a filter, on the scale of SFD98.
_COLOUR_EXCESS = "E(B-V)"


class MwdustMap(_Base):
    """A map store, another export or a run folder as an `mwdust` map.

    Parameters
    ----------
    path
        As of `pipelines.query.open_map`; or a map that is open, such as one that
        another continues (`dustmap.fill`).
    filter
        A filter of ``mwdust`` such as ``2MASS H``; E(B-V) on the scale of Schlegel,
        Finkbeiner & Davis (1998), as its own maps give, if ``None``.
    sf10
        Whether filters are those of Schlafly & Finkbeiner (2011).
    mode
        Of `pipelines.query.map.DustMap.query`: ``mean`` or ``median``.
    declare_band
        The band of the map, where it is not known.
    """

    def __init__(
        self,
        path: str | Path | DustMap | FilledMap,
        filter: str | None = None,
        sf10: bool = True,
        *,
        mode: str = "mean",
        declare_band: str | None = None,
    ) -> None:
        super().__init__(filter=filter)
        self.map = open_map(path) if isinstance(path, str | Path) else path
        self._mode = mode
        meta = {"extinction_band": self.map.band}
        change = wanted_conversion(meta, _COLOUR_EXCESS, declare_band)
        excess = 1.0 if change is None else change.factor
        # That package multiplies SFD98's E(B-V), of which 0.884 is the colour excess.
        scale = 1.0 if filter is None else float(aebv(filter, sf10=sf10))
        self._factor = excess * scale / float(aebv(_COLOUR_EXCESS))
        if not np.isfinite(self._factor):
            raise InputError(
                f"mwdust has no coefficient of {filter!r} with sf10={sf10}: choose the "
                "other one"
            )

    def _evaluate(self, l: Any, b: Any, d: Any) -> np.ndarray:  # noqa: E741
        """Extinction at Galactic ``l, b`` [deg] and distances [kpc]; NaN outside."""
        lon, lat, far = np.broadcast_arrays(l, b, d)
        coords = SkyCoord(
            l=lon * u.deg, b=lat * u.deg, distance=far * u.kpc, frame="galactic"
        )
        found = self.map.query(coords, integrated=True, mode=self._mode)
        return self._factor * found.value

    def dust_vals_disk(
        self, lcen: float, bcen: float, dist: Any, radius: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Areas [sr] ``(p,)`` of a disc's pixels, and extinctions ``(p, len(dist))``.

        ``dist`` in kpc, angles in degrees.
        """
        centre = healpy.ang2vec(lcen, bcen, lonlat=True)
        pixels = healpy.query_disc(_NSIDE, centre, np.deg2rad(radius))
        lon, lat = healpy.pix2ang(_NSIDE, pixels, lonlat=True)
        far = np.atleast_1d(np.asarray(dist, dtype=np.float64))
        values = self._evaluate(lon[:, None], lat[:, None], far[None])
        area = np.full(len(pixels), healpy.nside2pixarea(_NSIDE))
        return area, values
