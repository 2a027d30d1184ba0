"""The stars of a fit and their parts: fitted, learnt from, held out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.catalog.schema import Split, Stars, read_stars_together
from pipelines.config import FitConfig
from pipelines.fit.binned import count_many, read_binned
from pipelines.fit.magnitude_limit import faintest
from pipelines.fit.state import FitState
from pipelines.model.cost import LEARNERS
from pipelines.planning.selection import (
    FEWEST_STARS,
    LIMITED,
    OUTSIDE,
    inside_box,
    usable,
)
from pipelines.run.surveys import calibrated


@dataclass(frozen=True, slots=True)
class FittedStars:
    """The usable stars of a catalogue, and the rows of their parts.

    ``counts`` holds the excluded stars by reason, ``faint`` the numbers of the
    `faintest`. Once a box is chosen, ``split`` holds the rows in it.
    """

    source: Path
    stars: Stars
    split: Split
    faint: np.ndarray
    counts: dict[str, int]

    @classmethod
    def read(
        cls,
        source: Path,
        config: FitConfig,
        group: Group,
        generator: torch.Generator,
        most: int,
        folder: Path,
    ) -> FittedStars:
        """Read a catalogue; the ``generator`` chooses the stars that are held out.

        More stars to fit than ``most`` become means of bins, which rank 0 finds by
        parts of the sky, for a while in ``folder``. Of others each rank reads all.

        Raises `InputError` if the catalogue has no extinctions or too few usable stars.
        """
        many = group.from_first(lambda: count_many(source, config, most))
        if many is not None:
            given = source, config, generator, most, many, folder
            # All ranks go on with the random numbers of the first.
            (stars, split, faint, shift, counts), state = group.from_first(
                lambda: (read_binned(*given), generator.get_state())
            )
            generator.set_state(state)
        else:
            stars = read_stars_together(source, group)
            stars, counts, shift = usable(stars, config, source)
            if len(stars) < FEWEST_STARS:
                raise InputError(
                    f"{source}: {len(stars)} usable stars, a map needs at least "
                    f"{FEWEST_STARS}"
                )
            places = stars.places()
            sizes = np.bincount(places)
            say(
                f"{len(sizes):,} places, the largest with {sizes.max():,} stars: each "
                "is fitted or held out as a whole"
            )
            # Further columns are those of rank 0.
            faint = faintest(stars.extra, config) if group.first else np.zeros(3)
            split = stars.split(config, generator, places)
        if LIMITED in counts:
            say(
                "stars moved to their expected distances: by "
                f"{np.median(shift):.2%} in the median, {np.quantile(shift, 0.99):.1%} "
                f"for 1%; {counts[LIMITED]:,} at the limit of a shift or of an error"
            )
        return cls(source, stars, split, faint, dict(counts))

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
