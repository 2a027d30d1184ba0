"""Queries of a map: coordinates in, quantities out."""

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

from pipelines.base.errors import InputError
from pipelines.base.quantities import numbers, path_of
from pipelines.base.table import Facts, Table
from pipelines.cubes.cube import Cube
from pipelines.maps.answers import PRIOR_SHARE, Answers, Kind
from pipelines.maps.opening import open_answers
from pipelines.maps.places import Places, places_of
from pipelines.storage.atomic import atomic_directory, atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FLAG_NAMES = ("inside", "extrapolated", "unseen", "no_distance", "to_edge")
FLAGS = np.dtype([(name, "?") for name in _FLAG_NAMES])
"""Flags of a query.

``inside``: the place is in the map; values outside are NaN. ``unseen``: no sight line
crosses the cell. ``extrapolated``: no sight line crosses it or any cell behind, so the
value is the prior's. ``no_distance``: the distance is missing. ``to_edge``: the
distance was infinite, and the value is that at the edge of the map.
"""
PRIOR_FLAGS = np.dtype([*FLAGS.descr, ("beyond_box", "?"), ("prior_share", "f8")])
"""Flags of a map that its prior continues. ``beyond_box``: the place is outside the
box, and not ``inside``; ``prior_share``: the share of the mean that is the prior's."""
# What maps answer outside their boxes.
OUTSIDE = ("nan", "prior")
# Moments by mode.
_KINDS: dict[str, Kind] = {"mean": "mean", "std": "std", "median": "p50"}
MODES = (*_KINDS, "percentile", "samples", "random_sample")
Percentiles = float | Sequence[float] | np.ndarray


class Crossing(NamedTuple):
    """The distance at which a sight line reaches an extinction [pc].

    ``lower`` to ``upper`` is the 68% interval. Distances beyond the map are NaN, but
    ``lower`` is at most the end of the map.
    """

    distance: u.Quantity
    lower: u.Quantity
    upper: u.Quantity


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The posterior of extinctions [mag] or densities [mag/pc] at coordinates.

    Values are NaN outside the map and for missing distances. ``mean`` and ``std`` are
    ``None`` if the map holds none. ``quantiles`` are ``p2_5``, ``p16``, ``p50``,
    ``p84`` and ``p97_5`` by name, normal if the map holds mean and std alone, empty
    without std, and for another program's map those in its file. ``flags`` is a
    structured array: see `FLAGS`. ``estimate`` says whether kriging contributes to the
    values (`ESTIMATES`); it is empty for maps of other programs.
    """

    mean: u.Quantity | None
    std: u.Quantity | None
    quantiles: dict[str, u.Quantity]
    flags: np.ndarray
    estimate: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class DustMap:
    """A map to query at coordinates: moments and quantiles are interpolated."""

    answers: Answers

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the map without its `cube`."""
        return {"answers": self.answers}

    def __repr__(self) -> str:
        return Table.of_rows([self._facts()], "dustmap map").listed()

    def _repr_html_(self) -> str:
        return Table.of_rows([self._facts()], "dustmap map").html()

    def _facts(self) -> Facts:
        facts = {"opened from": str(self.path), "band": self.band or "unknown"}
        return facts | self.answers.facts

    @property
    def path(self) -> Path:
        """File or folder of the opened map."""
        return self.answers.path

    @property
    def band(self) -> str:
        """The band of the extinction; empty if unknown."""
        return self.answers.band

    @property
    def verdict(self) -> str:
        """The grade of the map, its reason and advice; empty if not stated."""
        return self._facts().get("verdict", "")

    @property
    def has_samples(self) -> bool:
        """True if posterior samples are available."""
        return self.answers.sample_count > 0

    @cached_property
    def cube(self) -> Cube:
        """The density on the map's own grid.

        ``cube.arrays["mean"]``, ``"std"``, ``"p50"`` and others have shape
        ``(z, y, x)``, in ``cube.unit``; ``cube.x`` to ``cube.z`` [pc] are the cells'
        centres, ``cube.finer`` the nested grids. Raises `InputError` if the map has no
        density.
        """
        return self.answers.cube()

    def plot(self, kind: str = "face-on", **options: Any) -> Figure:
        """Draw a figure of the map, as ``dustmap plot --kind`` does.

        ``kind`` is ``face-on``, ``near``, ``edge-on``, ``sky``, ``los``, ``slice`` or
        ``compare``; ``options`` are those of `pipelines.figures.registry.PlotOptions`,
        such as ``distances=[500, 1000]`` [pc]. Raises `InputError` if the kind is
        unknown, or the map lacks a product for it.
        """
        from pipelines.figures.registry import PlotOptions, check_used, draw

        chosen = PlotOptions(**options)
        check_used([kind], chosen)
        return draw(self.answers, kind, chosen)

    def save(self, path: str | Path, *, overwrite: bool = False) -> DustMap:
        """Copy the map, e.g. one fitted without ``output``, and open the copy.

        Raises `InputError` if the path exists and ``overwrite`` is false, or this map
        answers otherwise than the file that it was opened from.
        """
        path = path_of(path)
        maps = self.answers, open_answers(self.path)
        if len({type(one) for one in maps}) > 1:
            raise InputError(
                f"{self.path} is opened with outside=, which a copy would not hold: "
                "save the map without it, and open the copy with it"
            )
        if self.path.is_dir():
            with atomic_directory(path, overwrite=overwrite) as folder:
                shutil.copytree(self.path, folder, dirs_exist_ok=True)
        else:
            with atomic_file(path, overwrite=overwrite) as file:
                shutil.copyfile(self.path, file)
        return open_map(path)

    def with_outside(self, outside: str) -> DustMap:
        """Return this map with values outside its box: ``nan``, or of its ``prior``.

        With the prior, extinctions beyond the box, also to infinite distances, add the
        mean and the variance of the learnt disc to the map's; densities there are the
        prior's (`PRIOR_FLAGS`). Raises `InputError` if the map holds no such prior.
        """
        if outside not in OUTSIDE:
            raise InputError(f"outside must be {' or '.join(OUTSIDE)}, got {outside!r}")
        if outside == "nan":
            return self
        from pipelines.maps.prior_beyond import PriorBeyond

        return DustMap(answers=PriorBeyond.of(self.answers))

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

        Mean, std, percentiles and samples are of one distribution at every place; but
        of a positive density 8 samples have 0.97 of the std of extinctions and 0.89 of
        that of densities, 24 samples 0.96 and 0.92 (`dustmap.isotonic.Ranked.samples`).
        The extinction of such a density never decreases along a direction (within 2
        milliarcsec), by nodes of its own ray at fixed distances; nothing depends on the
        other places of a call. Structure below the grid's cells is drawn once per cell
        for samples of the density.

        Mean, std and quantiles of densities are interpolated trilinearly between grid
        points, extinctions between pixels' rays; `dustmap.predict` gives those of a run
        at the places themselves.

        Parameters
        ----------
        coords
            Any frame, any shape, with distances; extinctions to infinite ones end at
            the map's edge, and densities there are NaN.
        integrated
            True for the extinction from the observer to each place [mag], False for
            the density there [mag/pc]. Required.
        mode
            ``mean``, ``std``, ``median``, ``percentile`` (with ``pct``), ``samples``
            (all posterior draws) or ``random_sample`` (one of them, the
            same for all coordinates, chosen by ``rng``).
        pct
            One percentile, or a list of them.
        total
            Return the extinction through the whole map, and ignore distances.
        return_flags
            Return flags beside the values: see `FLAGS`.

        Returns
        -------
        A `Quantity` of the coordinates' shape, with a last axis of samples or listed
        percentiles; NaN outside the map and for missing distances. With
        ``return_flags`` a pair of it and a structured array.

        Raises
        ------
        InputError
            If an option or distances are missing, the map lacks the moment, or all
            distances of densities are infinite.
        """
        if integrated is None or (total and not integrated):
            raise InputError(
                "choose integrated=True for the extinction from the observer to each "
                "place [mag], or integrated=False for the extinction density there "
                "[mag/pc]; total=True goes with integrated=True only"
            )
        if mode not in MODES:
            raise InputError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if (pct is None) == (mode == "percentile"):
            raise InputError(
                "mode 'percentile', and no other, takes percentiles (--pct 16,50,84 or "
                f"pct=[16, 50, 84]); got mode {mode!r} and pct={pct!r}"
            )
        percentiles = np.atleast_1d(50.0 if pct is None else pct)
        valid = percentiles.size and percentiles.dtype.kind in "fiu"
        valid = valid and ((percentiles > 0) & (percentiles < 100)).all()
        if not valid or percentiles.ndim > 1:
            raise InputError(f"percentiles must lie between 0 and 100, got {pct!r}")
        if mode == "random_sample" and rng is None:
            raise InputError(
                "mode='random_sample' needs rng=np.random.default_rng(seed), for a "
                "reproducible choice"
            )
        answers = self.answers
        places, reached = self._reached(coords, integrated, total)
        if not integrated and len(places) and np.isposinf(places.distance).all():
            raise InputError(
                "the density is undefined at infinite distance; use integrated=True, "
                "total=True for the extinction through the whole map"
            )
        if mode in ("samples", "random_sample"):
            chosen = rng if mode == "random_sample" else None
            values = answers.samples(reached, integrated=integrated, rng=chosen)
        else:
            kinds: list[Kind] = [float(p) / 100 for p in percentiles]
            if pct is None:
                kinds = [_KINDS[mode]]
            found = answers.moments(reached, kinds, integrated=integrated)
            values = np.stack([found[kind] for kind in kinds], axis=-1)
            values = values if pct is not None and np.ndim(pct) > 0 else values[:, 0]
        answer = _quantity(places, values, integrated)
        if not return_flags:
            return answer
        return answer, self._flags(places, reached, values, integrated)

    def extinction(self, coords: SkyCoord, *, total: bool = False) -> Answer:
        """Return the posterior of the extinction from the observer to coordinates.

        As `query` with all modes that the map holds, in one pass.
        """
        return self._answer(coords, integrated=True, total=total)

    def density(self, coords: SkyCoord) -> Answer:
        """Return the posterior of the density at coordinates, as `extinction`."""
        return self._answer(coords, integrated=False, total=False)

    def extinction_and_density(self, coords: SkyCoord) -> tuple[Answer, Answer]:
        """Return `extinction` and `density` at the same coordinates."""
        return self.extinction(coords), self.density(coords)

    def _answer(self, coords: SkyCoord, *, integrated: bool, total: bool) -> Answer:
        answers = self.answers
        places, reached = self._reached(coords, integrated, total)
        kinds = answers.default_kinds(integrated=integrated) or ("mean",)
        found = answers.moments(reached, kinds, integrated=integrated)
        share = found.pop(PRIOR_SHARE, None)
        first = next(iter(found.values()))
        parts = {
            str(kind): _quantity(places, values, integrated)
            for kind, values in found.items()
        }
        return Answer(
            mean=parts.pop("mean", None),
            std=parts.pop("std", None),
            quantiles=parts,
            flags=self._flags(places, reached, first, integrated, share),
            estimate=answers.said(integrated=integrated),
        )

    def distance_at(
        self,
        coords: SkyCoord,
        extinction: u.Quantity | float | np.ndarray,
        *,
        return_flags: bool = False,
    ) -> Any:
        """Return the distance at which the median curves reach an extinction.

        Parameters
        ----------
        coords
            Directions; distances are ignored.
        extinction
            Positive [mag]: one, or one for each coordinate.

        Returns
        -------
        `Crossing` of three quantities [pc] of the coordinates' shape; NaN if the map
        ends before. With ``return_flags`` a pair of it and an array of
        `pipelines.maps.rays.CROSSING_FLAGS`.

        Raises
        ------
        InputError
            If the map holds no integrated extinction, or an extinction is not positive.
        """
        places = places_of(coords, total=True)
        try:
            values = numbers(extinction, u.mag)
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
        found, flags = self.answers.crossings(places, values)
        parts = [u.Quantity(places.restore(part), u.pc, copy=False) for part in found]
        crossing = Crossing(*parts)
        return (crossing, places.restore(flags)) if return_flags else crossing

    def _reached(
        self, coords: SkyCoord, integrated: bool, total: bool
    ) -> tuple[Places, Places]:
        """Return places, and the same with infinite distances at the map's edge.

        Those of densities, which are undefined there, become NaN; so do all where the
        map ends at the Sun.
        """
        places = places_of(coords, total=total)
        far = np.isposinf(places.distance)
        if not far.any():
            return places, places
        reach = self.answers.reach(places) if integrated else np.nan
        reach = np.where(reach > 0, reach, np.nan)
        return places, places.at(np.where(far, reach, places.distance))

    def _flags(
        self,
        places: Places,
        reached: Places,
        values: np.ndarray,
        integrated: bool,
        share: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return flags of values ``(n, ...)`` at places ``reached`` in the map.

        ``share`` is the prior's, of a map that it continues, if known.
        """
        by_prior = PRIOR_SHARE in self.answers.kinds(integrated=integrated)
        flags = np.zeros(len(places), dtype=PRIOR_FLAGS if by_prior else FLAGS)
        # A place in the box without a value is also outside the map.
        inside = np.asarray(np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
        if by_prior:
            if share is None:
                kinds, which = (PRIOR_SHARE,), {"integrated": integrated}
                share = self.answers.moments(reached, kinds, **which)[PRIOR_SHARE]
            within = self.answers.box.contains(reached.positions())
            flags["prior_share"] = np.where(inside, share, np.nan)
            flags["beyond_box"] = inside & ~within
            inside &= within
        within = reached.select(inside)
        unseen = self.answers.support(within) <= 0
        flags["inside"] = inside
        flags["no_distance"] = np.isnan(places.distance)
        flags["to_edge"] = np.isposinf(places.distance) & inside
        flags["unseen"][inside] = unseen
        # A cell's own support takes precedence over the last star of a pixel's ray.
        dark = within.select(unseen)
        beyond = np.zeros(len(within), dtype=bool)
        beyond[unseen] = dark.distance > self.answers.last_star(dark)
        flags["extrapolated"][inside] = beyond
        return places.restore(flags)


def open_map(reference: Any, *, outside: str = "nan", **stated: Any) -> DustMap:
    """Open a run folder, a map store, another export, or an object with ``query``.

    ``outside="prior"`` continues the map beyond its box (`DustMap.with_outside`).
    Objects are those of the
    package dustmaps, by name too (``dustmaps:edenhofer2023``), or others with
    ``query(coordinates)``; ``stated`` is what they return, ``integrated=False,
    factor=2.8`` (`pipelines.maps.queried.open_queried`), and may be left out for the
    classes in ``catalogs/maps/published.toml``. Raises `InputError` if this is not a
    map, what an object returns is not known, or the map has no prior that is known
    outside.
    """
    is_object = hasattr(reference, "query") and not isinstance(reference, DustMap)
    if not is_object and not isinstance(reference, str):
        reference = path_of(reference, "an object with query, or the path of a map")
    dust = DustMap(answers=open_answers(reference, **stated))
    return dust.with_outside(outside)


def _quantity(places: Places, values: np.ndarray, integrated: bool) -> u.Quantity:
    """Return values ``(n, ...)`` in the shape of the coordinates, with their unit."""
    unit = u.mag if integrated else u.mag / u.pc
    return u.Quantity(places.restore(values), unit, copy=False)
