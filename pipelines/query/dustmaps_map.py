"""A map with the interface of the package ``dustmaps``, as for Bayestar.

>>> from pipelines.query.dustmaps_map import DustmapQuery             # doctest: +SKIP
>>> DustmapQuery("map.zarr", integrated=True).query_gal(90, 5, 0.4)   # doctest: +SKIP

Needs ``pip install 'dustmap[dustmaps]'``. That package's warning about a missing
configuration is suppressed: only maps that it downloads need one.
"""

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
        warnings.filterwarnings("ignore", r"\s*Configuration file not found")
        from dustmaps.map_base import DustMap as _Base
except ImportError as error:
    raise InputError(
        "the classes of the package dustmaps need it installed: "
        "pip install 'dustmap[dustmaps]'"
    ) from error


class DustmapQuery(_Base):
    """A map store or run folder as a `dustmaps` map.

    One place gives a scalar. Threads may share a query, and its pickled copies open the
    map again.

    Parameters
    ----------
    path
        As for `pipelines.query.open_map`; or an opened map.
    integrated
        Default of queries: True for extinctions [mag], False for densities [mag/pc].
        Without a default every query needs its own.
    seed
        Seed of ``mode="random_sample"``; each query draws anew.
    quantity
        False for plain numbers, as most maps of that package return.
    """

    def __init__(
        self,
        path: str | Path | DustMap,
        *,
        integrated: bool | None = None,
        seed: int = 0,
        quantity: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(path, DustMap):
            path = open_map(path)
        self.map = path
        self.integrated, self._quantity = integrated, quantity
        self._rng = np.random.default_rng(seed)

    def query(
        self,
        coords: SkyCoord,
        mode: str = "mean",
        integrated: bool | None = None,
        **options: Any,
    ) -> Any:
        """Query the map at coordinates: see `pipelines.query.map.DustMap.query`."""
        chosen = self.integrated if integrated is None else integrated
        options = {"rng": self._rng, **options}
        answer = self.map.query(coords, integrated=chosen, mode=mode, **options)
        if self._quantity:
            return answer
        if options.get("return_flags"):
            return answer[0].value, answer[1]
        return answer.value

    def query_gal(self, l: Any, b: Any, d: Any = None, **options: Any) -> Any:  # noqa: E741
        """Query at Galactic ``l, b`` [deg] and distances [kpc], or quantities."""
        return self.query(_coordinates("galactic", l, b, d), **options)

    def query_equ(
        self, ra: Any, dec: Any, d: Any = None, frame: str = "icrs", **options: Any
    ) -> Any:
        """Query at equatorial ``ra, dec`` [deg] and distances [kpc], or quantities.

        ``frame`` is ``icrs``, ``fk5`` (J2000), ``fk4`` or ``fk4noeterms`` (B1950). The
        package's own method accepts these names, and takes all places for ICRS.
        """
        if frame not in (known := ("icrs", "fk5", "fk4", "fk4noeterms")):
            raise InputError(f"frame: expected one of {known}, got {frame!r}")
        return self.query(_coordinates(frame, ra, dec, d), **options)


def _coordinates(frame: str, lon: Any, lat: Any, distance: Any) -> SkyCoord:
    """Return coordinates with NaN for masked values."""
    given = [numbers(angle, u.deg) for angle in (lon, lat)]
    given += [] if distance is None else [numbers(distance, u.kpc)]
    try:
        first, second, *far = np.broadcast_arrays(*given)
    except ValueError as error:
        shapes = ", ".join(str(part.shape) for part in given)
        raise InputError(
            f"angles and distances have shapes {shapes}: expected one shape, or single "
            "values"
        ) from error
    extra = {"distance": far[0] * u.kpc} if far else {}
    return SkyCoord(first * u.deg, second * u.deg, frame=frame, **extra)
