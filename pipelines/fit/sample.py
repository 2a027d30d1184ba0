"""A catalogue's stars as a fit takes them: those to fit and the held-out ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars, read_stars_together
from pipelines.config import FitConfig
from pipelines.model.observations import Data
from pipelines.model.plan import Plan
from pipelines.planning.selection import (
    FEWEST,
    by_direction,
    distance_errors,
    placing_errors,
    split_stars,
    stars_inside,
    usable_stars,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A catalogue's stars: those to fit and the held-out ones; counts by reason."""

    train: Stars
    test: Stars
    counts: dict[str, int]

    @property
    def meta(self) -> dict[str, object]:
        """The catalogue's own provenance."""
        return self.train.meta


def read_sample(
    source: Path, config: FitConfig, generator: torch.Generator, group: Group
) -> Sample:
    """Read the stars that can be used, and keep some back at random.

    Each rank of the group reads its own part, and has all in the end.

    Raises
    ------
    InputError
        If the catalogue has no extinctions or too few usable stars.
    """
    stars, counts = usable_stars(read_stars_together(source, group), config, source)
    train, test = split_stars(stars, config.data.holdout, generator)
    return Sample(train=train, test=test, counts=counts)


def inside_box(sample: Sample, plan: Plan, source: Path) -> Sample:
    """The stars in the plan's box, those to fit in the order of their directions.

    Raises
    ------
    InputError
        If the box holds too few.
    """
    train, outside = stars_inside(by_direction(sample.train), plan)
    test, outside_test = stars_inside(sample.test, plan)
    if len(train) < FEWEST:
        raise InputError(f"{source}: only {len(train)} stars lie in the box")
    counts = {
        **sample.counts,
        "fitted": len(train),
        "held out": len(test),
        "outside the box": outside + outside_test,
    }
    return replace(sample, train=train, test=test, counts=counts)


def data_of(stars: Stars, config: FitConfig) -> Data:
    """What the stars tell, as tensors."""
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    with_errors = stars.distance_error is not None and config.model.distance_errors
    return Data(
        ends=torch.as_tensor(stars.positions()),
        extinction=torch.as_tensor(stars.extinction),
        variance=torch.as_tensor(stars.extinction_error**2),
        distance_error=(
            torch.as_tensor(distance_errors(stars)) if with_errors else None
        ),
        mean_distance_error=(
            torch.as_tensor(placing_errors(stars)) if with_errors else None
        ),
    )
