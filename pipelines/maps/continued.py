r"""A map continued by another one where it ends, without a jump.

Along each sight line the map answers as far as it is trusted, to the distance e: to the
edge of its box, or to the end of the last stretch that any star looks through. Beyond,

.. math:: A(d) = A_\mathrm{own}(e) + \max(A_\mathrm{other}(d) - A_\mathrm{other}(e), 0),

which is continuous at e for the mean, every quantile and every sample. The other map's
error is not known: the std is that of the map's own part. The density at a place is the
other's where the map has none, or where no sight line crosses the cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.cubes.cube import Cube
from pipelines.maps.answers import (
    EVERYWHERE,
    FILLED,
    JOINED,
    NOTHING,
    OTHER,
    OWN,
    Answers,
    Found,
    Kind,
)
from pipelines.maps.places import Places
from pipelines.run.facts import Facts

# Where another map may continue a map: beyond its box, or where no star looks.
BEYOND = ("box", "stars")


@dataclass(frozen=True, kw_only=True, repr=False)
class Continued(Answers):
    """A map that another one continues, in one band.

    It goes on beyond its ``box``, or, nearer, where no star looks (``stars``). The kind
    ``filled`` says where an answer is from: 0 the map itself, 1 the other, 2 the map
    itself with what the other adds. Where it is filled the std is that of the map's own
    part, NaN where there is none.
    """

    own: Answers
    other: Answers
    beyond: str = "box"

    def __post_init__(self) -> None:
        if self.beyond not in BEYOND:
            raise InputError(
                f"a map is filled beyond {' or '.join(BEYOND)}, got {self.beyond!r}"
            )

    @classmethod
    def of(cls, own: Answers, other: Answers, beyond: str | None = None) -> Continued:
        """Return a map continued by another one, beyond its box by default."""
        return cls(
            path=own.path,
            band=own.band,
            verdict=own.verdict,
            own=own,
            other=other,
            beyond=beyond or BEYOND[0],
        )

    @property
    def box(self) -> Box:
        """Everywhere: the other map says itself where it ends."""
        return EVERYWHERE

    @property
    def facts(self) -> Facts:
        return {**self.own.facts, "filled": f"beyond its {self.beyond} by another map"}

    @property
    def has_samples(self) -> bool:
        return self.own.has_samples

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        """Moments of the map itself, and where they are from."""
        return (*self.own.kinds(integrated=integrated), FILLED)

    def _moments(
        self, places: Places, kinds: Sequence[Kind], integrated: bool
    ) -> Found:
        """Moments of the map itself, with what the other adds or puts."""
        near, put, filled, alone = self._split(places, integrated)
        own_kinds = [kind for kind in kinds if kind != FILLED]
        own = self.own.moments(near, own_kinds, integrated=integrated)
        return _joined(own, kinds, put, filled, alone)

    def _samples(
        self, places: Places, integrated: bool, rng: np.random.Generator | None
    ) -> np.ndarray:
        near, put, filled, alone = self._split(places, integrated)
        drawn = self.own.samples(near, integrated=integrated, rng=rng)
        return _joined({"mean": drawn}, ("mean",), put, filled, alone)["mean"]

    def support(self, places: Places) -> np.ndarray:
        """Sight-line length [cells] in the cell of each place, 0 outside the map."""
        found = np.zeros(len(places))
        inside = self.own.box.contains(places.positions())
        found[inside] = self.own.support(places.select(inside))
        return found

    def last_star(self, places: Places) -> np.ndarray:
        return self.own.last_star(places)

    def reach(self, places: Places) -> np.ndarray:
        """Distance as far as which the map itself follows each sight line [pc]."""
        return self.own.reach(places)

    def _crossings(
        self, places: Places, extinction: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        # The other map's curves have no error.
        raise InputError(
            "distances of an extinction, and beams, are those of the map itself: ask "
            "it without the one that fills it"
        )

    def _cube(self) -> Cube:
        return filled_cube(self.own.cube(), self.other)

    def ends(self, places: Places) -> np.ndarray:
        """Distance to which the map itself is trusted along each sight line [pc]."""
        ends = self.own.reach(places)
        if self.beyond == "stars":
            ends = np.minimum(ends, self.own.last_star(places))
        return ends

    def added(self, places: Places, starts: np.ndarray) -> np.ndarray:
        """Extinction of the other between two distances [pc] [mag], not negative."""
        begin = places.at(np.maximum(starts, NOTHING))
        here = self.other.central(begin, integrated=True)
        here = np.where(starts <= NOTHING, 0.0, here)
        there = self.other.central(places, integrated=True)
        return np.maximum(there - here, 0.0)

    def rays(
        self,
        directions: np.ndarray,
        edges: np.ndarray,
        arrays: dict[str, np.ndarray],
        at_ends: dict[str, np.ndarray],
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return integrated extinctions along whole rays, and where they are from.

        Parameters
        ----------
        directions, edges
            Unit vectors ``(n, 3)``, and distances [pc], shape ``(e,)``.
        arrays
            The map's own moments by name, shape ``(e, n)`` [mag].
        at_ends
            Its moments where it ends on each ray, shape ``(1, n)``.
        """
        shape = (len(directions), len(edges))
        places = Places.along(directions, np.broadcast_to(edges, shape))
        ends = self.ends(Places.of_points(directions))
        starts, far = np.maximum(ends, NOTHING), edges[:, None]
        added = self.added(places, np.repeat(starts, len(edges))).reshape(shape).T
        filled = (far > starts) & np.isfinite(added)
        own = {}
        for name, values in arrays.items():
            near = at_ends[name]
            if name != "std" and "p50" in arrays:
                # Curves along whole rays do not fall.
                before = np.where(far <= starts, values, np.nan)
                near = np.fmax(near, np.fmax.reduce(before, axis=0, keepdims=True))
            own[name] = np.where(filled, near, values)
        found = _joined(own, (*own, FILLED), added, filled, filled & (ends <= NOTHING))
        single = {str(name): part.astype(np.float32) for name, part in found.items()}
        return single, single.pop(FILLED)

    def _split(
        self, places: Places, integrated: bool
    ) -> tuple[Places, np.ndarray, np.ndarray, np.ndarray]:
        """Return where the map itself answers, and what the other adds.

        The last two are the rows that the other adds to, and those that are its alone.
        """
        known, put = np.isfinite(places.distance), np.full(len(places), np.nan)
        if not integrated:
            filled = known & (self.support(places) <= 0)
            if filled.any():
                there = places.select(filled)
                put[filled] = self.other.central(there, integrated=False)
            # Where the other has no value the map keeps its own.
            filled &= np.isfinite(put)
            return places, put, filled, filled
        ends = self.ends(places)
        filled = known & (places.distance > ends)
        starts = np.maximum(ends, NOTHING)
        near = places.at(np.where(filled, starts, places.distance))
        if filled.any():
            put[filled] = self.added(places.select(filled), starts[filled])
        return near, put, filled, filled & (ends <= NOTHING)


def _joined(
    own: Found,
    kinds: Sequence[Kind],
    put: np.ndarray,
    filled: np.ndarray,
    alone: np.ndarray,
) -> Found:
    """The map's own answers with the other's; of an error nothing is added."""
    known = filled & np.isfinite(put)
    found: Found = {}
    for kind, values in own.items():
        error = kind == "std"
        values[alone] = np.nan if error else 0.0
        # Beyond both maps nothing is known, nor an error.
        values[filled & ~known] = np.nan
        if not error:
            values[known] += put[known].reshape(-1, *[1] * (values.ndim - put.ndim))
        found[kind] = values
    if FILLED in kinds:
        found[FILLED] = np.where(known, np.where(alone, OTHER, JOINED), OWN)
    return found


def filled_cube(cube: Cube, other: Answers) -> Cube:
    """Put another map's densities into cells that no sight line crosses.

    The array ``filled`` is 1 there, else 0. The std is not known where they are.
    """

    def fill(level: Cube) -> Cube:
        z, y, x = np.meshgrid(level.z, level.y, level.x, indexing="ij")
        hole = level.arrays["support"] <= 0
        points = Places.of_points(np.stack([x, y, z], axis=-1)[hole])
        values = other.central(points, integrated=False)
        filled = np.zeros(hole.shape, dtype=np.float32)
        filled[hole] = np.isfinite(values)
        arrays = {name: own.copy() for name, own in level.arrays.items()}
        for name in arrays.keys() - {"support"}:
            put = np.nan if name == "std" else values
            own = arrays[name][hole]
            arrays[name][hole] = np.where(np.isfinite(values), put, own)
        return replace(level, arrays={**arrays, FILLED: filled})

    return cube.each(fill)
