"""A fit as a map: exact moments and draws at places, and its products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import healpy
import numpy as np
import torch

from dustmap.functionals import Functionals, PointValues, Stack
from dustmap.grid import Grid
from dustmap.isotonic import non_decreasing
from dustmap.keyed_noise import Purpose, keyed_normals, torch_stream
from dustmap.residual.stacking import StackedKriging
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.quantiles import KINDS
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns, Ends, LineOfSight, SkyMaps
from pipelines.formats.healpix import read_healpix
from pipelines.maps.answers import (
    ESTIMATES,
    Answers,
    Directions,
    Found,
    Kind,
    at_all_places,
    probability,
)
from pipelines.maps.density import columns, map_and_columns, usual_ends
from pipelines.maps.places import Places
from pipelines.maps.provenance import provenance
from pipelines.maps.sky import (
    default_distances,
    default_nside,
    integrated,
    last_star,
    lines_of_sight,
)
from pipelines.maps.stored import Stored, open_store
from pipelines.model.observations import outward_rays
from pipelines.run.facts import Facts, run_facts
from pipelines.run.folder import Run

# Places per batch.
_ROWS = 1 << 16
# Pixels of 0.9 deg.
_NSIDE = 64
# Directions closer than this [rad], 2 milliarcsec, are equal. Round coordinates lie in
# the middle of such a step, which absorbs rounding errors.
_NEAR = 1e-8
# Places closer than this [pc] are equal.
_NEAR_PLACES = 1e-3


@dataclass(frozen=True, kw_only=True, repr=False)
class RunMap(Answers):
    """A finished fit, with values computed anew.

    Products are read from the run folder if those there are what would be computed.
    """

    run: Run

    @classmethod
    def of(cls, run: Run) -> RunMap:
        """Return a run as a map."""
        about = provenance(run)
        return cls(
            path=run.path,
            band=str(about["extinction_band"]),
            verdict=str(run.verdict),
            run=run,
            estimate="map" if run.posterior.stack is None else "kriged",
        )

    @property
    def fit(self) -> Run:
        return self.run

    @property
    def has_samples(self) -> bool:
        return len(self.run.posterior.samples) > 0

    @property
    def box(self) -> Box:
        return self.run.box

    @property
    def facts(self) -> Facts:
        return {**run_facts(self.run), "extinctions": ESTIMATES[self.estimate]}

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        return KINDS

    def _samples(
        self, places: Places, integrated: bool, rng: np.random.Generator | None
    ) -> np.ndarray:
        count = len(self.run.posterior.samples)
        if not count:
            raise InputError(
                "this run has no posterior samples; fit with --set inference.samples=32"
            )
        chosen = slice(None) if rng is None else int(rng.integers(count))
        inside = self.box.contains(places.positions())
        within = places.select(inside)
        found = np.empty((count, len(within)))[chosen]
        for rows, ends, functionals in self._blocks(integrated, within):
            found[..., rows] = self._draws(functionals, ends, integrated)[chosen]
            if integrated and self._stack is not None:
                of_map = self.run.posterior.moments(functionals, rows=len(functionals))
                moments = of_map.mean.numpy(), of_map.std.numpy()
                found[..., rows] *= self._stack.factor(torch.as_tensor(ends), *moments)
        if integrated and self.run.posterior.model.positive:
            rising = _rising(np.atleast_2d(found), np.ones(len(within)), within)
            found = rising.reshape(found.shape)
        whole = np.full((len(places), *found.shape[:-1]), np.nan)
        whole[inside] = found.T
        return whole

    @property
    def _stack(self) -> StackedKriging | None:
        """The kriging that has a share in extinctions, if any."""
        return self.run.posterior.stack if self.estimate == "kriged" else None

    def support(self, places: Places) -> np.ndarray:
        return self.run.support_at(places.positions())

    def last_star(self, places: Places) -> np.ndarray:
        return last_star(self.run, places.directions)

    def reach(self, places: Places) -> np.ndarray:
        """Return the distance at which each sight line leaves the box [pc]."""
        return self.box.exits(places.directions)

    def _cube(self) -> Cube:
        return self._computed[0] if self._store is None else self._store.cube()

    def _columns(self, along: str, between: Ends | None, level: int) -> Columns | None:
        """Return the integral through a level's box; ``None`` with the engine svi."""
        if level:
            return columns(self.run, along, between, level=level)
        stored = None if self._store is None else self._store.columns(along, between)
        usual = usual_ends(self.run)
        if stored is not None or not usual:
            return stored
        if along in usual and usual[along] == between:
            return self._computed[1][along]
        return columns(self.run, along, between)

    def _sky_maps(
        self, distances: Sequence[float] | None, nside: int | None
    ) -> SkyMaps:
        stored = self.path / "map.healpix.fits"
        usual = nside is None and distances is None
        chosen = default_distances(self.run) if distances is None else distances
        nside = default_nside(self.run) if nside is None else nside
        if usual and stored.exists():
            maps = read_healpix(stored)
            whole = nside == maps.nside and np.array_equal(maps.distances, chosen)
            if whole and maps.filled is None and self._is_own(maps.meta):
                return maps
        return integrated(self.run, distances=np.array(chosen), nside=nside)

    def _lines(self, directions: Directions | None) -> list[LineOfSight]:
        return lines_of_sight(self.run, directions)

    @cached_property
    def _store(self) -> Stored | None:
        """The store in the run's folder, if it holds the run's density on its grids."""
        path = self.path / "map.zarr"
        if not path.exists() or not self._is_own((store := open_store(path)).meta):
            return None
        assert store.cells is not None
        held, own = (
            [(*grid.lower, *grid.upper, *grid.shape) for grid in grids]
            for grids in (store.cells.grids, self.run.plan.grids)
        )
        return store if len(held) == len(own) and np.allclose(held, own) else None

    def _is_own(self, meta: dict[str, Any]) -> bool:
        """Return true if a product is of this fit and band, uncut, by this version."""
        own = provenance(self.run)
        stated = ("program", "fit", "extinction_band")
        return "cut" not in meta and all(meta.get(name) == own[name] for name in stated)

    @cached_property
    def _computed(self) -> tuple[Cube, dict[str, Columns]]:
        """The run's cube and the columns for figures, from one pass."""
        return map_and_columns(self.run, usual_ends(self.run))

    def both(self, places: Places, kinds: Sequence[Kind]) -> list[Found]:
        # Extinction and density at a place have the same neighbours.
        inside = self.box.contains(places.positions())
        parts = self._found(places.select(inside), kinds, (True, False))
        return [
            {kind: self.factor * v for kind, v in at_all_places(part, inside).items()}
            for part in parts
        ]

    def _answers(
        self, places: Places, kinds: Sequence[Kind], integrated: bool
    ) -> Found:
        return self._found(places, kinds, (integrated,))[0]

    def _estimated(self, estimate: str) -> Answers:
        if estimate == "kriged" and self.run.posterior.stack is None:
            raise InputError(
                f"{self.path} has the {ESTIMATES['map']} only: on stars that the fit "
                "had not seen, kriging did not improve it"
            )
        return replace(self, estimate=estimate)

    def _found(
        self, places: Places, kinds: Sequence[Kind], which: tuple[bool, ...]
    ) -> list[Found]:
        """Return moments of each quantity, integrated or not, from one pass.

        Extinctions come first.
        """
        stack = self._stack if which[0] else None
        found = np.empty((len(which), len(kinds), len(places)))
        variances = np.full((len(which), len(places)), np.nan)
        positions = torch.as_tensor(places.positions())
        # Neighbouring places together: they share cells, and stars around them.
        pixels = healpy.vec2pix(_NSIDE, *positions.numpy().T, nest=True)
        order = np.argsort(pixels, kind="stable")
        for start in range(0, len(places) if kinds else 0, _ROWS):
            rows = order[start : start + _ROWS]
            functionals = Stack([self._functionals(w, positions[rows]) for w in which])
            moments = self.run.posterior.moments(functionals, rows=len(functionals))
            if moments.log_std is not None:
                variances[:, rows] = moments.log_std.reshape(len(which), -1) ** 2
            for number, kind in enumerate(kinds):
                if kind in ("mean", "std"):
                    values = getattr(moments, str(kind))
                else:
                    values = moments.quantile(probability(kind))
                found[:, number, rows] = values.reshape(len(which), -1)
            if stack is not None:
                count = len(positions[rows])
                of_map = moments.mean[:count].numpy(), moments.std[:count].numpy()
                found[0][:, rows] *= stack.factor(positions[rows], *of_map)
        rest = [i for i, kind in enumerate(kinds) if kind != "std"]
        for part, variance, outward in zip(found, variances, which, strict=True):
            if outward and np.isfinite(variance).any():
                part[rest] = _rising(part[rest], variance, places)
        return [dict(zip(kinds, part)) for part in found]

    def _functionals(self, integrated: bool, positions: torch.Tensor) -> Functionals:
        """Return extinctions to positions [pc], or densities there."""
        if integrated:
            return outward_rays(self.run.plan, positions)
        return PointValues(positions)

    def _blocks(
        self, integrated: bool, places: Places
    ) -> Iterator[tuple[slice, np.ndarray, Functionals]]:
        """Yield rows in blocks, their positions [pc] and their functionals."""
        positions = places.positions()
        for start in range(0, len(places), _ROWS):
            rows = slice(start, start + _ROWS)
            ends = positions[rows]
            yield rows, ends, self._functionals(integrated, torch.as_tensor(ends))

    def _draws(
        self, functionals: Functionals, ends: np.ndarray, integrated: bool
    ) -> np.ndarray:
        if self.run.posterior.model.linear:
            # The field below the grid is drawn once for all blocks.
            generator = torch_stream(self.run.seed, Purpose.UNRESOLVED)
            return self.run.posterior.draws(functionals, generator).numpy()
        if not integrated:
            keys = self._cell_keys(ends)
        elif self.run.posterior.residual is None:
            keys = _direction_keys(ends)
        else:
            keys = _keys(2, np.rint(ends / _NEAR_PLACES))
        count, seed = len(self.run.posterior.samples), self.run.seed
        white = keyed_normals(torch.from_numpy(keys), count, seed, Purpose.UNRESOLVED)
        return self.run.posterior.draws_from(functionals, white).numpy()

    def _cell_keys(self, ends: np.ndarray) -> np.ndarray:
        """Return keys ``(n, 4)``, equal within a cell of the finest grid."""

        def cells(grid: Grid, ends: np.ndarray) -> np.ndarray:
            """Return the indices of the grid's cells, ``(n, 3)``."""
            return np.floor((ends - np.array(grid.origin)) / np.array(grid.spacing))

        coarsest, *finer = self.run.plan.grids
        keys = _keys(1, cells(coarsest, ends))
        for kind, grid in enumerate(finer, start=3):
            inside = grid.contains(torch.as_tensor(ends)).numpy()
            keys[inside] = _keys(kind, cells(grid, ends[inside]))
        return keys


def _rising(curves: np.ndarray, variances: np.ndarray, places: Places) -> np.ndarray:
    """Apply `non_decreasing` to extinctions ``(k, n)`` along each direction.

    A single place in a direction keeps its values: a result that is the same in any
    call would need predictions along the whole ray.
    """
    keys = _direction_keys(places.positions())
    order = np.lexsort((places.distance, *keys.T))
    first = np.diff(keys[order], axis=0, prepend=-1).any(axis=1)
    starts = np.append(np.nonzero(first)[0], len(order))
    found = np.empty_like(curves)
    found[:, order] = non_decreasing(curves[:, order], variances[order], starts)
    return found


def _direction_keys(ends: np.ndarray) -> np.ndarray:
    """Return keys ``(n, 4)`` that are equal along a ray from the observer."""
    distance = np.linalg.norm(ends, axis=1, keepdims=True)
    vectors = ends / np.where(distance > 0, distance, 1.0)
    return _keys(0, np.rint(vectors / _NEAR))


def _keys(kind: int, numbers: np.ndarray) -> np.ndarray:
    kinds = np.full((len(numbers), 1), kind)
    return np.concatenate([kinds, numbers], axis=1).astype(np.int64)
