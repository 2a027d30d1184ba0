"""The stars of a fit and their parts: fitted, learnt from, held out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from dustmap.distributed.group import Group
from pipelines.base.progress import say
from pipelines.catalog.merging import merged
from pipelines.catalog.schema import Split, Stars
from pipelines.config import FitConfig
from pipelines.fit.state import FitState
from pipelines.model.cost import LEARNERS, most_stars
from pipelines.planning.selection import inside_box, usable_stars
from pipelines.run.surveys import calibrated


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStars:
    """The usable stars of a catalogue, and the rows of their parts.

    ``counts`` holds the excluded stars by reason. Once a box is chosen, ``split`` holds
    the rows in it.
    """

    source: Path
    stars: Stars
    split: Split
    counts: dict[str, int]

    @classmethod
    def read(
        cls, source: Path, config: FitConfig, group: Group, generator: torch.Generator
    ) -> FittedStars:
        """Read a catalogue; the ``generator`` chooses the stars that are held out.

        Raises `InputError` as `usable_stars`.
        """
        stars, counts = usable_stars(source, config, group)
        numbers = stars.places()
        split = stars.split(config, generator, numbers)
        sizes = np.bincount(numbers)
        say(
            f"{len(sizes):,} places, the largest with {sizes.max():,} stars: each "
            "is fitted or held out as a whole"
        )
        read = cls(source=source, stars=stars, split=split, counts=counts)
        if len(split.train) <= (most := most_stars(config)):
            return read
        # The memory of one process, and the same bins for all.
        return group.from_first(lambda: read._merged(most))

    def _merged(self, most: int) -> FittedStars:
        """Return the stars to fit as means of bins, then the other ones."""
        bins, fewest = merged(self.fitted, most)
        say(
            f"{len(self.split.train):,} stars to fit count as the means of "
            f"{len(bins):,} bins, of {fewest} stars or more where they are dense: "
            "budget.memory_gib holds no more"
        )
        rows = np.append(self.split.validation, self.split.test)
        single = self.stars.select(rows)
        both = {
            name: np.append(column, getattr(single, name))
            for name, column in replace(bins, merged=None).columns().items()
        }
        assert bins.merged is not None
        both["merged"] = np.append(bins.merged, np.ones(len(rows)))
        ends = len(bins) + np.cumsum([0, *map(len, (self.split.validation,))])
        return replace(
            self,
            stars=Stars.of(both, {}, self.stars.meta),
            split=Split(
                train=np.arange(ends[0]),
                validation=np.arange(ends[0], ends[1]),
                test=np.arange(ends[1], len(both["l"])),
            ),
            counts=self.counts | {"merged": len(self.split.train)},
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
