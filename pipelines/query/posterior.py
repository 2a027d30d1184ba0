"""Answers from a posterior itself: exact moments and draws, at the cost of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dustmap.functionals import Functionals, PointValues
from dustmap.grid import Grid
from dustmap.isotonic import non_decreasing
from dustmap.keyed_noise import keyed_normals
from dustmap.moments import Moments
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.model.observations import outward_rays
from pipelines.products.integrated import last_star
from pipelines.query.places import Places
from pipelines.query.question import Kind, probability
from pipelines.run.facts import Facts, run_facts
from pipelines.run.folder import Run

# Places handled at once.
_ROWS = 1 << 16
# Seed of what the grid cannot resolve, in draws.
_SEED = 20
# Directions closer than this [rad], 2 milliarcsec, are one. Round coordinates lie in
# the middle of such a step, where another rounding of the same direction stays in it.
_NEAR = 1e-8
# Places closer than this [pc] are one.
_NEAR_PLACES = 1e-3


class PosteriorAnswers:
    """All modes, from a fit; see `pipelines.query.map.DustMap`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._plan, self._posterior = run.plan, run.posterior

    @property
    def box(self) -> Box:
        """Where the map is."""
        return self.run.box

    @property
    def facts(self) -> Facts:
        """What the run is, in a few lines."""
        return run_facts(self.run)

    def reach(self, places: Places) -> np.ndarray:
        """How far each sight line can be followed [pc]: the box."""
        return self.box.exits(places.directions)

    def answers(
        self, kinds: Sequence[Kind], integrated: bool, places: Places
    ) -> list[np.ndarray]:
        """Each of the kinds at places in the box, shape ``(n,)``."""
        found = np.empty((len(kinds), len(places)))
        variances = np.full(len(places), np.nan)
        for rows, _, functionals in self._blocks(integrated, places):
            moments = self._posterior.moments(functionals, rows=_ROWS)
            if moments.log_std is not None:
                variances[rows] = moments.log_std.numpy() ** 2
            for column, kind in zip(found, kinds):
                column[rows] = _moment(moments, kind).numpy()
        rest = [i for i, kind in enumerate(kinds) if kind != "std"]
        if integrated and np.isfinite(variances).any():
            found[rest] = _rising(found[rest], variances, places)
        return list(found)

    def draws(
        self, integrated: bool, places: Places, rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """Samples at places in the box, shape ``(n, s)``; with ``rng`` one, ``(n,)``.

        Raises
        ------
        InputError
            If the fit has no samples.
        """
        count = len(self._posterior.samples)
        if not count:
            raise InputError(
                "this fit has no posterior samples; fit with --set inference.samples=32"
            )
        chosen = slice(None) if rng is None else int(rng.integers(count))
        found = np.empty((count, len(places)))[chosen]
        for rows, ends, functionals in self._blocks(integrated, places):
            found[..., rows] = self._draws(functionals, ends, integrated)[chosen]
        if integrated and self._posterior.model.positive:
            rising = _rising(np.atleast_2d(found), np.ones(len(places)), places)
            found = rising.reshape(found.shape)
        return found.T

    def unseen(self, places: Places) -> np.ndarray:
        """Whether no sight line crosses the cell of a place in the box."""
        return self.run.support_at(places.positions()) <= 0

    def last_star(self, places: Places) -> np.ndarray:
        """Where the last seen stretch of each sight line ends [pc]."""
        return last_star(self.run, places.directions)

    def _blocks(
        self, integrated: bool, places: Places
    ) -> Iterator[tuple[slice, np.ndarray, Functionals]]:
        """Some rows at a time, their positions [pc], and what is seen of them."""
        observed = partial(outward_rays, self._plan) if integrated else PointValues
        positions = places.positions()
        for start in range(0, len(places), _ROWS):
            rows = slice(start, start + _ROWS)
            yield rows, positions[rows], observed(torch.as_tensor(positions[rows]))

    def _draws(
        self, functionals: Functionals, ends: np.ndarray, integrated: bool
    ) -> np.ndarray:
        if self._posterior.model.linear:
            # The field below the grid is drawn: the same one for all blocks.
            generator = torch.Generator().manual_seed(_SEED)
            return self._posterior.draws(functionals, generator).numpy()
        if not integrated:
            keys = self._cell_keys(ends)
        elif self._posterior.residual is None:
            keys = _direction_keys(ends)
        else:
            keys = _keys(2, np.rint(ends / _NEAR_PLACES))
        white = keyed_normals(
            torch.from_numpy(keys), len(self._posterior.samples), _SEED
        )
        return self._posterior.draws_from(functionals, white).numpy()

    def _cell_keys(self, ends: np.ndarray) -> np.ndarray:
        """Keys ``(n, 4)`` that are equal between the same points of the finest grid."""
        coarsest, *finer = self._plan.grids
        keys = _keys(1, self._cells(coarsest, ends))
        for kind, grid in enumerate(finer, start=3):
            inside = grid.contains(torch.as_tensor(ends)).numpy()
            keys[inside] = _keys(kind, self._cells(grid, ends[inside]))
        return keys

    def _cells(self, grid: Grid, ends: np.ndarray) -> np.ndarray:
        """Which of a grid's (refined) cells the points lie in, ``(n, 3)``."""
        spacing = np.array(grid.spacing) / self._plan.refinement
        return np.floor((ends - np.array(grid.origin)) / spacing)


def _moment(moments: Moments, kind: Kind) -> Tensor:
    if kind in ("mean", "std"):
        return getattr(moments, str(kind))
    return moments.quantile(probability(kind))


def _rising(curves: np.ndarray, variances: np.ndarray, places: Places) -> np.ndarray:
    """`non_decreasing` of extinctions ``(k, n)`` to the places in each direction.

    A place that is alone in its direction keeps its values: to make these
    non-decreasing whatever else is asked, the whole ray would have to be predicted.
    """
    keys = _direction_keys(places.positions())
    order = np.lexsort((places.distance, *keys.T))
    first = np.diff(keys[order], axis=0, prepend=-1).any(axis=1)
    starts = np.append(np.nonzero(first)[0], len(order))
    found = np.empty_like(curves)
    found[:, order] = non_decreasing(curves[:, order], variances[order], starts)
    return found


def _direction_keys(ends: np.ndarray) -> np.ndarray:
    """Keys ``(n, 4)`` that are equal along a ray from the observer."""
    distance = np.linalg.norm(ends, axis=1, keepdims=True)
    vectors = ends / np.where(distance > 0, distance, 1.0)
    return _keys(0, np.rint(vectors / _NEAR))


def _keys(kind: int, numbers: np.ndarray) -> np.ndarray:
    kinds = np.full((len(numbers), 1), kind)
    return np.concatenate([kinds, numbers], axis=1).astype(np.int64)
