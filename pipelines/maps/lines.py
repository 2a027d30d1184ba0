"""Directions to look at, and the stars near them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.spatial import KDTree

from pipelines.base.geometry import unit_vectors
from pipelines.base.pixels import pixel_directions
from pipelines.catalog.schema import Stars
from pipelines.cubes.sky import LineOfSight
from pipelines.maps.places import Places
from pipelines.maps.rays import PixelRays

# Resolution of the directions to choose from: pixels of 4 deg.
_NSIDE = 16


def informed_directions(rays: PixelRays) -> list[tuple[float, float]]:
    """Return up to six directions ``l, b`` [deg] of much dust and distant stars.

    One for each 60 deg of longitude in the map: the largest product of the last star's
    distance and the extinction out to it; in the plane where there are no stars.
    """
    places = Places.of_points(pixel_directions(_NSIDE))
    places = places.select(rays.reach(places) > 0)
    last = rays.last_star(places)
    seen = places.at(np.minimum(last, rays.reach(places)))
    worth = np.nan_to_num(last * rays.at(("mean",), seen)["mean"])
    order = np.lexsort((-np.abs(places.b), worth))
    best = dict(zip((places.l // 60)[order].astype(int), order.tolist()))
    return [(float(places.l[best[i]]), float(places.b[best[i]])) for i in sorted(best)]


def with_stars(line: LineOfSight, stars: Stars) -> LineOfSight:
    """Return a line of sight with the 60 nearest stars, at most 1 deg away."""
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    # Chords of 1 deg at most: clouds of 5 pc at 300 pc are as wide.
    count, most = min(60, len(stars)), 2 * math.sin(math.radians(1.0) / 2)
    tree = KDTree(unit_vectors(stars.l, stars.b))
    # A list of neighbours keeps the axis of a single star.
    ranks: Any = list(range(1, count + 1))
    towards = unit_vectors(np.array(line.l), np.array(line.b))
    chords, nearest = map(np.asarray, tree.query(towards, k=ranks))
    close = chords <= most
    near = nearest[close]
    chord = chords[close].max() if len(near) else most
    radius = math.degrees(2 * math.asin(chord / 2))
    return replace(
        line,
        star_distance=stars.distance[near],
        star_extinction=stars.extinction[near],
        star_error=stars.extinction_error[near],
        # Round up, for the figure's title.
        radius=math.ceil(10 * radius - 1e-9) / 10,
    )
