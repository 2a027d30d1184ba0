r"""A map continued by another one beyond its end, without a jump.

The map is used along each sight line up to the distance e: the edge of its box, or the
end of the last stretch that stars constrain. Beyond,

.. math:: A(d) = A_\mathrm{own}(e) + \max(A_\mathrm{other}(d) - A_\mathrm{other}(e), 0),

which is continuous at e for the mean, every quantile and every sample. The other map
has no error: the std is that of the map's own part. The density is the other map's
outside this map, or in cells that no sight line crosses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.table import Facts
from pipelines.cubes.cube import Cube
from pipelines.maps.answers import (
    EVERYWHERE,
    FILLED,
    JOINED,
    NOTHING,
    OTHER,
    OWN,
    PRIOR_SHARE,
    Answers,
    Crossed,
    Draws,
    Found,
    Kinds,
    Rng,
)
from pipelines.maps.places import Places
from pipelines.maps.wrapped import of_own

if TYPE_CHECKING:
    from dustmap.models.prior_integrals import PriorIntegrals

# Ends from which another map may continue: the box, or the last star.
BEYOND = ("box", "stars")


@dataclass(frozen=True, kw_only=True, repr=False)
class Continued(Answers):
    """A map continued by another one in the same band, beyond its ``box`` or ``stars``.

    The kind ``filled`` is 0 for values of the map itself, 1 for the other's, and 2 for
    their sum. The std of filled values is that of the map's own part, NaN if none.
    """

    own: Answers
    other: Answers
    beyond: str = "box"

    def __post_init__(self) -> None:
        if self.beyond not in BEYOND:
            raise InputError(
                f"beyond must be {' or '.join(BEYOND)}, got {self.beyond!r}"
            )

    @classmethod
    def of(cls, own: Answers, other: Answers, beyond: str | None = None) -> Continued:
        """Return a map continued by another one, beyond its box by default.

        The other is converted if both bands are known.

        Raises `InputError` if the prior already continues the map.
        """
        if PRIOR_SHARE in own.kinds(integrated=True):
            raise _both(own)
        if own.known_band and other.known_band:
            other = other.in_band(own.known_band)
        return cls(**own.identity(), own=own, other=other, beyond=beyond or BEYOND[0])

    changes = of_own("changes")
    has_samples = of_own("has_samples")
    last_star = of_own("last_star")
    # Where the map itself ends on each sight line.
    reach = of_own("reach")

    @property
    def box(self) -> Box:
        """Unbounded: the other map returns NaN outside its own box."""
        return EVERYWHERE

    @property
    def facts(self) -> Facts:
        return {**self.own.facts, "filled": f"beyond its {self.beyond} by another map"}

    def origins(self) -> list[dict[str, Any]]:
        return [*self.own.origins(), *self.other.origins()]

    def prior(self) -> PriorIntegrals:
        raise _both(self)

    def _estimated(self, estimate: str) -> Answers:
        return replace(self, own=self.own.estimated(estimate), estimate=estimate)

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        """Return the map's own moments, and ``filled``."""
        return (*self.own.kinds(integrated=integrated), FILLED)

    def moments(self, places: Places, kinds: Kinds, *, integrated: bool) -> Found:
        """Return the map's own moments, continued by the other's."""
        near, put, filled, alone = self._split(places, integrated)
        own_kinds = [kind for kind in kinds if kind != FILLED]
        own = self.own.moments(near, own_kinds, integrated=integrated)
        return _joined(own, kinds, put, filled, alone)

    def samples(self, places: Places, *, integrated: bool, rng: Rng = None) -> Draws:
        near, put, filled, alone = self._split(places, integrated)
        drawn = self.own.samples(near, integrated=integrated, rng=rng)
        return _joined({"mean": drawn}, ("mean",), put, filled, alone)["mean"]

    def support(self, places: Places) -> np.ndarray:
        """Return the sight-line length [cells] in each place's cell, 0 outside."""
        found = np.zeros(len(places))
        inside = self.own.box.contains(places.positions())
        found[inside] = self.own.support(places.select(inside))
        return found

    def crossings(self, places: Places, extinction: np.ndarray) -> Crossed:
        # The other map has no error.
        raise InputError(
            "distances at given extinctions need a single map: open it without --fill"
        )

    def cube(self) -> Cube:
        return filled_cube(self.own.cube(), self.other)

    def ends(self, places: Places) -> np.ndarray:
        """Return the distance up to which the map itself is used [pc]."""
        ends = self.own.reach(places)
        if self.beyond == "stars":
            ends = np.minimum(ends, self.own.last_star(places))
        return ends

    def added(self, places: Places, starts: np.ndarray) -> np.ndarray:
        """Return the other's extinction [mag] from ``starts`` [pc], not negative."""
        return np.maximum(self.other.extinction_between(places.at(starts), places), 0.0)

    def rays(
        self,
        directions: np.ndarray,
        edges: np.ndarray,
        arrays: dict[str, np.ndarray],
        at_ends: dict[str, np.ndarray],
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return integrated extinctions along whole rays, and their sources.

        ``directions`` are unit vectors ``(n, 3)``, ``edges`` distances [pc] ``(e,)``.
        ``arrays`` are the map's own moments by name [mag] ``(e, n)``, ``at_ends`` those
        at its end on each ray ``(1, n)``.
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
                # Curves along whole rays never decrease.
                before = np.where(far <= starts, values, np.nan)
                near = np.fmax(near, np.fmax.reduce(before, axis=0, keepdims=True))
            own[name] = np.where(filled, near, values)
        found = _joined(own, (*own, FILLED), added, filled, filled & (ends <= NOTHING))
        single = {str(name): part.astype(np.float32) for name, part in found.items()}
        return single, single.pop(FILLED)

    def _split(
        self, places: Places, integrated: bool
    ) -> tuple[Places, np.ndarray, np.ndarray, np.ndarray]:
        """Return the map's own places, the other's additions, and two sets of rows.

        These are the rows with an addition, and the rows of the other map alone.
        """
        known, put = np.isfinite(places.distance), np.full(len(places), np.nan)
        if not integrated:
            filled = known & (self.support(places) <= 0)
            if filled.any():
                there = places.select(filled)
                put[filled] = self.other.median_or_mean(there, integrated=False)
            # Rows keep the map's own value if the other has none.
            filled &= np.isfinite(put)
            return places, put, filled, filled
        ends = self.ends(places)
        filled = known & (places.distance > ends)
        starts = np.maximum(ends, NOTHING)
        near = places.at(np.where(filled, starts, places.distance))
        if filled.any():
            put[filled] = self.added(places.select(filled), starts[filled])
        return near, put, filled, filled & (ends <= NOTHING)


def _both(answers: Answers) -> InputError:
    return InputError(
        f"{answers.path} is continued by another map, or by its prior: choose one of "
        "--fill and --outside prior"
    )


def _joined(
    own: Found, kinds: Kinds, put: np.ndarray, filled: np.ndarray, alone: np.ndarray
) -> Found:
    """Combine the moments of both maps; the other adds no error."""
    known = filled & np.isfinite(put)
    found: Found = {}
    for kind, values in own.items():
        error = kind == "std"
        values[alone] = np.nan if error else 0.0
        # Beyond both maps mean and error are unknown.
        values[filled & ~known] = np.nan
        if not error:
            values[known] += put[known].reshape(-1, *[1] * (values.ndim - put.ndim))
        found[kind] = values
    if FILLED in kinds:
        found[FILLED] = np.where(known, np.where(alone, OTHER, JOINED), OWN)
    return found


def filled_cube(cube: Cube, other: Answers) -> Cube:
    """Fill cells that no sight line crosses with another map's densities.

    The array ``filled`` is 1 there, else 0; the std there is NaN.
    """

    def fill(level: Cube) -> Cube:
        hole = level.arrays["support"] <= 0
        places = Places.of_points(level.points[hole])
        values = other.median_or_mean(places, integrated=False)
        filled = np.zeros(hole.shape, dtype=np.float32)
        filled[hole] = np.isfinite(values)
        arrays = {name: own.copy() for name, own in level.arrays.items()}
        for name in arrays.keys() - {"support"}:
            put = np.nan if name == "std" else values
            own = arrays[name][hole]
            arrays[name][hole] = np.where(np.isfinite(values), put, own)
        return replace(level, arrays={**arrays, FILLED: filled})

    return cube.each(fill)
