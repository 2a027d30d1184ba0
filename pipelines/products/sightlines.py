"""Lines of sight, with the stars near them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.spatial import KDTree

from pipelines.base.geometry import unit_vectors
from pipelines.base.quantiles import NAMES
from pipelines.catalog.schema import Stars, read_stars
from pipelines.cubes.sky import LineOfSight
from pipelines.products.cumulative import RayIntegrals, outward_summaries
from pipelines.products.integrated import last_star
from pipelines.run.folder import Run

# Stars whose median extinction ranks a direction.
_NEAR = 7


def lines_of_sight(
    run: Run, directions: Sequence[tuple[float, float]] | None = None, points: int = 60
) -> list[LineOfSight]:
    """Cumulative extinction along a few directions, and the stars near.

    Quantiles are those of the posterior of every integral, normal for a density that
    may be negative; without posterior samples there are none.
    """
    stars = read_stars(run.path / "stars.parquet")
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    chosen = default_directions(stars) if directions is None else list(directions)
    vectors = unit_vectors(*np.array(chosen).T)
    edges = np.linspace(0, run.box.exits(vectors), points + 1)[1:]
    moments = RayIntegrals(run, vectors, edges).moments(slice(None))
    sampled = len(run.posterior.samples) > 0
    found, _ = outward_summaries(moments, quantiles=sampled)
    last = last_star(run, vectors)
    lines = []
    for i, (lon, lat) in enumerate(chosen):
        near, radius = _stars_near(stars, vectors[i])
        bands = {}
        if sampled:
            low, left, median, right, high = (found[name][:, i] for name in NAMES)
            bands = {"median": median, "inner": (left, right), "outer": (low, high)}
        line = LineOfSight(
            l=lon,
            b=lat,
            distance=edges[:, i],
            mean=found["mean"][:, i],
            std=found["std"][:, i],
            star_distance=stars.distance[near],
            star_extinction=stars.extinction[near],
            star_error=stars.extinction_error[near],
            radius=radius,
            last_star=float(last[i]),
            **bands,
        )
        lines.append(line)
    return lines


def default_directions(stars: Stars, count: int = 6) -> list[tuple[float, float]]:
    """Directions spread over the sky among the stars with most extinction.

    Greedy: the star around which it is highest, then the highest that is at least
    30 deg away from all chosen before (less where the field is small). It is the median
    of the nearest stars in the sky, which single outliers do not move.
    """
    assert stars.extinction is not None
    vectors = unit_vectors(stars.l, stars.b)
    _, near = KDTree(vectors).query(vectors, k=min(_NEAR, len(stars)))
    around = stars.extinction[near].reshape(len(stars), -1)
    order = np.argsort(np.median(around, axis=1))[::-1]
    separation = math.radians(30)
    chosen: list[int] = []
    while len(chosen) < count and separation > 1e-4:
        for index in order:
            if len(chosen) == count:
                break
            cosines = vectors[chosen] @ vectors[index] if chosen else np.zeros(0)
            if (cosines < math.cos(separation)).all():
                chosen.append(int(index))
        separation /= 2
    return [(float(stars.l[i]), float(stars.b[i])) for i in chosen]


def _stars_near(stars: Stars, direction: np.ndarray) -> tuple[np.ndarray, float]:
    """Up to 60 stars within the smallest radius that holds them, at most 3 deg."""
    cosine = np.clip(unit_vectors(stars.l, stars.b) @ direction, -1.0, 1.0)
    angle = np.degrees(np.arccos(cosine))
    nearest = np.argsort(angle)[:60]
    near = nearest[angle[nearest] <= 3.0]
    radius = float(angle[near].max()) if len(near) else 3.0
    # Rounded up, for the figure's title.
    return near, math.ceil(10 * radius) / 10
