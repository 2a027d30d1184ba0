"""A map among those of the package ``dustmaps``: the same calls as for Bayestar.

>>> from pipelines.query import dustmaps_map                    # doctest: +SKIP
>>> dustmaps_map.register()                                     # doctest: +SKIP
>>> from dustmaps.dustmap import DustmapQuery, fetch            # doctest: +SKIP
>>> fetch("near", registry="https://example.org/maps.toml")     # doctest: +SKIP
>>> DustmapQuery("near", integrated=True).query_gal(90, 5, 0.4) # doctest: +SKIP

Needs ``pip install 'dustmap[dustmaps]'``. That package warns if it has no
configuration; only maps that it downloads need one, so that this warning is left out.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.query.map import open_map
from pipelines.storage.fetching import fetch as run_fetch
from pipelines.storage.fetching import read_registry

try:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*Configuration file not found")
        from dustmaps.map_base import DustMap as _Base
        from dustmaps.std_paths import data_dir
except ImportError as error:
    raise InputError(
        "the classes of the package dustmaps need it installed: "
        "pip install 'dustmap[dustmaps]'"
    ) from error


def register() -> None:
    """Make this module ``dustmaps.dustmap``, for imports and ``dustmaps:dustmap``."""
    import dustmaps

    module = sys.modules[__name__]
    sys.modules["dustmaps.dustmap"] = module
    dustmaps.__dict__["dustmap"] = module


def fetch(name: str, registry: str, *, clobber: bool = False) -> Path:
    """Download a published map into the folder where that package keeps its data.

    ``name`` and ``registry`` are those of ``dustmap fetch``; with ``clobber`` it is
    fetched again if it is there. Return its path; `DustmapQuery` opens it by its name.

    Raises
    ------
    InputError
        If the registry has no such map, or the file is not the one it names.
    """
    maps = read_registry(registry)
    if name not in maps:
        raise InputError(f"{registry} has no map {name!r}; it has {', '.join(maps)}")
    place = _kept(name)
    if place.exists() and not clobber:
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    return run_fetch(maps[name], place, overwrite=clobber)


def _kept(name: str) -> Path:
    return Path(data_dir()) / "dustmap" / name


class DustmapQuery(_Base):
    """A map store or run folder as a `dustmaps` map.

    Parameters
    ----------
    path, samples
        As of `pipelines.query.open_map`; a name that was fetched stands for its map.
    integrated
        True for extinctions [mag], False for densities [mag/pc], in every query that
        does not say. Where neither does, a query is an error.
    seed
        Of the choices of ``mode="random_sample"``: each query makes another.
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
        fetched = _kept(str(path))
        place = fetched if fetched.exists() and not Path(path).exists() else path
        self.map = open_map(place, samples=samples)
        self.integrated, self._quantity = integrated, quantity
        self._rng = np.random.default_rng(seed)

    def query(
        self,
        coords: SkyCoord,
        mode: str = "mean",
        integrated: bool | None = None,
        **options: Any,
    ) -> Any:
        """Ask at coordinates: see `pipelines.query.map.DustMap.query`.

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
