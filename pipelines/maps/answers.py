"""The questions that every map answers: moments at places, reach, whole products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.bands import Conversion, known_band, wanted_conversion
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.quantiles import QUANTILES
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns, Ends, LineOfSight, SkyMaps
from pipelines.maps.places import Places
from pipelines.maps.provenance import convert
from pipelines.run.facts import Facts

if TYPE_CHECKING:
    from pipelines.run.folder import Run

Kind = str | float
"""A moment of a posterior: ``mean``, ``std``, a quantile by name, or a probability."""
Found = dict[Kind, np.ndarray]
Directions = Sequence[tuple[float, float]]
# Where the values of continued maps are from: the map itself, the other one, the other
# one added to the map.
OWN, OTHER, JOINED = 0.0, 1.0, 2.0
FILLED = "filled"
# Nearer than this [pc] there is no dust, and maps do not answer.
NOTHING = 1e-3
EVERYWHERE = Box(lower=(-math.inf,) * 3, upper=(math.inf,) * 3)


class MissingError(InputError):
    """A map that lacks what is needed."""


def probability(kind: Kind) -> float:
    """Return the probability of a kind that is a quantile."""
    return QUANTILES[kind] if isinstance(kind, str) else kind


@dataclass(frozen=True, kw_only=True, repr=False)
class Answers:
    """A map, whatever it is read from; each kind overrides the methods that begin "_".

    These answer in the map's own band, the public ones in the band of ``change``.
    Places may lie anywhere: where a map has no value the answer is NaN.

    Parameters
    ----------
    path
        File, folder or name that it was opened from.
    band
        The band of the extinction; empty if it is not known.
    verdict
        Whether the map can be used; empty if that is not stated.
    unit
        Unit of the densities of `cube`.
    change, factor
        Conversion to another band, and the factor of all extinctions.
    """

    path: Path
    band: str = ""
    verdict: str = ""
    unit: str = "mag pc-1"
    change: Conversion | None = None
    factor: float = 1.0

    @property
    def box(self) -> Box:
        """Where the map is."""
        raise NotImplementedError

    @property
    def facts(self) -> Facts:
        """A few lines that describe the map."""
        return {}

    @property
    def fit(self) -> Run | None:
        """The run, of a map that is one."""
        return None

    @property
    def has_samples(self) -> bool:
        """True if a run draws posterior samples."""
        return False

    @property
    def known_band(self) -> str:
        """Name of the band; empty if that is not one that is known."""
        return known_band(self.band)

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        """Moments of the extinction, or of the density, that the map holds."""
        raise NotImplementedError

    def moments(
        self, places: Places, kinds: Sequence[Kind], *, integrated: bool
    ) -> Found:
        """Moments of the extinction [mag] or density [mag/pc], ``(n,)`` each."""
        found = self._moments(places, kinds, integrated)
        return {k: v if k == FILLED else self.factor * v for k, v in found.items()}

    def central(self, places: Places, *, integrated: bool) -> np.ndarray:
        """The moment by which another map is continued or compared: the median.

        The mean where there is no median: integrals of a cube have a mean alone.
        """
        kinds = self.kinds(integrated=integrated)
        kind = "p50" if "p50" in kinds else "mean"
        return self.moments(places, (kind,), integrated=integrated)[kind]

    def samples(
        self,
        places: Places,
        *,
        integrated: bool,
        rng: np.random.Generator | None = None,
    ) -> np.ndarray:
        """Posterior samples, shape ``(n, s)``; with ``rng`` one of them, ``(n,)``.

        Raises `InputError` if the map has none.
        """
        return self.factor * self._samples(places, integrated, rng)

    def support(self, places: Places) -> np.ndarray:
        """Sight-line length [cells] in the cell of each place; 1 where not known."""
        return np.ones(len(places))

    def last_star(self, places: Places) -> np.ndarray:
        """Distance at which the last seen stretch of each sight line ends [pc]."""
        raise NotImplementedError

    def reach(self, places: Places) -> np.ndarray:
        """Distance as far as which each sight line can be followed [pc]."""
        raise NotImplementedError

    def crossings(
        self, places: Places, extinction: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances at which extinctions are reached (`PixelRays.crossings`).

        Raises `InputError` if the map holds no precomputed curves.
        """
        return self._crossings(places, extinction / self.factor)

    def cube(self) -> Cube:
        """The density on the map's own grid, whole.

        Raises `MissingError` if there is none; as the methods below.
        """
        return self._converted_cube

    @cached_property
    def _converted_cube(self) -> Cube:
        return convert(self._cube(), self.change, self.factor)

    def columns(
        self, along: str, between: Ends | None = None, *, level: int = 0
    ) -> Columns | None:
        """The integral through a level's box with its std; ``None`` if not known."""
        found = self._columns(along, between, level)
        return None if found is None else convert(found, self.change, self.factor)

    def held_maps(self) -> SkyMaps | None:
        """Extinctions that were integrated beforehand, at all distances, if any."""
        found = self._held_maps()
        return None if found is None else convert(found, self.change, self.factor)

    def sky_maps(
        self, distances: Sequence[float] | None = None, nside: int | None = None
    ) -> SkyMaps:
        """Cumulative extinction over the sky."""
        return convert(self._sky_maps(distances, nside), self.change, self.factor)

    def lines(self, directions: Directions | None = None) -> list[LineOfSight]:
        """Extinction along lines of sight."""
        return [line.scaled(self.factor) for line in self._lines(directions)]

    def in_band(
        self, band: str | None, declared: str | None = None, **by: Any
    ) -> Answers:
        """Return this map in another band (`pipelines.bands.wanted_conversion`)."""
        meta = {"extinction_band": self.band}
        return self.converted(wanted_conversion(meta, band, declared, **by))

    def converted(self, change: Conversion | None, factor: float = 1.0) -> Answers:
        """Return this map by a conversion, or with all values times a factor."""
        if change is None:
            return self if factor == 1 else replace(self, factor=self.factor * factor)
        factor = self.factor * change.factor
        return replace(self, band=change.target, change=change, factor=factor)

    def beside(self, first: Answers, *, convert: bool = True) -> tuple[Answers, float]:
        """Return this map for a comparison, and the factor to the band of the first.

        It is converted where both bands are known, else taken to be in the band that
        the first one's file is in.
        """
        if convert and self.known_band and first.known_band:
            return self.in_band(first.known_band), 1.0
        return self, first.factor

    def _moments(
        self, places: Places, kinds: Sequence[Kind], integrated: bool
    ) -> Found:
        """`_answers` at places in the box among all, NaN at the others."""
        inside = self.box.contains(places.positions())
        found = {}
        answers = self._answers(places.select(inside), kinds, integrated)
        for kind, values in answers.items():
            found[kind] = np.full((len(places), *values.shape[1:]), np.nan)
            found[kind][inside] = values
        return found

    def _answers(
        self, places: Places, kinds: Sequence[Kind], integrated: bool
    ) -> Found:
        """Moments at places in the box."""
        raise NotImplementedError

    def _samples(
        self, places: Places, integrated: bool, rng: np.random.Generator | None
    ) -> np.ndarray:
        raise InputError(
            f"{self.path} holds no posterior samples: name the run folder beside the "
            "map, by --samples RUN or open_map(map, samples=RUN)"
        )

    def _crossings(
        self, places: Places, extinction: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        raise InputError(
            "the distance of an extinction is read off precomputed curves: open the "
            "map store of `dustmap export RUN --zarr`"
        )

    def _cube(self) -> Cube:
        raise self._lacks("density cube", "a cube or a run (map.zarr or map.fits)")

    def _columns(self, along: str, between: Ends | None, level: int) -> Columns | None:
        return None

    def _held_maps(self) -> SkyMaps | None:
        return None

    def _sky_maps(
        self, distances: Sequence[float] | None, nside: int | None
    ) -> SkyMaps:
        raise self._lacks(
            "integrated extinctions", "a run, map.healpix.fits or a newer map.zarr"
        )

    def _lines(self, directions: Directions | None) -> list[LineOfSight]:
        raise self._lacks("extinctions along rays", "a run or a newer map.zarr")

    def _lacks(self, what: str, where: str) -> MissingError:
        """Return the error for a map without ``what``, which ``where`` has."""
        return MissingError(f"{self.path} has no {what}: name {where}")
