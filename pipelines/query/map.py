"""One map object, whatever it is read from."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.base.quantiles import KINDS
from pipelines.query.beams import Beam, BeamAverage, averaged
from pipelines.query.crossing import Crossing, check_extinction, crossings
from pipelines.query.places import Places, places_of
from pipelines.query.question import kinds_of
from pipelines.query.sky import Sky
from pipelines.query.store import MapStore
from pipelines.run.facts import Facts, as_html, as_text
from pipelines.storage.atomic import atomic_directory, atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pipelines.cubes.cube import Cube
    from pipelines.query.posterior import PosteriorAnswers  # which needs torch

# Beams handled at once.
_BEAMS = 512
_FIELDS = ("inside", "extrapolated", "unseen", "no_distance", "to_edge")
FLAGS = np.dtype([(name, "?") for name in _FIELDS])
"""Fields of the flags of a query.

``inside``: the place is in the map, and only then there is a value. ``unseen``:
no sight line crosses the cell itself. ``extrapolated``: nor through what lies behind it
on the sight line, so that the map goes on with the prior.
``no_distance``: the row's distance is missing. ``to_edge``: the distance was infinite,
and the value is that at the edge of the map.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Places as they came, those ``reached`` in the map, and which are inside."""

    integrated: bool
    places: Places
    reached: Places
    inside: np.ndarray

    @property
    def within(self) -> Places:
        return self.reached.select(self.inside)

    def answer(self, values: np.ndarray) -> u.Quantity:
        """Values of the places inside among all, NaN for the others."""
        whole = np.full((len(self.inside), *values.shape[1:]), np.nan)
        whole[self.inside] = values
        unit = u.mag if self.integrated else u.mag / u.pc
        return u.Quantity(self.places.restore(whole), unit, copy=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class DustMap:
    """A map that answers at coordinates.

    Parameters
    ----------
    path
        What it was opened from.
    source
        What answers with moments and quantiles: a store interpolates them, a fit
        computes them anew for every place.
    samples
        The fit that answers with draws, if there is one.
    band
        The band of the extinction, as the catalogue or the conversion had it.
    """

    path: Path
    source: MapStore | PosteriorAnswers
    samples: PosteriorAnswers | None
    band: str = ""

    def __repr__(self) -> str:
        return as_text("dustmap map", self._facts())

    def _repr_html_(self) -> str:
        return as_html("dustmap map", self._facts())

    def _facts(self) -> Facts:
        facts = {"opened from": str(self.path), "band": self.band or "not stated"}
        return facts | self.source.facts | (self.samples.facts if self.samples else {})

    @property
    def verdict(self) -> str:
        """Whether the map can be used, why, and what to do; empty if not stated."""
        return self._facts().get("verdict", "")

    @property
    def has_samples(self) -> bool:
        """Whether posterior samples answer."""
        return self.samples is not None

    @cached_property
    def density(self) -> Cube:
        """The density on the map's own grid, whole.

        ``density.arrays["mean"]``, ``"std"``, ``"p50"`` and others have shape
        ``(z, y, x)``, in ``density.unit``; ``density.x`` to ``density.z`` [pc] are the
        cells' centres, ``density.finer`` the nested grids. Of a run it is computed.

        Raises
        ------
        InputError
            If the map holds none.
        """
        from pipelines.figures.sources import open_source

        return open_source(self.path).cube()

    def plot(self, kind: str = "face-on", **options: Any) -> Figure:
        """Draw a figure of the map, as ``dustmap plot --kind`` does.

        Parameters
        ----------
        kind
            ``face-on``, ``near``, ``edge-on``, ``sky``, ``los``, ``slice`` or
            ``compare``.
        options
            Those of `pipelines.figures.registry.PlotOptions`, such as
            ``distances=[500, 1000]`` [pc].

        Raises
        ------
        InputError
            If there is no such figure, or it needs more than the map holds.
        """
        from pipelines.figures.registry import PlotOptions, draw

        return draw(self.path, kind, PlotOptions(**options))

    def save(self, path: str | Path, *, overwrite: bool = False) -> DustMap:
        """Copy the map, for example one that was fitted without ``output``.

        Returns the copy, opened.

        Raises
        ------
        InputError
            If something stands there and ``overwrite`` is false.
        """
        from pipelines.query.opening import open_map

        if self.path.is_dir():
            with atomic_directory(path, overwrite=overwrite) as folder:
                shutil.copytree(self.path, folder, dirs_exist_ok=True)
        else:
            with atomic_file(path, overwrite=overwrite) as file:
                shutil.copyfile(self.path, file)
        return open_map(path)

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

        What the grid cannot resolve of a positive density scatters by one number for
        each sample and direction (within 2 milliarcsec), with the scatter of each
        distance. Of the density, the number is that of a sample and a cell. Each
        direction, or cell, scatters by itself.

        The extinction of a positive density does not fall along a direction: a store
        holds curves that do not, and a run makes them of the places of one call. A
        place that is asked alone has the posterior of that place.

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
            Return flags beside the values: see `FLAGS`.

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
        kinds = kinds_of(mode, integrated=integrated, pct=pct, total=total)
        if kinds:
            asked = self._asked(self.source, coords, integrated, total)
            columns = self.source.answers(kinds, asked.integrated, asked.within)
            listed = pct is not None and np.ndim(pct)
            values = np.stack(columns, axis=-1) if listed else columns[0]
        else:
            source = self._drawn_from(mode, rng)
            asked = self._asked(source, coords, integrated, total)
            chosen = rng if mode == "random_sample" else None
            values = source.draws(asked.integrated, asked.within, chosen)
        answer = asked.answer(values)
        return (answer, self._flags(asked, answer)) if return_flags else answer

    def summary(
        self, coords: SkyCoord, *, integrated: bool | None = None, total: bool = False
    ) -> tuple[dict[str, u.Quantity], np.ndarray]:
        """``mean``, ``std`` and ``p2_5`` to ``p97_5`` by name, and the flags.

        As `query` with each of these modes, in one reading.
        """
        kinds_of("mean", integrated=integrated, pct=None, total=total)
        asked = self._asked(self.source, coords, integrated, total)
        found = self.source.answers(KINDS, asked.integrated, asked.within)
        answers = {name: asked.answer(part) for name, part in zip(KINDS, found)}
        return answers, self._flags(asked, answers["mean"])

    def beam(
        self,
        coords: SkyCoord,
        beam: Beam,
        *,
        return_flags: bool = False,
    ) -> Any:
        """Average extinction within a disc or a Gaussian beam around coordinates.

        Parameters
        ----------
        coords
            As of `query`; each beam ends at its coordinate's distance.
        beam
            ``dustmap.Beam(radius=0.5)`` or ``dustmap.Beam(fwhm=0.2)`` [deg], or an
            angle as a quantity.
        return_flags
            Return flags beside it: `FLAGS` of the coordinates, with ``inside`` where
            the whole beam is in the map.

        Returns
        -------
        `BeamAverage` of three quantities [mag] of the coordinates' shape. With
        ``return_flags`` a pair of it and a structured array.

        Raises
        ------
        InputError
            If distances are missing, or the map holds no integrated extinction.
        """
        source = self.samples or self.source
        asked = self._asked(source, coords, True, False)
        found = np.full((3, len(asked.places)), np.nan)
        inside = np.zeros(len(asked.places), dtype=bool)
        for start in range(0, len(inside), _BEAMS):
            rows = np.arange(start, min(start + _BEAMS, len(inside)))
            around = beam.around(asked.reached.select(rows))
            held = source.box.contains(around.positions()).reshape(len(rows), -1)
            inside[rows] = whole = held.all(axis=1)
            within = around.select(np.repeat(whole, beam.directions))
            if isinstance(source, MapStore):
                (values,) = source.answers(("mean",), True, within)
            else:
                values = source.draws(True, within)
            found[:, rows[whole]] = averaged(values, beam)
        parts = (asked.places.restore(part) for part in found)
        average = BeamAverage(*(u.Quantity(part, u.mag, copy=False) for part in parts))
        if not return_flags:
            return average
        asked = replace(asked, inside=inside & np.isfinite(found[0]))
        return average, self._flags(asked, average.mean)

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
        `Crossing` of three quantities [pc] of the coordinates' shape; NaN where the
        map ends before. With ``return_flags`` a pair of it and a structured array.

        Raises
        ------
        InputError
            If the map holds no integrated extinction, or an extinction is not positive.
        """
        sky = self.source.sky if isinstance(self.source, MapStore) else None
        if not isinstance(sky, Sky):
            raise InputError(
                f"{self.path}: the distance of an extinction is read off precomputed "
                "curves: open the map store of `dustmap export RUN --zarr`"
            )
        places = places_of(coords, total=True)
        values = check_extinction(extinction, places.shape)
        found, flags = crossings(sky, places, values, centre)
        parts = [u.Quantity(places.restore(part), u.pc, copy=False) for part in found]
        crossing = Crossing(*parts)
        return (crossing, places.restore(flags)) if return_flags else crossing

    def _drawn_from(
        self, mode: str, rng: np.random.Generator | None
    ) -> PosteriorAnswers:
        if self.samples is None:
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
        return self.samples

    def _asked(
        self,
        source: MapStore | PosteriorAnswers,
        coords: SkyCoord,
        integrated: bool | None,
        total: bool,
    ) -> _Asked:
        """Places with infinite distances at the map's edge, and which are inside."""
        places = reached = places_of(coords, total=total)
        far = np.isposinf(places.distance)
        if integrated:
            reached = places.at(np.where(far, source.reach(places), places.distance))
        elif far.any():
            raise InputError(
                "there is no density at an infinite distance; the extinction through "
                "the whole map is integrated=True, total=True"
            )
        inside = source.box.contains(reached.positions())
        return _Asked(
            integrated=bool(integrated), places=places, reached=reached, inside=inside
        )

    def _flags(self, asked: _Asked, answer: u.Quantity) -> np.ndarray:
        places, flags = asked.places, np.zeros(len(asked.places), dtype=FLAGS)
        # What has no value though it is in the box is not in the map either.
        axes = tuple(range(len(places.shape), answer.ndim))
        inside = asked.inside & np.isfinite(answer.value).all(axis=axes).reshape(-1)
        within = asked.reached.select(inside)
        unseen = self.source.unseen(within)
        flags["inside"] = inside
        flags["no_distance"] = np.isnan(places.distance)
        flags["to_edge"] = np.isposinf(places.distance) & inside
        flags["unseen"][inside] = unseen
        # What is known of a pixel's ray is no news of a cell that is known itself.
        beyond = within.distance > self.source.last_star(within)
        flags["extrapolated"][inside] = unseen & beyond
        return places.restore(flags)
