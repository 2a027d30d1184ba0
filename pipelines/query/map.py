"""One map object, whatever it is read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.query.crossing import Crossing, check_extinction, crossings
from pipelines.query.flags import flags_of
from pipelines.query.places import Places, places_of
from pipelines.query.question import Question, question
from pipelines.query.stored import StoredAnswers
from pipelines.run.facts import Facts, as_html, as_text, run_facts

if TYPE_CHECKING:
    from pipelines.query.posterior import PosteriorAnswers  # which needs torch

EXTINCTION, DENSITY = u.mag, u.mag / u.pc


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DustMap:
    """A map that answers at coordinates.

    Parameters
    ----------
    path
        What it was opened from.
    stored
        The map store, if there is one: moments and quantiles, interpolated.
    posterior
        The fit, if there is one: draws, and without a store everything, computed
        anew for every place.
    band
        The band of the extinction, as the catalogue or the conversion had it.
    """

    path: Path
    stored: StoredAnswers | None
    posterior: PosteriorAnswers | None
    band: str = ""

    def __repr__(self) -> str:
        return as_text("dustmap map", self._facts())

    def _repr_html_(self) -> str:
        return as_html("dustmap map", self._facts())

    def _facts(self) -> Facts:
        facts = {"opened from": str(self.path), "band": self.band or "not stated"}
        if self.stored is not None:
            facts |= self.stored.facts
        if self.posterior is not None:
            facts |= run_facts(self.posterior.run)
        return facts

    def query(
        self,
        coords: SkyCoord,
        *,
        integrated: bool | None = None,
        mode: str = "mean",
        pct: float | Sequence[float] | None = None,
        total: bool = False,
        return_flags: bool = False,
        rng: np.random.Generator | None = None,
    ) -> Any:
        """Ask for the extinction to, or the density at, some coordinates.

        A sample of the extinction along one direction is one curve, whatever else is
        asked in whatever order: what the grid cannot resolve of a positive density
        scatters by one number for each sample and direction (within 2 milliarcsec),
        with the scatter of each distance. Nearly everywhere it rises; where a ray
        enters a cloud much denser than all before, its relative scatter grows, and a
        low sample may fall. Of the density, the number is that of a sample and a cell.
        Each direction, or cell, scatters by itself.

        Between grid points a store interpolates mean, std and quantiles, trilinearly;
        a run without a store takes quantiles over the samples at the place itself,
        which are higher there.

        Parameters
        ----------
        coords
            Any frame, any shape, with distances. An infinite distance stands for the
            edge of the map.
        integrated
            True for the extinction from the observer to each place [mag], False for
            the density there [mag/pc]. There is no default.
        mode
            ``mean``, ``std``, ``median``, ``percentile`` (with ``pct``), ``samples``
            (all posterior draws, which need a fit) or ``random_sample`` (one of them,
            the same for all coordinates, chosen by ``rng``).
        pct
            One percentile, or a list of them.
        total
            The extinction through the whole map, whatever the distances.
        return_flags
            Return flags beside the values: see `pipelines.query.flags.FLAGS`.

        Returns
        -------
        A `Quantity` of the coordinates' shape, with a last axis of samples or listed
        percentiles; NaN outside the map and where a distance is missing. With
        ``return_flags`` a pair of it and a structured array.

        Raises
        ------
        InputError
            If a choice is missing, distances are, or the map does not hold the answer.
        """
        asked = question(integrated=integrated, mode=mode, pct=pct, total=total)
        places = self._places(asked, coords, total=total)
        reached, inside = self._reached(asked, places)
        values = self._values(asked, reached.select(inside), rng)
        whole = _spread(values, inside)
        unit = EXTINCTION if asked.integrated else DENSITY
        answer = u.Quantity(places.restore(whole), unit, copy=False)
        if not return_flags:
            return answer
        return answer, self._flags(places, reached, inside, whole)

    def summary(
        self, coords: SkyCoord, *, integrated: bool, total: bool = False
    ) -> tuple[dict[str, u.Quantity], np.ndarray]:
        """``mean``, ``std``, ``p16``, ``p50`` and ``p84`` by name, and the flags.

        As `query` with each of these modes, in one reading.
        """
        asked = question(integrated=integrated, mode="mean", pct=None, total=total)
        places = self._places(asked, coords, total=total)
        reached, inside = self._reached(asked, places)
        found = self._answers(asked).summary(asked.integrated, reached.select(inside))
        whole = {name: _spread(part, inside) for name, part in found.items()}
        flags = self._flags(places, reached, inside, whole["mean"])
        unit = EXTINCTION if asked.integrated else DENSITY
        answers = {
            name: u.Quantity(places.restore(part), unit, copy=False)
            for name, part in whole.items()
        }
        return answers, flags

    def distance_at(
        self,
        coords: SkyCoord,
        extinction: u.Quantity | float | np.ndarray,
        *,
        centre: str = "median",
        return_flags: bool = False,
    ) -> Any:
        """Distance at which sight lines reach an extinction, with its 68% interval.

        Parameters
        ----------
        coords
            Directions; distances are not looked at.
        extinction
            Positive [mag]: one, or one for each coordinate.
        centre
            ``median`` or ``mean``: the curve that gives the distance itself.
        return_flags
            Return flags beside it: see `pipelines.query.crossing.CROSSING_FLAGS`.

        Returns
        -------
        `Crossing` of three quantities [pc] of the coordinates' shape; infinite where
        the map ends before. With ``return_flags`` a pair of it and a structured array.

        Raises
        ------
        InputError
            If the map holds no integrated extinction, or an extinction is not positive.
        """
        if self.stored is None:
            raise InputError(
                f"{self.path}: the distance of an extinction is read off precomputed "
                "curves: open the map store of `dustmap export RUN --zarr`"
            )
        places = places_of(coords, total=True)
        values = check_extinction(extinction, places.shape)
        found, flags = crossings(self.stored, places, values, centre)
        parts = [u.Quantity(places.restore(part), u.pc, copy=False) for part in found]
        crossing = Crossing(*parts)
        return (crossing, places.restore(flags)) if return_flags else crossing

    def _places(self, asked: Question, coords: SkyCoord, *, total: bool) -> Places:
        places = places_of(coords, total=total)
        if np.isposinf(places.distance).any() and not asked.integrated:
            raise InputError(
                "there is no density at an infinite distance; the extinction through "
                "the whole map is integrated=True, total=True"
            )
        return places

    def _flags(
        self, places: Places, reached: Places, inside: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        # What has no value though it is in the box is not in the map either.
        finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        seen = self.stored or self.posterior
        assert seen is not None
        return places.restore(flags_of(seen, places, reached, inside & finite))

    def _answers(self, asked: Question) -> StoredAnswers | PosteriorAnswers:
        first, second = self.stored, self.posterior
        if asked.drawn:
            first, second = second, first
        answers = first or second
        assert answers is not None
        return answers

    def _reached(self, asked: Question, places: Places) -> tuple[Places, np.ndarray]:
        """Places with infinite distances at the map's edge, and which are inside."""
        answers = self._answers(asked)
        distance = places.distance
        if asked.integrated:
            exits = answers.reach(places)
            distance = np.where(np.isposinf(distance), exits, distance)
        reached = places.at(distance)
        inside = answers.box.contains(reached.positions())
        return reached, inside

    def _values(
        self, asked: Question, places: Places, rng: np.random.Generator | None
    ) -> np.ndarray:
        answers = self._answers(asked)
        if asked.mode == "random_sample" and self.posterior is not None:
            if rng is None:
                raise InputError(
                    "mode='random_sample' takes rng=np.random.default_rng(seed), so "
                    "that the choice can be made again"
                )
            chosen = int(rng.integers(max(self.posterior.count, 1)))
            return self.posterior.values(asked, places, chosen)
        values = answers.values(asked, places)
        return values[:, 0] if asked.quantiles and not asked.listed else values


def _spread(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Values of the places inside among all, NaN for the others."""
    whole = np.full((len(inside), *values.shape[1:]), np.nan)
    whole[inside] = values
    return whole
