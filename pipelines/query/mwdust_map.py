"""A map with the call signature of the package ``mwdust`` (Bovy et al. 2016)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.base.quantities import numbers
from pipelines.query.map import DustMap, open_map

try:
    with warnings.catch_warnings():
        # Its strings hold invalid escapes, reported at first compilation.
        warnings.simplefilter("ignore")
        from mwdust.DustMap3D import DustMap3D as _Base
        from mwdust.util.extCurves import aebv
except ImportError as error:
    raise InputError(
        "maps for the package mwdust need it installed: pip install mwdust"
    ) from error


class MwdustMap(_Base):
    """A map to call as ``dust(l, b, d)`` with degrees and kpc.

    Extinctions are in a ``filter`` of ``mwdust`` such as ``2MASS H``, with ``sf10`` by
    Schlafly & Finkbeiner (2011); without a filter they are E(B-V) on the scale of
    Schlegel, Finkbeiner & Davis (1998). ``declare_band`` is the map's band if unknown.
    """

    def __init__(
        self,
        path: str | Path | DustMap,
        filter: str | None = None,
        sf10: bool = True,
        *,
        declare_band: str | None = None,
    ) -> None:
        super().__init__(filter=filter)
        dust = open_map(path) if isinstance(path, str | Path) else path
        self.map = dust.in_band("E(B-V)", declare_band)
        # That package multiplies SFD98's E(B-V); 0.884 of it is the colour excess.
        scale = 1.0 if filter is None else float(aebv(filter, sf10=sf10))
        self._factor = scale / float(aebv("E(B-V)"))
        if not np.isfinite(self._factor):
            raise InputError(
                f"mwdust has no coefficient of {filter!r} with sf10={sf10}: use the "
                "other value of sf10"
            )

    def _evaluate(self, l: Any, b: Any, d: Any) -> np.ndarray:  # noqa: E741
        """Return extinctions at Galactic ``l, b`` [deg] and distances [kpc]."""
        lon, lat, far = (
            numbers(part, unit) * unit
            for part, unit in ((l, u.deg), (b, u.deg), (d, u.kpc))
        )
        coords = SkyCoord(lon, lat, distance=far, frame="galactic")
        return self._factor * self.map.query(coords, integrated=True).value
