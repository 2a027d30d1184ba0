r"""A map continued by another one where it ends, without a jump.

Along each sight line the map answers as far as it is trusted, to the distance e: to the
edge of its box, or to the end of the last stretch that any star looks through. Beyond,

.. math:: A(d) = A_\mathrm{own}(e) + \max(A_\mathrm{other}(d) - A_\mathrm{other}(e), 0),

which is continuous at e for the mean, every quantile and every sample. The other map's
error is not known: the std is that of the map's own part. The density at a place is the
other's where the map has none, or where no sight line crosses the cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord
from numpy.lib import recfunctions

from pipelines.base.errors import InputError
from pipelines.others import BEYOND, NOTHING, OtherMap
from pipelines.query.map import DustMap
from pipelines.query.places import Places, places_of

_NO_TOTAL = "total=True ends at the edge of the map itself: do not fill that map"
_OWN = (
    "distances of an extinction, and beams, are those of the map itself: ask it "
    "without the one that fills it"
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FilledMap:
    """A map that another one continues; it is asked as `DustMap` is.

    Parameters
    ----------
    own, other
        The map and the one that continues it, in the band of the first.
    beyond
        ``box``: where the map's box ends; ``stars``: where, nearer, no star looks.
    """

    own: DustMap
    other: OtherMap
    beyond: str = "box"

    def __post_init__(self) -> None:
        if self.beyond not in BEYOND:
            raise InputError(
                f"a map is filled beyond {' or '.join(BEYOND)}, got {self.beyond!r}"
            )

    def __repr__(self) -> str:
        return f"{self.own!r}\n  filled beyond its {self.beyond} by another map"

    @property
    def band(self) -> str:
        """The band of the extinction."""
        return self.own.band

    @property
    def path(self) -> Path:
        """What the map itself was opened from."""
        return self.own.path

    @property
    def has_samples(self) -> bool:
        """Whether posterior samples answer."""
        return self.own.has_samples

    def query(
        self,
        coords: SkyCoord,
        *,
        integrated: bool | None = None,
        mode: str = "mean",
        return_flags: bool = False,
        **options: Any,
    ) -> Any:
        """As `DustMap.query`; flags have two more fields.

        ``filled``: the answer, or its far part, is the other map's; ``joined``: its
        near part is the map's own. Where ``filled`` the std is that of the near part,
        NaN where there is none.

        Raises
        ------
        InputError
            As `DustMap.query`, and with ``total``, since the other map has no edge.
        """
        if options.get("total"):
            raise InputError(_NO_TOTAL)
        parts = self._parts(coords, integrated)
        asked = {"integrated": integrated, "mode": mode, "return_flags": True}
        answer, flags = self.own.query(parts.near, **asked, **options)
        whole = parts.fill(answer, error=mode == "std")
        return (whole, parts.flags(flags, whole)) if return_flags else whole

    def summary(
        self, coords: SkyCoord, *, integrated: bool | None = None, total: bool = False
    ) -> tuple[dict[str, u.Quantity], np.ndarray]:
        """As `DustMap.summary`."""
        if total:
            raise InputError(_NO_TOTAL)
        parts = self._parts(coords, integrated)
        answers, flags = self.own.summary(parts.near, integrated=integrated)
        found = {n: parts.fill(a, error=n == "std") for n, a in answers.items()}
        return found, parts.flags(flags, found["mean"])

    def distance_at(self, coords: SkyCoord, extinction: Any, **options: Any) -> Any:
        """Refused: the other map's curves have no error.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(_OWN)

    def beam(self, coords: SkyCoord, beam: Any, **options: Any) -> Any:
        """Refused, as `distance_at`."""
        raise InputError(_OWN)

    def _parts(self, coords: SkyCoord, integrated: bool | None) -> _Parts:
        """Where the map itself is asked, and what the other one puts or adds."""
        places = places_of(coords)
        far = np.isfinite(places.distance)
        if not integrated:
            inside = self.own.source.box.contains(places.positions()) & far
            filled = far & ~inside
            filled[inside] = self.own.source.unseen(places.select(inside))
            put = np.full(len(places), np.nan)
            if filled.any():
                put[filled] = self.other.density(places.select(filled).positions())
            # Where the other knows nothing the map answers as it does.
            filled &= np.isfinite(put)
            return _Parts(places, places, filled, filled, put)
        ends = self.own.source.reach(places)
        if self.beyond == "stars":
            ends = np.minimum(ends, self.own.source.last_star(places))
        filled, starts = far & (places.distance > ends), np.maximum(ends, NOTHING)
        near = places.at(np.where(filled, starts, places.distance))
        alone = filled & (ends <= NOTHING)
        put = np.full(len(places), np.nan)
        some, begin = places.select(filled), starts[filled]
        if len(some):
            put[filled] = self.other.added(some.directions, begin, some.distance)
        return _Parts(places, near, filled, alone, put)


class _Parts(NamedTuple):
    """Places, where the map itself is asked, and what the other one adds.

    ``filled`` are the rows it adds to, ``alone`` those that are its alone.
    """

    places: Places
    own: Places
    filled: np.ndarray
    alone: np.ndarray
    put: np.ndarray

    @property
    def near(self) -> SkyCoord:
        """Galactic coordinates at which the map itself is asked."""
        return SkyCoord(
            l=self.own.l * u.deg,
            b=self.own.b * u.deg,
            distance=self.own.distance * u.pc,
            frame="galactic",
        )

    def fill(self, answer: u.Quantity, *, error: bool) -> u.Quantity:
        """The map's own answers, flat, with the other's; of an ``error`` nothing."""
        values = np.array(answer.value)
        values[self.alone] = np.nan if error else 0.0
        # Beyond both maps nothing is known, nor an error.
        values[self.filled & ~np.isfinite(self.put)] = np.nan
        if not error:
            added = self.put[self.filled]
            values[self.filled] += added.reshape(-1, *[1] * (values.ndim - 1))
        return u.Quantity(self.places.restore(values), answer.unit, copy=False)

    def flags(self, flags: np.ndarray, answer: u.Quantity) -> np.ndarray:
        """The map's own flags, flat, with ``filled`` and ``joined``."""
        values = answer.value.reshape(len(self.places), -1)
        known = self.filled & np.isfinite(values).all(axis=1)
        flags["inside"] = np.where(self.filled, known, flags["inside"])
        for name in ("extrapolated", "unseen"):
            # Those of the edge of the map, where it was asked, are not the place's.
            flags[name] &= ~self.filled
        more = {"filled": known, "joined": known & ~self.alone}
        flags = recfunctions.append_fields(
            flags, list(more), list(more.values()), usemask=False
        )
        return self.places.restore(flags)
