"""The interface of every map: moments at places, reach, whole products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dustmap.memory import row_blocks
from pipelines.bands import known_band
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.quantiles import KINDS, QUANTILES
from pipelines.base.table import Facts
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns, Ends, LineOfSight, SkyMaps
from pipelines.maps.places import Places

if TYPE_CHECKING:
    from dustmap.models.prior_integrals import PriorIntegrals

Kind = str | float
"""A moment of a posterior: ``mean``, ``std``, a quantile by name, or a probability."""
Kinds = Sequence[Kind]
Found = dict[Kind, np.ndarray]
Rng = np.random.Generator | None
Draws = np.ndarray
"""Posterior samples ``(n, s)``, or one of them ``(n,)``."""
Crossed = tuple[np.ndarray, np.ndarray]
"""Distances [pc] ``(3, n)`` and flags ``(n,)`` of `PixelRays.crossings`."""
Directions = Sequence[tuple[float, float]]
Distances = Sequence[float] | None
PRIOR_SHARE = "prior_share"
"""The kind of the share of the mean that is the prior's, beyond the box."""
ESTIMATES = {"kriged": "map and kriging together", "map": "map without kriging"}
"""Estimates of extinctions in words; densities and their integrals are the map's."""


class MissingError(InputError):
    """A product that the map does not hold."""


def probability(kind: Kind) -> float:
    """Return the probability of a quantile."""
    return QUANTILES[kind] if isinstance(kind, str) else kind


@dataclass(frozen=True, kw_only=True, repr=False)
class Answers:
    """A map of any origin, in its own band.

    Values outside the map are NaN. ``path`` is the file, folder or name of the opened
    map, ``band`` the name of the extinction's band, ``verdict`` the one on the fit, and
    ``estimate`` one of `ESTIMATES`, empty for other programs' maps. Band and verdict
    are empty if unknown. ``run`` is the folder of the fit, if the map is opened there,
    ``sample_count`` the number of its posterior samples.
    """

    path: Path
    band: str = ""
    verdict: str = ""
    estimate: str = ""
    run: Path | None = None
    sample_count: int = 0

    @property
    def box(self) -> Box:
        """The volume of the map."""
        raise NotImplementedError

    @property
    def extent(self) -> float:
        """Half the side of the largest cube that the map reaches [pc]."""
        return float(np.abs([self.box.lower, self.box.upper]).max())

    @property
    def facts(self) -> Facts:
        """A few lines that describe the map."""
        return {}

    @property
    def known_band(self) -> str:
        """Name of the band; empty if the band is not recognized."""
        return known_band(self.band)

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        """Return the names of the moments that the map holds."""
        raise NotImplementedError

    def default_kinds(self, *, integrated: bool) -> tuple[Kind, ...]:
        """Return the moments of a full answer: normal quantiles if none are held."""
        return KINDS if "std" in self.kinds(integrated=integrated) else ("mean",)

    def origins(self) -> list[dict[str, Any]]:
        """Return the maps of other programs that contribute to the answers.

        Each entry has map, reference, quantity, band and factor.
        """
        return []

    def moments(self, places: Places, kinds: Kinds, *, integrated: bool) -> Found:
        """Return moments of the extinction [mag] or density [mag/pc], ``(n,)`` each."""
        inside = self.box.contains(places.positions())
        found = self._answers(places.select(inside), kinds, integrated)
        return at_all_places(found, inside)

    def _answers(self, places: Places, kinds: Kinds, integrated: bool) -> Found:
        """Return moments at places in the box."""
        raise NotImplementedError

    def median_or_mean(self, places: Places, *, integrated: bool) -> np.ndarray:
        """Return the median, or the mean where a map has no median."""
        kind = "p50" if "p50" in self.kinds(integrated=integrated) else "mean"
        return self.moments(places, (kind,), integrated=integrated)[kind]

    def samples(self, places: Places, *, integrated: bool, rng: Rng = None) -> Draws:
        """Return posterior samples ``(n, s)``; with ``rng`` one of them, ``(n,)``.

        Raises `InputError` if the map has none.
        """
        raise InputError(
            f"{self.path} holds no posterior samples: open a run or its map.zarr, of a "
            "fit with --set inference.samples=32"
        )

    def support(self, places: Places) -> np.ndarray:
        """Return the sight-line length [cells] in each place's cell; 1 if unknown."""
        return np.ones(len(places))

    def last_star(self, places: Places) -> np.ndarray:
        """Return the end of the last stretch with stars on each sight line [pc]."""
        raise NotImplementedError

    def reach(self, places: Places) -> np.ndarray:
        """Return the distance at which the map ends on each sight line [pc]."""
        raise NotImplementedError

    def crossings(self, places: Places, extinction: np.ndarray) -> Crossed:
        """Return distances at which extinctions are reached (`PixelRays.crossings`).

        Raises `InputError` if the map holds no precomputed curves.
        """
        raise InputError(
            "distances at given extinctions need precomputed curves: open the map "
            "store written by `dustmap export RUN --zarr`"
        )

    def prior(self) -> PriorIntegrals:
        """Return the prior of the density.

        Raises `InputError` if the map has none that is known beyond its box.
        """
        raise InputError(
            f"{self.path} has no prior beyond its box: outside='prior' (--outside "
            "prior) is for runs whose mean density is a disc, and for their whole "
            "map.zarr and map.fits"
        )

    def cube(self) -> Cube:
        """Return the density on the map's own grid.

        This method and those below raise `MissingError` if the map lacks the product.
        """
        raise self._lacks("density cube", "a cube or a run (map.zarr or map.fits)")

    def columns(
        self, along: str, between: Ends | None = None, *, level: int = 0
    ) -> Columns | None:
        """Return the integral through a level's box; ``None`` if unavailable."""
        return None

    def sky_maps(
        self, distances: Distances = None, nside: int | None = None
    ) -> SkyMaps:
        """Return the cumulative extinction over the sky."""
        raise self._lacks(
            "integrated extinctions", "a run, map.healpix.fits or a newer map.zarr"
        )

    def lines(self, directions: Directions | None = None) -> list[LineOfSight]:
        """Return the extinction along lines of sight."""
        raise self._lacks("extinctions along rays", "a run or a newer map.zarr")

    def said(self, *, integrated: bool) -> str:
        """Describe the estimate of extinctions or densities; empty if unknown."""
        kind = self.estimate if integrated else self.estimate and "map"
        return ESTIMATES.get(kind, "")

    def _lacks(self, what: str, where: str) -> MissingError:
        """Return the error for a missing product, and where to find one."""
        return MissingError(f"{self.path} has no {what}: name {where}")


def named(origin: dict[str, Any]) -> str:
    """Return one of `Answers.origins` in a line."""
    return ", ".join(f"{key} {value}" for key, value in origin.items() if value != "")


def extinctions_along(
    answers: Answers, directions: np.ndarray, distances: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the moments of extinctions that a map holds, ``(e, n)`` each [mag].

    ``directions`` are unit vectors ``(n, 3)``, ``distances`` [pc] have shape ``(e,)``.
    """
    kinds = answers.default_kinds(integrated=True)
    shape = (len(directions), len(distances))
    whole = {str(kind): np.empty(shape[::-1]) for kind in kinds}
    far = np.broadcast_to(distances, shape)
    for rows in row_blocks(len(directions), 1024 * len(distances)):
        places = Places.along(directions[rows], far[rows])
        found = answers.moments(places, kinds, integrated=True)
        for kind in kinds:
            whole[str(kind)][:, rows] = found[kind].reshape(places.shape).T
    return whole


def at_all_places(found: Found, inside: np.ndarray) -> Found:
    """Return values of the places inside a mask, and NaN elsewhere."""
    whole = {}
    for kind, values in found.items():
        whole[kind] = np.full((len(inside), *values.shape[1:]), np.nan)
        whole[kind][inside] = values
    return whole
