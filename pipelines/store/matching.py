r"""Densities whose integrals along rays are the extinctions that a store holds.

The mean of a cell is that of the density at its centre, the residual of neighbours is
averaged over the cell, and extinctions may have kriging besides: integrals through the
grid's means and the curves of extinctions differ. Where they do, densities take the
ratio of the two between nodes of the curves, as wide as the curves' pixels there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dustmap.memory import row_blocks
from pipelines.base.pixels import pixel_directions, weights_around
from pipelines.cubes.cube import Level, integrals_between
from pipelines.cubes.sky import Curves
from pipelines.maps.places import Places
from pipelines.store.curves import nsides_at

# Nodes of the curves in a stretch, and pixels of factors per cell. On 60,000 stars
# with cells of 40 pc the integrals of the densities were 0.98 of the curves before, and
# .99 to 1.00 after. With stretches between all nodes and pixels half as wide factors
# followed single rays (0.1% of them were below .25 or above 2.3), with wider ones their
# scatter from ray to ray grew.
_TOGETHER = 2
_FACTORS_PER_CELL = 0.75
# Interpolation between cells and pixels smooths a factor.
_PASSES = 3


def matched(levels: Sequence[Level], curves: Curves) -> list[Level]:
    """Return densities of all levels times smooth factors, with samples and columns."""
    nodes = curves.nodes[::-_TOGETHER][::-1]
    ends = curves.distances[nodes]
    begins = np.append(0.0, ends[:-1])
    whole = levels[0].cube
    whole = replace(whole, finer=tuple(level.cube for level in levels[1:]))
    nsides = nsides_at(whole.grids, ends, _FACTORS_PER_CELL, finest=curves.nside)
    mean = np.pad(curves.arrays["mean"].astype(np.float64)[:, nodes], ((0, 0), (1, 0)))
    increments = [
        gains.reshape(12 * nside**2, -1).mean(axis=1)
        for nside, gains in zip(nsides, np.diff(mean, axis=1).T)
    ]
    factors = [np.ones(level.cube.shape) for level in levels]
    for _ in range(_PASSES):
        changed = [_times(level, f) for level, f in zip(levels, factors)]
        now = replace(changed[0].cube, finer=tuple(each.cube for each in changed[1:]))
        ratios = []
        for nside, low, high, wanted in zip(nsides, begins, ends, increments):
            ratio, directions = np.ones(len(wanted)), pixel_directions(nside)
            some = np.flatnonzero(wanted > 0)
            integrals = integrals_between(now, directions[some], low, high)
            known = integrals > 0
            ratio[some[known]] = wanted[some[known]] / integrals[known]
            ratios.append(ratio)
        for factor, level in zip(factors, levels):
            points = level.cube.points
            factor *= _at_cells(points, ratios, nsides, (begins + ends) / 2)
    return [_times(level, f) for level, f in zip(levels, factors)]


def _times(level: Level, factor: np.ndarray) -> Level:
    """Return a level with its density times a factor of each cell."""
    cube, columns = level.cube, {}
    arrays = {
        name: values if name == "support" else (factor * values).astype(np.float32)
        for name, values in cube.arrays.items()
    }
    changed = replace(cube, arrays=arrays)
    for along, one in level.columns.items():
        ends = one.low, one.high
        before, after = (each.integral("mean", along, ends) for each in (cube, changed))
        ratio = np.divide(after, before, out=np.ones_like(after), where=before > 0)
        scaled = {name: ratio * values for name, values in one.arrays.items()}
        columns[along] = replace(one, arrays=scaled)
    samples = (factor * level.samples).astype(np.float32)
    return Level(cube=changed, columns=columns, samples=samples)


def _at_cells(
    points: np.ndarray, ratios: list[np.ndarray], nsides: list[int], middles: np.ndarray
) -> np.ndarray:
    """Interpolate ratios by pixel and distance at points ``(z, y, x, 3)``."""
    flat = points.reshape(-1, 3)
    values = np.empty(len(flat))
    # Four pixels on two sides.
    for rows in row_blocks(len(flat), 256):
        places = Places.of_points(flat[rows])
        upper = np.searchsorted(middles, places.distance)
        low, high = np.maximum(upper - 1, 0), np.minimum(upper, len(middles) - 1)
        gap = middles[high] - middles[low]
        share = (places.distance - middles[low]) / np.where(gap > 0, gap, 1.0)
        sides = np.zeros((2, len(places)))
        for side, numbers in zip(sides, (low, high), strict=True):
            for number in np.unique(numbers):
                some = numbers == number
                ring = nsides[number], places.l[some], places.b[some]
                around, weights = weights_around(*ring)
                side[some] = (weights * ratios[number][around]).sum(axis=0)
        near, far = sides
        values[rows] = near + np.clip(share, 0, 1) * (far - near)
    return values.reshape(points.shape[:-1])
