"""Which stars a fit uses, and what planning sees of them."""

from __future__ import annotations

from pathlib import Path

import healpy
import numpy as np
import torch

from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars
from pipelines.config import FitConfig
from pipelines.model.plan import Plan, choose_box
from pipelines.planning.planner import Catalogue, mean_density

# Pixels of about a degree.
_NSIDE = 64
# Fewer stars than this make no map.
FEWEST = 5


def usable_stars(
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
    if len(stars) < FEWEST:
        raise InputError(
            f"{source}: {len(stars)} usable stars, a map needs at least {FEWEST}"
        )
    lower, upper, _ = choose_box(stars.positions(), config)
    inside = _contained(stars.positions(), lower, upper)
    if int(inside.sum()) < FEWEST:
        raise InputError(
            f"{source}: only {int(inside.sum())} of {len(stars)} stars lie in the box "
            f"{lower.tolist()} to {upper.tolist()} pc: enlarge [box]"
        )
    return stars, counts


def _contained(x: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    return np.all((x >= lower) & (x <= upper), axis=1)


def split_stars(
    stars: Stars, fraction: float, generator: torch.Generator
) -> tuple[Stars, Stars]:
    """Random training and test rows, each in the order of the file."""
    order = torch.randperm(len(stars), generator=generator).numpy()
    count = round(fraction * len(stars))
    return stars.select(np.sort(order[count:])), stars.select(np.sort(order[:count]))


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
    return Catalogue(
        positions=plain.positions,
        extinction=plain.extinction,
        noise=np.hypot(plain.noise, blur),
    )


def distance_errors(stars: Stars) -> np.ndarray:
    """Distance errors [pc]; stars without one count as exactly placed."""
    assert stars.distance_error is not None
    return np.nan_to_num(stars.distance_error, nan=0.0)


def placing_errors(stars: Stars) -> np.ndarray:
    """How far stars may be from their places [pc]; see `pipelines.catalog.merging`."""
    merged = stars.mean_distance_error
    return distance_errors(stars) if merged is None else merged


def by_direction(stars: Stars) -> Stars:
    """The stars in the order of their directions on the sky (HEALPix, NESTED).

    Neighbours' sight lines cross the same cells, which are then at hand: products with
    60,000 of them on 6 million points take half the time.
    """
    pixels = healpy.ang2pix(_NSIDE, stars.l, stars.b, nest=True, lonlat=True)
    return stars.select(np.argsort(pixels, kind="stable"))


def stars_inside(stars: Stars, plan: Plan) -> tuple[Stars, int]:
    """The stars in the plan's box, and how many are not."""
    inside = _contained(
        stars.positions(), np.array(plan.grid.lower), np.array(plan.grid.upper)
    )
    return stars.select(inside), int((~inside).sum())
