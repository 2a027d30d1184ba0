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
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.query.map import open_map

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

    Parameters
    ----------
    path, samples
        As for `pipelines.query.open_map`.
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
        path: str | Path,
        *,
        samples: str | Path | None = None,
        integrated: bool | None = None,
        seed: int = 0,
        quantity: bool = True,
    ) -> None:
        super().__init__()
        self.map = open_map(path, samples=samples)
        self.integrated, self._quantity = integrated, quantity
        self._rng = np.random.default_rng(seed)

    def query(
        self,
        coords: SkyCoord,
        mode: str = "mean",
        integrated: bool | None = None,
        **options: Any,
    ) -> Any:
        """Query the map at coordinates: see `pipelines.query.map.DustMap.query`.

        ``query_gal(l, b, d)`` and ``query_equ(ra, dec, d)`` take degrees and kpc.
        """
        chosen = self.integrated if integrated is None else integrated
        options = {"rng": self._rng, **options}
        answer = self.map.query(coords, integrated=chosen, mode=mode, **options)
        if self._quantity:
            return answer
        if options.get("return_flags"):
            return answer[0].value, answer[1]
        return answer.value
