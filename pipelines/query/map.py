"""A map with coordinates in and quantities out."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.bands import Conversion
from pipelines.base.errors import InputError
from pipelines.base.quantiles import KINDS
from pipelines.cubes.cube import Cube
from pipelines.maps.answers import FILLED, JOINED, OWN, Answers, Kind
from pipelines.maps.continued import Continued
from pipelines.maps.opening import open_answers, open_run
from pipelines.maps.places import Places, places_of
from pipelines.query.beams import Beam, BeamAverage, averaged
from pipelines.run.facts import Facts, as_html, as_text
from pipelines.storage.atomic import atomic_directory, atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Beams handled at once.
_BEAMS = 512
_NAMES = ("inside", "extrapolated", "unseen", "no_distance", "to_edge")
FLAGS = np.dtype([(name, "?") for name in _NAMES])
"""Fields of the flags of a query.

``inside``: the place is in the map; values outside are NaN. ``unseen``: no sight line
crosses the cell. ``extrapolated``: nor any cell behind it, so that the prior alone is
left. ``no_distance``: the distance is missing. ``to_edge``: the distance was infinite,
and the value is that at the edge of the map.
"""
FILLED_FLAGS = np.dtype([*FLAGS.descr, ("filled", "?"), ("joined", "?")])
"""Flags of a map that another one continues. ``filled``: the answer, or its far part,
is the other map's; ``joined``: its near part is the map's own."""
_KINDS: dict[str, tuple[Kind, ...]] = {
    "mean": ("mean",),
    "std": ("std",),
    "median": ("p50",),
    "percentile": (),
    "samples": (),
    "random_sample": (),
}
MODES = tuple(_KINDS)
Percentiles = float | Sequence[float] | np.ndarray


def _kinds_of(
    mode: str, integrated: bool | None, pct: Percentiles | None, total: bool
) -> tuple[Kind, ...]:
    """Return the moments of a mode, none for samples; refuse choices that clash."""
    both = (
        "pass integrated=True for the extinction from the observer to each place "
        "[mag], or integrated=False for the extinction density there [mag/pc]"
    )
    if integrated is None:
        raise InputError(f"the quantity is missing, and has no default: {both}")
    if mode not in MODES:
        raise InputError(f"mode is one of {', '.join(MODES)}, got {mode!r}")
    if total and not integrated:
        raise InputError(f"total=True goes with integrated=True only: {both}")
    if (pct is None) == (mode == "percentile"):
        raise InputError(
            "mode 'percentile' takes percentiles (--pct 16,50,84 or pct=[16, 50, 84]), "
            f"and no other mode does; got mode {mode!r} and pct={pct!r}"
        )
    if pct is None:
        return _KINDS[mode]
    percentiles = np.atleast_1d(pct)
    valid = ((percentiles > 0) & (percentiles < 100)).all() and percentiles.size
    if not valid or percentiles.ndim > 1:
        raise InputError(f"percentiles lie between 0 and 100, got {pct!r}")
    return tuple(float(p) / 100 for p in percentiles)


class Crossing(NamedTuple):
    """Where a sight line reaches an extinction [pc].

    With probability 68% it is between ``lower`` and ``upper``. What lies beyond the
    map is NaN; ``lower`` is then how far the map goes, if that is less.
    """

    distance: u.Quantity
    lower: u.Quantity
    upper: u.Quantity


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The posterior of extinctions [mag] or densities [mag/pc] at coordinates.

    Values are NaN outside the map and where a distance is missing.

    Parameters
    ----------
    mean, std
        Quantities of the coordinates' shape; ``std`` is ``None`` if the map holds none.
    quantiles
        ``p2_5``, ``p16``, ``p50``, ``p84`` and ``p97_5`` by name, normal where the map
        holds mean and std alone; empty if it holds no std.
    flags
        Structured array of that shape: see `FLAGS`.
    """

    mean: u.Quantity
    std: u.Quantity | None
    quantiles: dict[str, u.Quantity]
    flags: np.ndarray


@dataclass(frozen=True, kw_only=True, repr=False)
class DustMap:
    """A map that answers at coordinates.

    ``answers`` has moments and quantiles: a store interpolates them, a fit computes
    them anew for every place. ``draws`` is the fit with posterior samples, if any.
    """

    answers: Answers
    draws: Answers | None = None

    def __repr__(self) -> str:
        return as_text("dustmap map", self._facts())

    def _repr_html_(self) -> str:
        return as_html("dustmap map", self._facts())

    def _facts(self) -> Facts:
        facts = {"opened from": str(self.path), "band": self.band or "not stated"}
        return facts | self.answers.facts | (self.draws.facts if self.draws else {})

    @property
    def path(self) -> Path:
        """File or folder that it was opened from."""
        return self.answers.path

    @property
    def band(self) -> str:
        """The band of the extinction; empty if it is not known."""
        return self.answers.band

    @property
    def verdict(self) -> str:
        """Judgement of the map, why, and what to do; empty if not stated."""
        return self._facts().get("verdict", "")

    @property
    def has_samples(self) -> bool:
        """True if there are posterior samples."""
        return self.draws is not None

    @cached_property
    def cube(self) -> Cube:
        """The density on the map's own grid, whole; of a run it is computed.

        ``cube.arrays["mean"]``, ``"std"``, ``"p50"`` and others have shape
        ``(z, y, x)``, in ``cube.unit``; ``cube.x`` to ``cube.z`` [pc] are the cells'
        centres, ``cube.finer`` the nested grids.

        Raises
        ------
        InputError
            If the map holds none.
        """
        return self.answers.cube()

    def plot(self, kind: str = "face-on", **options: Any) -> Figure:
        """Draw a figure of the map, as ``dustmap plot --kind`` does.

        ``kind`` is ``face-on``, ``near``, ``edge-on``, ``sky``, ``los``, ``slice`` or
        ``compare``; ``options`` are those of `pipelines.figures.registry.PlotOptions`,
        such as ``distances=[500, 1000]`` [pc].

        Raises
        ------
        InputError
            If there is no such figure, or it needs more than the map holds.
        """
        from pipelines.figures.registry import PlotOptions, draw

        return draw(self.answers, kind, PlotOptions(**options))

    def save(self, path: str | Path, *, overwrite: bool = False) -> DustMap:
        """Copy the map, e.g. one fitted without ``output``, and open the copy.

        Raises
        ------
        InputError
            If something stands there and ``overwrite`` is false.
        """
        if self.path.is_dir():
            with atomic_directory(path, overwrite=overwrite) as folder:
                shutil.copytree(self.path, folder, dirs_exist_ok=True)
        else:
            with atomic_file(path, overwrite=overwrite) as file:
                shutil.copyfile(self.path, file)
        return open_map(path)

    def continued(self, other: Answers, beyond: str | None = None) -> DustMap:
        """Return this map continued by another one where it ends (`FILLED_FLAGS`)."""
        draws = self.draws and Continued.of(self.draws, other, beyond)
        return DustMap(answers=Continued.of(self.answers, other, beyond), draws=draws)

    def converted(self, change: Conversion | None) -> DustMap:
        """Return this map in another band."""
        draws = self.draws and self.draws.converted(change)
        return DustMap(answers=self.answers.converted(change), draws=draws)

    def query(
        self,
        coords: SkyCoord,
        *,
        integrated: bool | None = None,
        mode: str = "mean",
        pct: Percentiles | None = None,
        total: bool = False,
        return_flags: bool = False,
        rng: np.random.Generator | None = None,
    ) -> Any:
        """Return the extinction to, or the density at, coordinates.

        What the grid cannot resolve of a positive density is drawn once for each
        sample and direction (within 2 milliarcsec), and scaled to the scatter at each
        distance; of the density, once for each sample and cell.

        The extinction of a positive density does not fall along a direction: a store
        holds such curves, and a run makes them of the places of one call. A place in a
        call of its own has the posterior of that place.

        Between grid points a store interpolates mean, std and quantiles trilinearly; a
        run takes quantiles over the samples at the place itself, which are higher.

        Parameters
        ----------
        coords
            Any frame, any shape, with distances; an infinite one is the map's edge.
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
            Return flags beside the values: see `FLAGS`.

        Returns
        -------
        A `Quantity` of the coordinates' shape, with a last axis of samples or listed
        percentiles; NaN outside the map and where a distance is missing. With
        ``return_flags`` a pair of it and a structured array.

        Raises
        ------
        InputError
            If a choice or distances are missing, or the map does not hold the answer.
        """
        kinds = _kinds_of(mode, integrated, pct, total)
        integrated = bool(integrated)
        source = self.answers if kinds else self.draws
        if source is None:
            raise InputError(
                f"mode={mode!r} needs posterior samples, which {self.path} does not "
                "hold: name the run folder beside the map, "
                "by --samples RUN or open_map(map, samples=RUN)"
            )
        if mode == "random_sample" and rng is None:
            raise InputError(
                "mode='random_sample' takes rng=np.random.default_rng(seed), so that "
                "the choice can be made again"
            )
        places, reached = _reached(source, coords, integrated, total)
        if kinds:
            found = source.moments(reached, kinds, integrated=integrated)
            values = np.stack([found[kind] for kind in kinds], axis=-1)
            listed = pct is not None and np.ndim(pct) > 0
            values = values if listed else values[:, 0]
        else:
            chosen = rng if mode == "random_sample" else None
            values = source.samples(reached, integrated=integrated, rng=chosen)
        answer = _quantity(places, values, integrated)
        if not return_flags:
            return answer
        return answer, self._flags(places, reached, values, integrated)

    def extinction(self, coords: SkyCoord, *, total: bool = False) -> Answer:
        """Return the posterior of the extinction from the observer to coordinates.

        As `query` with every mode that the map holds, in one reading.
        """
        return self._answer(coords, integrated=True, total=total)

    def density(self, coords: SkyCoord) -> Answer:
        """Return the posterior of the extinction density at coordinates.

        As `query` with every mode that the map holds, in one reading.
        """
        return self._answer(coords, integrated=False, total=False)

    def _answer(self, coords: SkyCoord, *, integrated: bool, total: bool) -> Answer:
        places, reached = _reached(self.answers, coords, integrated, total)
        has_std = "std" in self.answers.kinds(integrated=integrated)
        kinds = KINDS if has_std else ("mean",)
        found = self.answers.moments(reached, kinds, integrated=integrated)
        flags = self._flags(places, reached, found["mean"], integrated)
        parts = {name: _quantity(places, found[name], integrated) for name in kinds}
        mean, std = parts.pop("mean"), parts.pop("std", None)
        return Answer(mean=mean, std=std, quantiles=parts, flags=flags)

    def beam(
        self,
        coords: SkyCoord,
        beam: Beam,
        *,
        return_flags: bool = False,
    ) -> Any:
        """Average extinction within a disc or a Gaussian beam around coordinates.

        Each beam, ``dustmap.Beam(radius=0.5)`` or ``dustmap.Beam(fwhm=0.2)`` [deg],
        ends at its coordinate's distance.

        Returns
        -------
        `BeamAverage` of three quantities [mag] of the coordinates' shape. With
        ``return_flags`` a pair of it and `FLAGS` of the coordinates, with ``inside``
        where the whole beam is in the map.

        Raises
        ------
        InputError
            If distances are missing, or the map holds no integrated extinction.
        """
        source = self.draws or self.answers
        places, reached = _reached(source, coords, True, False)
        found = np.empty((3, len(places)))
        for start in range(0, len(places), _BEAMS):
            rows = np.arange(start, min(start + _BEAMS, len(places)))
            around = beam.around(reached.select(rows))
            if self.draws is None:
                values = source.extinction(around, ("mean",))["mean"]
            else:
                values = source.samples(around, integrated=True)
            found[:, rows] = averaged(values, beam)
        # A beam that leaves the map has no scatter either.
        found[:, np.isnan(found[0])] = np.nan
        average = BeamAverage(*(_quantity(places, part, True) for part in found))
        if not return_flags:
            return average
        return average, self._flags(places, reached, found[0], True)

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

        Returns
        -------
        `Crossing` of three quantities [pc] of the coordinates' shape; NaN where the
        map ends before. With ``return_flags`` a pair of it and an array of
        `pipelines.maps.rays.CROSSING_FLAGS`.

        Raises
        ------
        InputError
            If the map holds no integrated extinction, or an extinction is not positive.
        """
        places = places_of(coords, total=True)
        try:
            values = u.Quantity(extinction, u.mag, dtype=np.float64).value
            values = np.broadcast_to(values, places.shape).reshape(-1)
        except (u.UnitConversionError, ValueError) as error:
            raise InputError(
                "expected one extinction [mag], or one for each of the coordinates, of "
                f"shape {places.shape}: {error}"
            ) from error
        if not ((values > 0) & np.isfinite(values)).all():
            raise InputError(
                f"an extinction must be positive and finite [mag], got {extinction}"
            )
        found, flags = self.answers.crossings(places, values, centre)
        parts = [u.Quantity(places.restore(part), u.pc, copy=False) for part in found]
        crossing = Crossing(*parts)
        return (crossing, places.restore(flags)) if return_flags else crossing

    def _flags(
        self, places: Places, reached: Places, values: np.ndarray, integrated: bool
    ) -> np.ndarray:
        """Flags of answers ``(n, ...)`` at places that were ``reached`` in the map."""
        continued = FILLED in self.answers.kinds(integrated=integrated)
        flags = np.zeros(len(places), dtype=FILLED_FLAGS if continued else FLAGS)
        # What has no value though it is in the box is not in the map either.
        axes = tuple(range(1, values.ndim))
        inside = np.asarray(np.isfinite(values).all(axis=axes))
        within = reached.select(inside)
        unseen = self.answers.support(within) <= 0
        if continued:
            answers = self.answers.moments(within, (FILLED,), integrated=integrated)
            origin = answers[FILLED]
            flags["filled"][inside] = origin != OWN
            flags["joined"][inside] = origin == JOINED
            # Those of the map's own part are not the place's.
            unseen &= origin == OWN
        flags["inside"] = inside
        flags["no_distance"] = np.isnan(places.distance)
        flags["to_edge"] = np.isposinf(places.distance) & inside
        flags["unseen"][inside] = unseen
        # The last star is that of a pixel's ray; a cell's own support goes before it.
        beyond = within.distance > self.answers.last_star(within)
        flags["extrapolated"][inside] = unseen & beyond
        return places.restore(flags)


def open_map(path: str | Path, *, samples: str | Path | None = None) -> DustMap:
    """Open a map store, another export or a run folder (`open_answers`).

    ``samples`` is the run folder that draws posterior samples beside a store.

    Raises
    ------
    InputError
        If it is no map, or the samples are those of another map or band.
    """
    answers = open_answers(path)
    if answers.fit is not None or samples is None:
        return of_answers(answers)
    draws = open_run(samples)
    if draws.band != answers.band:
        raise InputError(
            f"{path} is a map of {answers.band or 'an unnamed band'}, the samples "
            f"are of {draws.band or 'an unnamed band'}: open the map that was exported "
            "from this run as it is"
        )
    ours, theirs = answers.box, draws.box
    if not np.allclose([ours.lower, ours.upper], [theirs.lower, theirs.upper]):
        raise InputError(
            f"{path} spans {ours.lower} to {ours.upper} pc, the samples "
            f"{theirs.lower} to {theirs.upper} pc: they are of another map"
        )
    return DustMap(answers=answers, draws=draws)


def of_answers(answers: Answers) -> DustMap:
    """Return a map, with its own posterior samples if it is a run."""
    return DustMap(answers=answers, draws=None if answers.fit is None else answers)


def _reached(
    source: Answers, coords: SkyCoord, integrated: bool, total: bool
) -> tuple[Places, Places]:
    """Places as they came, and with infinite distances at the map's edge."""
    places = places_of(coords, total=total)
    if total and np.isinf(source.box.upper).any():
        raise InputError(
            "total=True ends at the edge of the map itself: do not fill that map"
        )
    far = np.isposinf(places.distance)
    if integrated:
        reach = source.reach(places) if far.any() else places.distance
        return places, places.at(np.where(far, reach, places.distance))
    if far.any():
        raise InputError(
            "there is no density at an infinite distance; the extinction through "
            "the whole map is integrated=True, total=True"
        )
    return places, places


def _quantity(places: Places, values: np.ndarray, integrated: bool) -> u.Quantity:
    """Answers ``(n, ...)`` in the shape of the coordinates, with their unit."""
    unit = u.mag if integrated else u.mag / u.pc
    return u.Quantity(places.restore(values), unit, copy=False)
