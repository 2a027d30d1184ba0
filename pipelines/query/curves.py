"""Extinction along a sight line, between the pixels and distances of a map.

Between the four nearest pixels a curve is their average, weighted bilinearly on the
sphere; along it, it is linear between the distances of the map, from zero at the
observer. A pixel's own ray may leave the box before the curve that is asked for:
beyond, the increments of those still inside are averaged, so that the curve neither
jumps nor ends early; where none is left it goes on with its last slope to the face
of the box, where that is less than a step away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import healpy
import numpy as np

from pipelines.query.places import Places
from pipelines.query.store import MapStore, Sky

# Sight lines handled at once, one value or a whole curve of each.
_VALUES, _CURVES = 1 << 17, 1 << 12

Named = dict[str, np.ndarray]


def extinctions(store: MapStore, names: Sequence[str], places: Places) -> Named:
    """Integrated arrays by name at finite distances [mag], shape ``(n,)``.

    NaN beyond the last distance of the map, unless the sight line leaves the box within
    a step of it; whether a place is inside the box is not looked at.
    """
    sky = store.require_sky()
    found = {name: np.empty(len(places)) for name in names}
    for rows, rays in _blocks(store, places, _VALUES):
        distance = places.distance[rows]
        for name in names:
            found[name][rows] = rays.at(name, distance)
    leaves = store.box.exits(places.directions) <= sky.limit
    ends = np.where(leaves, sky.limit, sky.distance[-1])
    beyond = ~(places.distance <= ends)
    for values in found.values():
        values[beyond] = np.nan
    return found


def each_curve(
    store: MapStore, names: Sequence[str], places: Places
) -> Iterator[tuple[np.ndarray, np.ndarray, Named]]:
    """Yield whole curves in blocks: rows, distances [pc] ``(k,)``, and by name
    ``(rows, k)``; the first distance is 0, the last `Sky.limit`."""
    for rows, rays in _blocks(store, places, _CURVES):
        every = np.arange(len(rows))
        yield rows, rays.nodes, {name: rays.curves(name, every) for name in names}


def _blocks(
    store: MapStore, places: Places, size: int
) -> Iterator[tuple[np.ndarray, _Rays]]:
    """Rows that are near each other on the sky, and the rays around them."""
    sky = store.require_sky()
    nearest = healpy.ang2pix(sky.nside, places.l, places.b, nest=True, lonlat=True)
    order = np.argsort(nearest, kind="stable")
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        pixels, weights = healpy.get_interp_weights(
            sky.nside, places.l[rows], places.b[rows], nest=True, lonlat=True
        )
        unique, where = np.unique(pixels, return_inverse=True)

        def read(name: str, numbers: np.ndarray = unique) -> np.ndarray:
            return store.reader.rows(f"extinction_{name}", numbers)

        yield rows, _Rays(sky, read, where.reshape(pixels.shape), weights)


class _Rays:
    """The rays of the pixels around some sight lines, four to each.

    ``read`` gives the rows of an array, ``which (4, m)`` the row of each neighbour and
    ``weights (4, m)`` how much it counts.
    """

    def __init__(
        self,
        sky: Sky,
        read: Callable[[str], np.ndarray],
        which: np.ndarray,
        weights: np.ndarray,
    ) -> None:
        self._read, self._which, self._weights = read, which, weights
        self._last = len(sky.distance)
        self.nodes = np.concatenate([[0.0], sky.distance, [sky.limit]])

    def at(self, name: str, distance: np.ndarray) -> np.ndarray:
        """Values at one distance [pc] per sight line; garbage beyond the last node."""
        rows = _from_zero(self._read(name))
        step = np.searchsorted(self.nodes, distance, side="right") - 1
        step = np.clip(step, 0, self._last)
        whole = step < self._last
        far = np.minimum(step + 1, self._last)
        upper = rows[self._which, far]
        whole &= (np.isfinite(upper) | (self._weights == 0)).all(axis=0)
        # Beyond the last node nothing is asked.
        ended = np.nonzero(~whole & (distance <= self.nodes[-1]))[0]
        share = (distance - self.nodes[step]) / np.diff(self.nodes)[step]
        lower = rows[self._which, step]
        along = lower + (upper - lower) * share
        values = np.where(self._weights > 0, self._weights * along, 0.0).sum(axis=0)
        for start in range(0, len(ended), _CURVES):
            part = ended[start : start + _CURVES]
            curves = self.curves(name, part, rows)
            one = np.arange(len(part))
            near, beyond = curves[one, step[part]], curves[one, step[part] + 1]
            values[part] = near + (beyond - near) * share[part]
        return values

    def curves(
        self, name: str, chosen: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Values at all nodes of sight lines by number, shape ``(m, nodes)``."""
        rows = _from_zero(self._read(name)) if rows is None else rows
        steps = np.diff(self.nodes)
        along = np.diff(rows, axis=1)[self._which[:, chosen]]
        weights = self._weights[:, chosen, None] * np.isfinite(along)
        living = weights.sum(axis=0)
        some = living > 0
        summed = np.where(weights > 0, weights * along, 0.0).sum(axis=0)
        gains = np.zeros((len(some), len(steps)))
        gains[:, :-1] = np.where(some, summed / np.where(some, living, 1.0), 0.0)
        count = some.sum(axis=1)
        last = np.maximum(count - 1, 0)
        slope = gains[np.arange(len(gains)), last] / steps[last]
        over = np.arange(len(steps)) >= count[:, None]
        gains = np.where(over, slope[:, None] * steps, gains)
        gains[count == 0] = np.nan
        return np.concatenate(
            [np.zeros((len(gains), 1)), np.cumsum(gains, axis=1)], axis=1
        )


def _from_zero(rows: np.ndarray) -> np.ndarray:
    """Rows with a node at the observer in front, in double precision."""
    return np.concatenate([np.zeros((len(rows), 1)), rows], axis=1, dtype=np.float64)
