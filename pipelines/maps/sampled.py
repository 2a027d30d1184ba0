"""Posterior samples of a store: of densities, and of extinctions along rays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dustmap.memory import row_blocks
from dustmap.nested_grids import NestedGrids
from pipelines.maps.places import Places
from pipelines.maps.rays import PixelRays


@dataclass(frozen=True, kw_only=True)
class SampledRays:
    """Samples of the density on nested grids.

    ``read`` returns them by level, ``(x, y, z, s)``.
    """

    read: Callable[[], list[np.ndarray]]
    grids: NestedGrids

    def densities(
        self, places: Places, mean: np.ndarray, std: np.ndarray, *, positive: bool
    ) -> np.ndarray:
        """Return samples of the density at places in the box, ``(n, s)``.

        The interpolated samples rank them; values by rank are those of the normal or
        log-normal distribution with this mean and std, ``(n,)``.
        """
        ranks = _ranks(self._at(places.positions()).T)
        return _by_rank(mean, std, ranks, positive=positive).T

    def extinctions(self, places: Places, rays: PixelRays) -> np.ndarray:
        """Return samples of the extinction to places in the box [mag], ``(n, s)``.

        The integrals of the samples along a ray rank them at the nodes of the curves;
        the values by rank are those of the curves' distribution, normal or log-normal.
        Samples of a positive density are made non-decreasing, and rise between nodes in
        proportion to the mean.
        """
        from dustmap.isotonic import non_decreasing

        known = np.arange(len(rays.distance)) if rays.known is None else rays.known
        nodes, positive = rays.distance[known], "p50" in rays.arrays
        count = self.read()[0].shape[-1]
        drawn = np.empty((len(places), count))
        # Samples at every distance of a ray.
        for rows in row_blocks(len(places), 16 * count * len(rays.distance)):
            some = places.select(rows)
            before = np.searchsorted(nodes, some.distance)
            last = np.minimum(before, len(nodes) - 1)
            ends = np.minimum(nodes, np.minimum(rays.reach(some), nodes[-1])[:, None])
            along = Places.along(some.directions, ends)
            moments = rays.at(("mean", "std"), along)
            mean, std = (along.restore(moments[name]) for name in ("mean", "std"))
            step = np.searchsorted(rays.distance, ends)
            sums = self.integrals(some, rays.distance)
            ranks = _ranks(np.take_along_axis(sums, step[None], axis=2))
            curves = _by_rank(mean, std, ranks, positive=positive)
            if positive:
                spread = np.log1p((std / np.where(mean > 0, mean, 1.0)) ** 2)
                starts = len(nodes) * np.arange(len(some) + 1)
                flat = curves.reshape(count, -1)
                rising = non_decreasing(flat, spread.ravel(), starts)
                curves = rising.reshape(curves.shape)
            curves, mean, far = (
                np.concatenate([np.zeros_like(x[..., :1]), x], axis=-1)
                for x in (curves, mean, ends)
            )
            row = np.arange(len(some))
            place = rays.at(("mean",), some)["mean"] if positive else some.distance
            scale = mean if positive else far
            low, high = scale[row, last], scale[row, last + 1]
            rises = high > low
            share = np.where(rises, (place - low) / np.where(rises, high - low, 1), 1.0)
            near, end = curves[:, row, last], curves[:, row, last + 1]
            drawn[rows] = (near + np.clip(share, 0, 1) * (end - near)).T
        return drawn

    def integrals(self, places: Places, distances: np.ndarray) -> np.ndarray:
        """Integrate samples from the Sun towards places [mag], ``(s, n, k)``.

        Ends are ``distances`` [pc] ``(k,)``; beyond the box there is nothing more.
        """
        begins = np.append(0.0, distances[:-1])
        middles = np.broadcast_to(
            (begins + distances) / 2, (len(places), len(distances))
        )
        along = Places.along(places.directions, middles)
        density = along.restore(np.nan_to_num(self._at(along.positions())))
        gains = density * (distances - begins)[:, None]
        return np.moveaxis(gains.cumsum(axis=1), -1, 0)

    def _at(self, positions: np.ndarray) -> np.ndarray:
        """Interpolate samples at positions [pc], ``(n, s)``; NaN outside the box."""
        samples = self.read()
        values = np.full((len(positions), samples[0].shape[-1]), np.nan)
        # Samples in eight corners.
        for rows in row_blocks(len(positions), 64 * values.shape[1]):
            part = values[rows]
            for level, here, index, weight in self.grids.corners(positions[rows]):
                part[here] = 0.0
                for corner, share in zip(index, weight, strict=True):
                    held = samples[level][tuple(corner.T)]
                    part[here] += share[:, None] * held
        return values


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the place of every sample ``(s, ...)`` among all, from 0."""
    return values.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable")


def _by_rank(
    mean: np.ndarray, std: np.ndarray, ranks: np.ndarray, *, positive: bool
) -> np.ndarray:
    """Return samples by rank, of log-normal distributions if ``positive``."""
    from dustmap.isotonic import Ranked, normal_samples

    if positive:
        return Ranked.log_normal(mean, std).samples(ranks)
    return mean + std * normal_samples(len(ranks))[ranks]
