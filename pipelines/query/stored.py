"""Answers from a map store: interpolation of what was computed beforehand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.quantiles import NAMES, QUANTILES, log_normal, normal
from pipelines.query.curves import extinctions
from pipelines.query.density import densities, support
from pipelines.query.places import Places
from pipelines.query.question import Question
from pipelines.query.store import MapStore
from pipelines.run.facts import Facts, box_facts


class StoredAnswers:
    """Mean, std and quantiles of a map store; see `pipelines.query.map.DustMap`."""

    def __init__(self, store: MapStore) -> None:
        self.store = store
        self._last_star: np.ndarray | None = None

    @property
    def box(self) -> Box:
        """Where the map is."""
        return self.store.box

    @property
    def facts(self) -> Facts:
        """Box, spacing and arrays of the store."""
        spacing = [float(axis[1] - axis[0]) for axis in self.store.axes]
        sky = self.store.sky
        reach = "none" if sky is None else f"to {sky.distance[-1]:g} pc"
        return {
            **box_facts(self.box, spacing),
            "density": ", ".join(self.store.arrays),
            "integrated extinction": reach,
        }

    def reach(self, places: Places) -> np.ndarray:
        """How far each sight line can be followed [pc]: the box, or the last node."""
        sky = self.store.require_sky()
        exits = self.box.exits(places.directions)
        return np.where(exits <= sky.limit, exits, sky.distance[-1])

    def values(self, asked: Question, places: Places) -> np.ndarray:
        """Answers at places in the box, shape ``(n,)`` or ``(n, quantiles)``."""
        if asked.drawn:
            raise InputError(
                f"mode={asked.mode!r} needs posterior samples, which {self.store.path} "
                "does not hold: name the run folder or its archive of samples beside "
                "the map, by --samples RUN or open_map(map, samples=RUN)"
            )
        known = self._names(asked)
        if not asked.quantiles:
            return self._read(asked, (asked.mode,), places)[asked.mode]
        positive = set(NAMES) <= set(known)
        parts = self._read(asked, NAMES if positive else ("mean", "std"), places)
        rule: Callable[..., np.ndarray] = log_normal if positive else normal
        quantiles = [rule(*parts.values(), p) for p in asked.probabilities]
        return np.stack(quantiles, axis=-1)

    def summary(self, integrated: bool, places: Places) -> dict[str, np.ndarray]:
        """``mean``, ``std``, ``p16``, ``p50``, ``p84``, shape ``(n,)`` each."""
        asked = Question(integrated=integrated, mode="mean")
        if set(NAMES) <= set(self._names(asked)):
            return self._read(asked, ("mean", "std", *NAMES), places)
        parts = self._read(asked, ("mean", "std"), places)
        mean, std = parts.values()
        return parts | {n: normal(mean, std, p) for n, p in QUANTILES.items()}

    def unseen(self, places: Places) -> np.ndarray:
        """Whether no sight line crosses the cell of a place in the box."""
        if "support" not in self.store.arrays:
            raise InputError(
                f"{self.store.path} has no array 'support': which of its cells stars "
                "have seen is not known"
            )
        return support(self.store, places.positions()) <= 0

    def last_star(self, places: Places) -> np.ndarray:
        """Where the last seen stretch of each sight line ends [pc]."""
        import healpy

        sky = self.store.require_sky()
        if self._last_star is None:
            self._last_star = np.asarray(self.store.reader.array("last_star")[...])
        pixels = healpy.ang2pix(sky.nside, places.l, places.b, nest=True, lonlat=True)
        return self._last_star[pixels]

    def _names(self, asked: Question) -> tuple[str, ...]:
        if asked.integrated:
            return self.store.require_sky().arrays
        return self.store.arrays

    def _read(
        self, asked: Question, names: tuple[str, ...], places: Places
    ) -> dict[str, np.ndarray]:
        missing = sorted(set(names) - set(self._names(asked)))
        if missing:
            raise InputError(
                f"{self.store.path} has no array {', '.join(missing)}; it has "
                f"{', '.join(self._names(asked))}"
            )
        if asked.integrated:
            return extinctions(self.store, names, places)
        return densities(self.store, names, places.positions())
