"""Answers from a posterior itself: exact moments and draws, at the cost of each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from dustmap.functionals import Functionals, PointValues
from dustmap.keyed_noise import keyed_normals
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.quantiles import KINDS, summaries
from pipelines.model.observations import outward_rays
from pipelines.products.integrated import last_star
from pipelines.query.keys import cell_keys, direction_keys
from pipelines.query.places import Places
from pipelines.query.question import Question
from pipelines.run.folder import Run

# Places handled at once.
_ROWS = 1 << 16
# Seed of what the grid cannot resolve, in draws.
_SEED = 20


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
    def count(self) -> int:
        """Number of posterior samples."""
        return len(self._posterior.samples)

    def reach(self, places: Places) -> np.ndarray:
        """How far each sight line can be followed [pc]: the box."""
        return self.box.exits(places.directions)

    def values(
        self, asked: Question, places: Places, sample: int | None = None
    ) -> np.ndarray:
        """Answers at places in the box, shape ``(n,)`` or ``(n, axis)``.

        The axis is that of quantiles or of samples; ``sample`` chooses one of these.
        """
        if asked.drawn and not self.count:
            raise InputError(
                f"mode={asked.mode!r}: this fit has no posterior samples; fit with "
                "--set inference.samples=32"
            )
        if not len(places):
            axis = (self.count if asked.drawn else len(asked.probabilities),)
            alone = sample is not None or not (asked.drawn or asked.quantiles)
            return np.empty((0,) if alone else (0, *axis))
        parts = [
            self._draws(functionals, ends, asked, sample)
            if asked.drawn
            else self._moments(functionals, asked)
            for ends, functionals in self._blocks(asked, places)
        ]
        return np.concatenate(parts)

    def summary(self, integrated: bool, places: Places) -> dict[str, np.ndarray]:
        """``mean``, ``std``, ``p16``, ``p50``, ``p84``, shape ``(n,)`` each."""
        asked = Question(integrated=integrated, mode="mean")
        if not len(places):
            return {name: np.empty(0) for name in KINDS}
        parts = [
            summaries(self._posterior.moments(functionals, rows=_ROWS), quantiles=True)
            for _, functionals in self._blocks(asked, places)
        ]
        return {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }

    def unseen(self, places: Places) -> np.ndarray:
        """Whether no sight line crosses the cell of a place in the box."""
        return self.run.support_at(places.positions()) <= 0

    def last_star(self, places: Places) -> np.ndarray:
        """Where the last seen stretch of each sight line ends [pc]."""
        return last_star(self.run, places.directions)

    def _blocks(
        self, asked: Question, places: Places
    ) -> Iterator[tuple[np.ndarray, Functionals]]:
        """Some places [pc] at a time, and what is seen of them."""
        positions = places.positions()
        for start in range(0, len(places), _ROWS):
            ends = positions[start : start + _ROWS]
            there = torch.as_tensor(ends)
            if asked.integrated:
                yield ends, outward_rays(self._plan, there)
            else:
                yield ends, PointValues(there)

    def _moments(self, functionals: Functionals, asked: Question) -> np.ndarray:
        moments = self._posterior.moments(functionals, rows=_ROWS)
        if not asked.quantiles:
            return getattr(moments, asked.mode).numpy()
        quantiles = [moments.quantile(p).numpy() for p in asked.probabilities]
        return np.stack(quantiles, axis=-1)

    def _draws(
        self,
        functionals: Functionals,
        ends: np.ndarray,
        asked: Question,
        sample: int | None,
    ) -> np.ndarray:
        if self._posterior.model.linear:
            # The field below the grid is drawn: the same one for all blocks.
            generator = torch.Generator().manual_seed(_SEED)
            draws = self._posterior.draws(functionals, generator)
        else:
            keys = direction_keys(ends) if asked.integrated else self._cells(ends)
            white = keyed_normals(torch.from_numpy(keys), self.count, _SEED)
            draws = self._posterior.draws_from(functionals, white)
        return draws.numpy().T if sample is None else draws[sample].numpy()

    def _cells(self, ends: np.ndarray) -> np.ndarray:
        grid = self._plan.grid
        spacing = np.array(grid.spacing) / self._plan.refinement
        return cell_keys(ends, np.array(grid.origin), spacing)
