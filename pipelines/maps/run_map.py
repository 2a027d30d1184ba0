"""A fit as a map: exact moments and draws at places, and its products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import healpy
import numpy as np
import torch

from dustmap.functionals import Functionals, PointValues
from dustmap.grid import Grid
from dustmap.isotonic import Ranked
from dustmap.keyed_noise import Purpose, keyed_normals, torch_stream
from dustmap.memory import row_blocks
from dustmap.models.prior_integrals import PriorIntegrals
from dustmap.moments import Moments, sample_order
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.quantiles import KINDS
from pipelines.base.table import Facts
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns, Ends, LineOfSight, SkyMaps
from pipelines.formats.healpix import read_healpix
from pipelines.maps import sky
from pipelines.maps.answers import (
    ESTIMATES,
    Answers,
    Crossed,
    Directions,
    Distances,
    Draws,
    Found,
    Kinds,
    Rng,
    probability,
)
from pipelines.maps.density import columns, map_and_columns, usual_ends
from pipelines.maps.integrals import OutwardCurves, has_curves, outward_curves, stack_of
from pipelines.maps.places import Places
from pipelines.maps.provenance import provenance
from pipelines.maps.rays import first_reached, grid_steps, within_map
from pipelines.maps.stored import Stored, open_store
from pipelines.model.engine import rays
from pipelines.run.folder import Run, read_run

# Pixels of 0.9 deg.
_NSIDE = 64


@dataclass(frozen=True, kw_only=True, repr=False)
class RunMap(Answers):
    """A finished fit, with values computed anew.

    Products are read from the run folder if those there are what would be computed.
    """

    run: Run

    @classmethod
    def of(cls, run: Run) -> RunMap:
        """Return a run as a map."""
        return cls(
            path=run.path,
            band=str(provenance(run)["extinction_band"]),
            verdict=str(run.verdict),
            run=run,
            estimate=stack_of(run, None)[1],
        )

    def __reduce__(self) -> Any:
        """Pickle the path alone: the copy reads the run folder again."""
        own = {name: getattr(self, name) for name in ("band", "estimate")}
        return _reopened, (self.path.absolute(), self.run.provenance["fit"], own)

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
        return {**self.run.facts, "extinctions": ESTIMATES[self.estimate]}

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        return KINDS

    def samples(self, places: Places, *, integrated: bool, rng: Rng = None) -> Draws:
        count = len(self.run.posterior.samples)
        if not count:
            raise InputError(
                "this run has no posterior samples; fit with --set inference.samples=32"
            )
        chosen = slice(None) if rng is None else int(rng.integers(count))
        inside = self.box.contains(places.positions())
        within = places.select(inside)
        found = np.empty((count, len(within)))
        if integrated and has_curves(self.run):
            for rows, curves, ray in self._curves(within, draws=True):
                found[:, rows] = curves.samples(within.distance[rows], ray)
        else:
            for rows, ends in self._blocks(within):
                found[:, rows] = self._draws(integrated, ends)
        whole = np.full((len(places), *found[chosen].shape[:-1]), np.nan)
        whole[inside] = found[chosen].T
        return whole

    def support(self, places: Places) -> np.ndarray:
        return self.run.support_at(places.positions())

    def last_star(self, places: Places) -> np.ndarray:
        return sky.last_star(self.run, places.directions)

    def reach(self, places: Places) -> np.ndarray:
        """Return the distance at which each sight line leaves the box [pc]."""
        return self.box.exits(places.directions)

    def crossings(self, places: Places, extinction: np.ndarray) -> Crossed:
        """Return where curves, asked at half grid steps, first reach extinctions."""
        reach, count = (
            self.reach(places),
            len(grid_steps(self.run.plan.nested_grids, 0.5)),
        )
        kinds, found = ("p50", "p84", "p16"), np.empty((3, len(places)))
        # A place, its direction and its moments.
        for rows in row_blocks(len(places), 100 * count):
            nodes = reach[rows, None] * np.linspace(0, 1, count + 1)
            along = Places.along(places.directions[rows], nodes[:, 1:])
            curves = self.moments(along, kinds, integrated=True)
            for part, kind in zip(found, kinds):
                curve = np.pad(along.restore(curves[kind]), ((0, 0), (1, 0)))
                part[rows] = first_reached(nodes, curve, extinction[rows])
        return within_map(found, reach, self.last_star(places))

    def prior(self) -> PriorIntegrals:
        return self.run.plan.build_prior()

    def cube(self) -> Cube:
        return self._computed[0] if self._store is None else self._store.cube()

    def columns(
        self, along: str, between: Ends | None = None, *, level: int = 0
    ) -> Columns | None:
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

    def sky_maps(
        self, distances: Distances = None, nside: int | None = None
    ) -> SkyMaps:
        stored = self.path / "map.healpix.fits"
        usual = nside is None and distances is None
        chosen = sky.default_distances(self.run) if distances is None else distances
        nside = sky.default_nside(self.run) if nside is None else nside
        if usual and stored.exists():
            maps = read_healpix(stored)
            whole = nside == maps.nside and np.array_equal(maps.distances, chosen)
            whole &= maps.meta.get("estimate", "map") == self.estimate
            if whole and self._is_own(maps.meta):
                return maps
        return sky.integrated(
            self.run, distances=np.array(chosen), nside=nside, estimate=self.estimate
        )

    def lines(self, directions: Directions | None = None) -> list[LineOfSight]:
        return sky.lines_of_sight(self.run, directions, estimate=self.estimate)

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

    def _estimated(self, estimate: str) -> Answers:
        return replace(self, estimate=stack_of(self.run, estimate)[1])

    def _answers(self, places: Places, kinds: Kinds, integrated: bool) -> Found:
        found = np.empty((len(kinds), len(places)))
        if integrated and kinds and has_curves(self.run):
            for rows, curves, ray in self._curves(places):
                found[:, rows] = _of(curves.at(places.distance[rows], ray), kinds)
        else:
            for rows, ends in self._blocks(places) if kinds else ():
                asked = self._functionals(integrated, ends)
                found[:, rows] = _of(self.run.posterior.moments(asked), kinds)
        return dict(zip(kinds, found))

    def _curves(
        self, places: Places, *, draws: bool = False
    ) -> Iterator[tuple[np.ndarray, OutwardCurves, np.ndarray]]:
        """Yield rows of places, curves, and the number of each row's ray in them."""
        # Places of one direction, within 2 milliarcsec, have one ray. Round coordinates
        # lie in the middle of such a step, which absorbs rounding errors.
        snapped = np.rint(places.directions / 1e-8)
        # Neighbouring rays together: they share cells, and stars around them.
        pixels = healpy.vec2pix(_NSIDE, *snapped.T, nest=True)
        keyed = np.column_stack([pixels, snapped])
        keys, ray = np.unique(keyed, axis=0, return_inverse=True)
        towards = keys[:, 1:] / np.linalg.norm(keys[:, 1:], axis=1, keepdims=True)
        order = np.argsort(ray, kind="stable")
        stack, _ = stack_of(self.run, self.estimate)
        for part, curves in outward_curves(self.run, towards, stack, draws=draws):
            first, last = np.searchsorted(ray[order], [part.start, part.stop])
            rows = order[first:last]
            yield rows, curves, ray[rows] - part.start

    def _functionals(self, integrated: bool, positions: torch.Tensor) -> Functionals:
        """Return extinctions to positions [pc], or densities there."""
        if integrated:
            return rays(self.run.plan, positions, outwards=True)
        return PointValues(positions)

    def _blocks(self, places: Places) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
        """Yield rows of neighbouring places in blocks, and their positions [pc]."""
        positions = places.positions()
        pixels = healpy.vec2pix(_NSIDE, *places.directions.T, nest=True)
        order = np.argsort(pixels, kind="stable")
        # The weights and the samples of a place.
        for part in row_blocks(len(places), 2048):
            rows = order[part]
            yield rows, torch.from_numpy(positions[rows])

    def _draws(self, integrated: bool, ends: torch.Tensor) -> np.ndarray:
        """Draw from the posterior at positions [pc], ``(s, n)``."""
        posterior, functionals = self.run.posterior, self._functionals(integrated, ends)
        if posterior.model.linear:
            # The field below the grid is drawn once for all blocks.
            generator = torch_stream(self.run.seed, Purpose.UNRESOLVED)
            return posterior.draws(functionals, generator).numpy()
        keys = torch.from_numpy(self._cell_keys(ends.numpy()))
        count, seed = len(posterior.samples), self.run.seed
        white = keyed_normals(keys, count, seed, Purpose.UNRESOLVED)
        values, variances = posterior.sampled(functionals)
        moments = posterior.moments_of(functionals, values, variances)
        own = Ranked.log_normal(moments.mean.numpy(), moments.std.numpy())
        return own.samples(sample_order(values, variances, white).numpy())

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


def _reopened(path: Path, fit: str, state: dict[str, Any]) -> RunMap:
    run = read_run(path)
    if run.provenance["fit"] != fit:
        raise InputError(
            f"{path} holds another fit than when its map was opened: open it again"
        )
    return replace(RunMap.of(run), **state)


def _of(found: Moments | Ranked, kinds: Kinds) -> list[np.ndarray]:
    """Return moments of distributions by kind."""
    return [
        np.asarray(
            getattr(found, str(kind))
            if kind in ("mean", "std")
            else found.quantiles([probability(kind)])[0]
        )
        for kind in kinds
    ]


def _keys(kind: int, numbers: np.ndarray) -> np.ndarray:
    kinds = np.full((len(numbers), 1), kind)
    return np.concatenate([kinds, numbers], axis=1).astype(np.int64)
