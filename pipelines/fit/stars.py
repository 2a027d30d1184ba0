"""The stars of a fit and their parts: fitted, learnt from, held out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from dustmap.distributed.group import Group
from pipelines.base.progress import say
from pipelines.catalog.merging import merged
from pipelines.catalog.schema import NSIDE, Split, Stars
from pipelines.config import FitConfig
from pipelines.fit.state import FitState
from pipelines.model.cost import LEARNERS
from pipelines.planning.selection import (
    OUTSIDE,
    inside_box,
    usable_stars,
    within_given_box,
)
from pipelines.run.surveys import calibrated

# Pixels of places whose stars are many, as those of the smallest bins.
_FINE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStars:
    """The usable stars of a catalogue, and the rows of their parts.

    ``counts`` holds the excluded stars by reason, ``further`` the other columns of all
    usable stars, on rank 0 if ``data.magnitude`` is one. Once a box is chosen,
    ``split`` holds the rows in it.
    """

    source: Path
    stars: Stars
    split: Split
    counts: dict[str, int]
    further: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        source: Path,
        config: FitConfig,
        group: Group,
        generator: torch.Generator,
        most: int,
    ) -> FittedStars:
        """Read a catalogue; the ``generator`` chooses the stars that are held out.

        More stars to fit than ``most`` become means of bins.

        Raises `InputError` as `usable_stars`.
        """
        stars, counts = usable_stars(source, config, group)
        # Where stars are many, ten places of the usual size have 5,000.
        numbers = stars.places(_FINE if len(stars) > most else NSIDE)
        split = stars.split(config, generator, numbers)
        sizes = np.bincount(numbers)
        say(
            f"{len(sizes):,} places, the largest with {sizes.max():,} stars: each "
            "is fitted or held out as a whole"
        )
        del numbers, sizes
        read = cls(
            source=source,
            stars=stars,
            split=split,
            counts=counts,
            further={} if config.data.magnitude is None else stars.extra,
        )
        if len(stars) <= most:
            return read
        rows = split.train[within_given_box(stars.positions(), config)[split.train]]
        if len(rows) <= most:
            return read
        # The memory of one process, and the same bins for all.
        return group.from_first(lambda: read._merged(rows, most))

    def _merged(self, rows: np.ndarray, most: int) -> FittedStars:
        """Return these stars to fit as means of bins, then the held-out ones."""
        measured = replace(self.stars, source_id=None, extra={})
        bins, fewest = merged(measured, most, rows)
        say(
            f"{len(rows):,} stars to fit count as the means of {len(bins):,} bins, of "
            f"{fewest} stars or more where they are dense: budget.memory_gib holds no "
            "more"
        )
        outside = len(self.split.train) - len(rows)
        single = measured.select(np.append(self.split.validation, self.split.test))
        both = {
            name: np.append(column, getattr(single, name))
            for name, column in replace(bins, merged=None).columns().items()
        }
        assert bins.merged is not None
        both["merged"] = np.append(bins.merged, np.ones(len(single)))
        ends = len(bins) + np.cumsum([0, len(self.split.validation)])
        return replace(
            self,
            stars=Stars.of(both, {}, self.stars.meta),
            split=Split(
                train=np.arange(ends[0]),
                validation=np.arange(ends[0], ends[1]),
                test=np.arange(ends[1], len(both["l"])),
            ),
            counts=self.counts | {"merged": len(rows), OUTSIDE: outside},
        )

    def at(self, state: FitState) -> FittedStars:
        """Return these stars, as they were read, as a state of the fit has them.

        Surveys' laws calibrate extinctions and errors, the parts are those in its box,
        and a magnitude limit raises extinctions.
        """
        stars, split, counts = self.stars, self.split, self.counts
        stars = calibrated(stars, state.surveys)
        if state.box is not None:
            split, inside = inside_box(stars, split, state.box)
            # A part may have been left out before stars were merged.
            inside[OUTSIDE] += counts.get(OUTSIDE, 0)
            counts = counts | inside
        if state.raised is not None:
            assert stars.extinction is not None
            stars = replace(stars, extinction=stars.extinction + state.raised.numpy())
        return replace(self, stars=stars, split=split, counts=counts)

    @property
    def fitted(self) -> Stars:
        """The stars to fit."""
        return self.stars.select(self.split.train)

    @property
    def distances(self) -> np.ndarray:
        """Distances of the stars to fit [pc]."""
        return self.stars.distance[self.split.train]

    @property
    def learners(self) -> Split:
        """The rows of the maps to learn from: of many stars an even part on the sky."""
        train = self.split.train
        few = np.linspace(0, len(train) - 1, min(len(train), LEARNERS))
        return replace(self.split, train=train[few.astype(np.int64)])
