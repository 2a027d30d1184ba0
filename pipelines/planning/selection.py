"""The stars of a fit: which are used, which are held out, and what each stage sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import healpy
import numpy as np
import torch

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.catalog.schema import Stars, read_stars_together
from pipelines.config import FitConfig
from pipelines.model.observations import Data
from pipelines.model.plan import choose_box, shares_noise
from pipelines.planning.planner import Catalogue, mean_density

# Pixels of about a degree.
_NSIDE = 64
# Fewer stars than this make no map.
_FEWEST = 5
# Stars on which a residual is learnt: no fewer, for a good one, and no more.
FEWEST_VALIDATION, _ENOUGH_VALIDATION, _MOST_VALIDATION = 50, 400, 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A catalogue's stars: to fit, for the residual, to test; counts by reason."""

    train: Stars
    validation: Stars
    test: Stars
    counts: dict[str, int]

    @property
    def known(self) -> Stars:
        """All that are not held out."""
        return self.train.joined(self.validation)

    def within(self, box: Box) -> Sample:
        """The stars in a box, with the counts as they are."""
        train, validation, test = (
            stars.select(box.contains(stars.positions()))
            for stars in (self.train, self.validation, self.test)
        )
        return replace(self, train=train, validation=validation, test=test)


def read_sample(
    source: Path, config: FitConfig, generator: torch.Generator, group: Group
) -> Sample:
    """Read the stars that can be used, and hold some out at random.

    Each rank of the group reads its own part, and has all in the end.

    Raises
    ------
    InputError
        If the catalogue has no extinctions or too few usable stars.
    """
    stars, counts = _usable(read_stars_together(source, group), config, source)
    order = torch.randperm(len(stars), generator=generator).numpy()
    held = round(config.data.holdout * len(stars))
    seen = held + _validation(len(stars), config)
    return Sample(
        train=stars.select(np.sort(order[seen:])),
        validation=stars.select(np.sort(order[held:seen])),
        test=stars.select(np.sort(order[:held])),
        counts=counts,
    )


def _usable(
    stars: Stars, config: FitConfig, source: Path
) -> tuple[Stars, dict[str, int]]:
    """The stars near enough, and counts by reason; refuses what makes no map."""
    if stars.extinction is None:
        raise InputError(
            f"{source} has positions only: a fit needs extinction and "
            "extinction_error (ingest it without --positions)"
        )
    counts = {"read": len(stars)}
    if config.data.max_distance is not None:
        near = stars.distance <= config.data.max_distance
        counts["beyond max_distance"] = int((~near).sum())
        stars = stars.select(near)
    if len(stars) < _FEWEST:
        raise InputError(
            f"{source}: {len(stars)} usable stars, a map needs at least {_FEWEST}"
        )
    lower, upper, _ = choose_box(stars.positions(), config)
    _require_enough(stars, Box(lower=tuple(lower), upper=tuple(upper)), source)
    return stars, counts


def _require_enough(stars: Stars, box: Box, source: Path) -> None:
    count = int(box.contains(stars.positions()).sum())
    if count < _FEWEST:
        sides = zip("xyz", box.lower, box.upper, strict=True)
        where = ", ".join(f"{a:g} < {axis} < {b:g}" for axis, a, b in sides)
        raise InputError(
            f"{source}: only {count} of {len(stars)} stars lie in the box {where} pc, "
            f"a map needs at least {_FEWEST}: enlarge [box]"
        )


def inside_box(sample: Sample, box: Box, source: Path) -> Sample:
    """The stars in a box, those to fit in the order of their directions.

    Neighbours' sight lines cross the same cells, which are then at hand: products with
    60,000 of them on 6 million points take half the time.

    Raises
    ------
    InputError
        If the box holds too few.
    """
    _require_enough(sample.train, box, source)
    inside = sample.within(box)
    train, validation, test = inside.train, inside.validation, inside.test
    pixels = healpy.ang2pix(_NSIDE, train.l, train.b, nest=True, lonlat=True)
    every = len(sample.train) + len(sample.validation) + len(sample.test)
    counts = {**sample.counts, "fitted": len(train)}
    if len(sample.validation):
        counts["for the residual"] = len(validation)
    counts["held out"] = len(test)
    counts["outside the box"] = every - len(train) - len(validation) - len(test)
    train = train.select(np.argsort(pixels, kind="stable"))
    return replace(sample, train=train, validation=validation, test=test, counts=counts)


def _validation(count: int, config: FitConfig) -> int:
    """On how many of so many stars the residual is learnt.

    Of small catalogues it needs a larger part.
    """
    if not shares_noise(config):
        return 0
    share = config.data.validation
    if share is None:
        share = max(0.05, min(0.15, _ENOUGH_VALIDATION / max(count, 1)))
    wanted = min(round(share * count), _MOST_VALIDATION)
    return wanted if wanted >= FEWEST_VALIDATION else 0


def planning_view(stars: Stars, config: FitConfig) -> Catalogue:
    """Positions, extinctions and noise, with what distance errors add on average."""
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    plain = Catalogue(
        positions=stars.positions(),
        extinction=stars.extinction,
        noise=stars.extinction_error,
    )
    if stars.distance_error is None or not config.model.distance_errors:
        return plain
    blur = mean_density(plain) * placing_errors(stars)
    return replace(plain, noise=np.hypot(plain.noise, blur))


def data_of(stars: Stars, config: FitConfig) -> Data:
    """What an engine sees, as tensors."""
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    data = Data(
        ends=torch.as_tensor(stars.positions()),
        extinction=torch.as_tensor(stars.extinction),
        variance=torch.as_tensor(stars.extinction_error**2),
    )
    if stars.distance_error is None or not config.model.distance_errors:
        return data
    return replace(
        data,
        distance_error=torch.as_tensor(distance_errors(stars)),
        mean_distance_error=torch.as_tensor(placing_errors(stars)),
    )


def placing_errors(stars: Stars) -> np.ndarray:
    """How far stars may be from their places [pc]; see `pipelines.catalog.merging`.

    Stars of a catalogue without distance errors are exactly placed.
    """
    if stars.distance_error is None:
        return np.zeros(len(stars))
    merged = stars.mean_distance_error
    return distance_errors(stars) if merged is None else merged


def distance_errors(stars: Stars) -> np.ndarray:
    """Distance errors [pc]; stars without one count as exactly placed."""
    assert stars.distance_error is not None
    return np.nan_to_num(stars.distance_error, nan=0.0)
