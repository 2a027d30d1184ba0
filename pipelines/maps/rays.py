"""Extinction along sight lines: between the rays of pixels, or through a cube.

A curve is the average of the four nearest pixels' curves, weighted bilinearly on the
sphere, and linear between the distances of the map, from zero at the observer. A
pixel's ray may leave the box before the sight line does: beyond, the increments of the
rays still inside are averaged, so that the curve neither jumps nor ends early. Without
any, the last slope is extrapolated to the face of the box, by less than a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dustmap.memory import row_blocks
from dustmap.nested_grids import NestedGrids
from pipelines.base.geometry import Box
from pipelines.base.pixels import pixel_directions, pixel_of, weights_around
from pipelines.base.quantiles import NAMES, interpolated_quantile
from pipelines.cubes.cube import Cube, farthest, truth_extinction
from pipelines.cubes.sky import Curves
from pipelines.maps.cells import GridCells, Take, in_memory
from pipelines.maps.places import Places

CROSSING_FLAGS = np.dtype(
    [("not_reached", "?"), ("bounded", "?"), ("extrapolated", "?"), ("inside", "?")]
)
"""``not_reached``: the map ends before. ``bounded``: the map holds the upper distance.
``extrapolated``: the central distance is beyond the last star. ``inside``: the map has
a curve in this direction."""

Named = dict[str, np.ndarray]


class _Neighbours(NamedTuple):
    """Pixels ``(u,)``, with the index and the weight of each neighbour."""

    pixels: np.ndarray
    which: np.ndarray  # (4, m)
    weights: np.ndarray  # (4, m)


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelRays:
    """The integrated extinction of a map store by pixel and ``distance``.

    ``distance`` [pc] has shape ``(k,)``, pixels are those of ``nside`` (NESTED). All
    arrays but the mean are known at the distances with the numbers ``known (j,)``, as
    of `Curves.nodes`; ``None`` stands for all. ``to_faces`` is true if rays end at the
    faces of the ``box``, else at their last known distance.
    """

    take: Take
    box: Box
    nside: int
    distance: np.ndarray
    arrays: tuple[str, ...]
    known: np.ndarray | None = None
    to_faces: bool = True

    @classmethod
    def of(cls, curves: Curves, box: Box) -> PixelRays:
        """Return curves in memory."""
        arrays = {f"extinction_{name}": x for name, x in curves.arrays.items()}
        return cls(
            take=in_memory({**arrays, "last_star": curves.last_star}),
            box=box,
            nside=curves.nside,
            distance=curves.distances,
            arrays=tuple(curves.arrays),
            known=curves.nodes,
        )

    @property
    def nodes(self) -> np.ndarray:
        """Distances of a curve [pc], ``(k + 2,)``: from 0 to a step beyond the last."""
        last = 2 * self.distance[-1] - np.append(0.0, self.distance)[-2]
        return np.concatenate([[0.0], self.distance, [last]])

    def reach(self, places: Places) -> np.ndarray:
        """Return the end of each sight line [pc]: at the box, or the last node.

        Without faces it is the end of the longest ray around, or zero.
        """
        if self.to_faces:
            exits = self.box.exits(places.directions)
            return np.where(exits <= self.nodes[-1], exits, self.distance[-1])
        ends = np.empty(len(places))
        for rows, near in self._blocks(places):
            known = np.isfinite(self._rays(self.arrays[0], near)).sum(axis=1) - 1
            last = np.append(0.0, self.distance)[known][near.which]
            ends[rows] = np.where(near.weights > 0, last, 0.0).max(axis=0)
        return ends

    def last_star(self, places: Places) -> np.ndarray:
        """Return the end of the last stretch with stars on each sight line [pc]."""
        return self.take("last_star", self.pixel_of(places))

    def at(self, names: Iterable[str], places: Places) -> Named:
        """Interpolate arrays by name at finite distances [mag], shape ``(n,)``.

        A missing percentile, such as ``p99``, is extrapolated from others. Values are
        NaN beyond the last distance of the map, unless the sight line leaves the box
        within a step of it; places are not checked against the box.
        """
        found = {name: np.empty(len(places)) for name in names}
        nodes = self.nodes
        for rows, near in self._blocks(places):
            for name, values in found.items():
                rays = self._rays(name, near)
                values[rows] = _values(rays, near, nodes, places.distance[rows])
        ends = self.reach(places)
        if self.to_faces:
            leaves = self.box.exits(places.directions) <= nodes[-1]
            ends = np.where(leaves, nodes[-1], nodes[-2])
        beyond = ~((places.distance <= ends) & (ends > 0))
        for values in found.values():
            values[beyond] = np.nan
        return found

    def between(self, found: Named, places: Places) -> Named:
        """Return values of `at` with the error of interpolation in std and quantiles.

        A rising curve may have any value between those at the distances around. If all
        are as likely, the variance is a twelfth of the squared step in its middle; a
        share t of the step has t (1 − t) / 3 of it. Quantiles become those of the
        log-normal distribution of this std and the same mean, if they were of one.
        """
        step = np.searchsorted(self.distance[:-1], places.distance)
        near, far = self.nodes[step], self.nodes[step + 1]
        share = np.clip((places.distance - near) / (far - near), 0.0, 1.0)
        low, high = (self.at(("mean",), places.at(end))["mean"] for end in (near, far))
        held = self.at({"mean", "std", "p50"} & {*self.arrays}, places)
        std = np.hypot(held["std"], np.sqrt(share * (1 - share) / 3) * (high - low))
        wider = {"std": std, "mean": held["mean"]}
        if "p50" in held:
            mean, middle = (
                np.where(held[n] > 0, held[n], 1.0) for n in ("mean", "p50")
            )
            before, after = (np.log1p((s / mean) ** 2) for s in (held["std"], std))
            grown = np.sqrt(after / np.where(before > 0, before, 1.0))
            centre = held["p50"] * np.exp((before - after) / 2)
            for name in found.keys() - wider.keys():
                wider[name] = centre * (found[name] / middle) ** grown
        return {name: wider[name] for name in found}

    def crossings(
        self, places: Places, extinction: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        r"""Return distance, lower and upper end [pc], ``(3, n)``, and flags ``(n,)``.

        Extinction grows along a ray, so the distance D at which it reaches a has

        .. math:: P(D \le d) = P(A(d) \ge a),

        and its 16% quantile is where the 84% quantile of A(d) reaches a. Curves that
        decrease, as for densities that may be negative, give the first crossing.
        """
        nodes, normal = self.nodes, "p50" not in self.arrays
        found = np.full((3, len(places)), np.nan)
        for rows, near in self._blocks(places, curves=True):
            held = ("mean", "std") if normal else ("p50", "p84", "p16")
            curves = [_curves(self._rays(n, near), near, nodes) for n in held]
            if normal:
                mean, std = curves
                curves = [mean, mean + std, mean - std]
            for part, curve in enumerate(curves):
                found[part, rows] = first_reached(nodes, curve, extinction[rows])
        return within_map(found, self.reach(places), self.last_star(places))

    def curves(self, names: Iterable[str], places: Places) -> Named:
        """Interpolate arrays at all distances towards places [mag], ``(n, k)`` each.

        Curves go on as far as a step beyond the last distance of any neighbour.
        """
        size = len(places), len(self.distance)
        curves = {name: np.empty(size) for name in names}
        for rows, near in self._blocks(places, curves=True):
            for name, values in curves.items():
                whole = _curves(self._rays(name, near), near, self.nodes)
                values[rows] = whole[:, 1:-1]
        return curves

    def pixel_of(self, places: Places) -> np.ndarray:
        """Return the pixel of each direction."""
        return pixel_of(self.nside, places.l, places.b)

    def _around(self, l: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # noqa: E741
        """Return the pixels around directions [deg] and their weights, ``(4, n)``."""
        return weights_around(self.nside, l, b)

    def _rays(self, name: str, near: _Neighbours) -> np.ndarray:
        """Return the pixels' rays with a node at the observer, ``(u, k + 1)``."""

        def taken(name: str) -> np.ndarray:
            rays = self.take(f"extinction_{name}", near.pixels)
            return rays if name == "mean" else self._between_nodes(rays, near.pixels)

        if name in self.arrays:
            rays = taken(name)
        else:
            known = {name: taken(name) for name in NAMES if name in self.arrays}
            rays = interpolated_quantile(known, float(name[1:]) / 100)
            # Extrapolation from non-decreasing curves may itself decrease.
            from dustmap.isotonic import non_decreasing  # needs numba

            with np.errstate(divide="ignore", invalid="ignore"):
                variances = np.log(known["p84"] / known["p50"]).reshape(-1) ** 2
            starts = rays.shape[1] * np.arange(len(rays) + 1)
            rising = non_decreasing(rays.reshape(1, -1), variances, starts)
            rays = rising.reshape(rays.shape)
        return np.concatenate([np.zeros((len(rays), 1)), rays], axis=1)

    def _between_nodes(
        self, values: np.ndarray, pixels: np.ndarray, columns: np.ndarray | None = None
    ) -> np.ndarray:
        """Interpolate the pixels' values at nodes ``(u, j)`` at all distances.

        ``columns`` are the numbers of some distances.
        """
        columns = np.arange(len(self.distance)) if columns is None else columns
        if self.known is None:
            return values[:, columns]
        mean = self.take("extinction_mean", pixels)
        last = np.isfinite(mean).sum(axis=1, keepdims=True) - 1
        # A density that may be negative has no quantiles.
        along = np.broadcast_to(self.distance, mean.shape)
        along = mean if "p50" in self.arrays else along
        step = np.searchsorted(self.known, columns)
        # The last node of a ray has the values at its last distance.
        anchors = np.minimum(self.known, np.maximum(last, 0))
        high = np.take_along_axis(along, anchors[:, step], axis=1)
        low = np.take_along_axis(along, anchors[:, np.maximum(step - 1, 0)], axis=1)
        low = np.where(step > 0, low, 0.0)
        near = np.where(step > 0, values[:, np.maximum(step - 1, 0)], 0.0)
        rises = high > low
        share = (along[:, columns] - low) / np.where(rises, high - low, 1.0)
        return near + np.where(rises, share, 1.0) * (values[:, step] - near)

    def sky(self, name: str, distance: float) -> np.ndarray:
        """Return an array at a distance [pc] by pixel, ``(npix,)``; NaN beyond."""
        step = int(np.searchsorted(self.distance, distance))
        begin, end = self.nodes[step], self.nodes[step + 1]
        columns = np.clip([step - 2, step - 1, step], 0, len(self.distance) - 1)
        places = Places.of_points(pixel_directions(self.nside))
        ends = self.reach(places)
        values = np.empty(len(places))
        for rows in row_blocks(len(places), 64 * len(self.distance)):
            pixels = np.arange(rows.start, rows.stop)
            rays = self.take(f"extinction_{name}", pixels)
            if name == "mean":
                before, low, high = rays[:, columns].T
            else:
                before, low, high = self._between_nodes(rays, pixels, columns).T
            low = low if step > 0 else np.zeros_like(low)
            before = before if step > 1 else np.zeros_like(low)
            # Beyond the last distance of a pixel its last slope goes on to the face.
            slope = (low - before) / (begin - self.nodes[max(step - 1, 0)] or 1.0)
            whole = np.where(
                np.isfinite(high) & (step < len(self.distance)),
                low + (high - low) * ((distance - begin) / (end - begin)),
                low + slope * (distance - begin),
            )
            within = distance <= ends[rows] * (1 + 1e-9)
            values[rows] = np.where(within, whole, np.nan)
        return values

    def _blocks(
        self, places: Places, *, curves: bool = False
    ) -> Iterator[tuple[np.ndarray, _Neighbours]]:
        """Yield rows of neighbours on the sky, and the pixels around them.

        They are fewer if each needs whole ``curves``.
        """
        order = np.argsort(self.pixel_of(places), kind="stable")
        # Four neighbours with a value each, or with a curve of some 160.
        for part in row_blocks(len(order), 2**15 if curves else 2**10):
            rows = order[part]
            pixels, weights = self._around(places.l[rows], places.b[rows])
            unique, which = np.unique(pixels, return_inverse=True)
            yield rows, _Neighbours(unique, which.reshape(pixels.shape), weights)


def _values(
    rays: np.ndarray, near: _Neighbours, nodes: np.ndarray, distance: np.ndarray
) -> np.ndarray:
    """Return values at a distance [pc] per sight line; undefined beyond the nodes."""
    last = len(nodes) - 2
    step = np.clip(np.searchsorted(nodes, distance, side="right") - 1, 0, last)
    share = (distance - nodes[step]) / np.diff(nodes)[step]
    lower = rays[near.which, step]
    upper = rays[near.which, np.minimum(step + 1, last)]
    along = lower + (upper - lower) * share
    values = np.where(near.weights > 0, near.weights * along, 0.0).sum(axis=0)
    # The whole curve is needed only if a neighbour has ended.
    whole = (step < last) & (np.isfinite(upper) | (near.weights == 0)).all(axis=0)
    ended = np.nonzero(~whole & (distance <= nodes[-1]))[0]
    # As of whole curves in `PixelRays._blocks`.
    for block in row_blocks(len(ended), 2**15):
        part = ended[block]
        some = near._replace(which=near.which[:, part], weights=near.weights[:, part])
        curves = _curves(rays, some, nodes)
        one = np.arange(len(part))
        low, high = curves[one, step[part]], curves[one, step[part] + 1]
        values[part] = low + (high - low) * share[part]
    return values


def _curves(rays: np.ndarray, near: _Neighbours, nodes: np.ndarray) -> np.ndarray:
    """Return values at all nodes, ``(m, k + 2)``; NaN if all neighbours are NaN."""
    steps = np.diff(nodes)
    along = np.diff(rays, axis=1)[near.which]
    weights = near.weights[..., None] * np.isfinite(along)
    living = weights.sum(axis=0)
    gains = np.zeros((len(living), len(steps)))
    summed = np.where(weights > 0, weights * along, 0.0).sum(axis=0)
    np.divide(summed, living, out=gains[:, :-1], where=living > 0)
    count = (living > 0).sum(axis=1)
    last = np.maximum(count - 1, 0)
    slope = gains[np.arange(len(gains)), last] / steps[last]
    over = np.arange(len(steps)) >= count[:, None]
    gains = np.where(over, slope[:, None] * steps, gains)
    gains[count == 0] = np.nan
    return np.concatenate([np.zeros((len(gains), 1)), gains.cumsum(axis=1)], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CubeRays:
    """Mean extinction integrated through a cube around the Sun.

    ``name`` is the integrated array, ``arrays`` the name of the integral.
    """

    cube: Cube
    cells: GridCells
    name: str
    arrays: tuple[str, ...]

    @property
    def box(self) -> Box:
        """Bounds of the cube."""
        return self.cells.box

    @property
    def distance(self) -> np.ndarray:
        """Distance of its furthest corner [pc], shape ``(1,)``."""
        return np.array([farthest(self.cells.grids.box)])

    def reach(self, places: Places) -> np.ndarray:
        """Return the end of each sight line at the box [pc]."""
        return self.box.exits(places.directions)

    def at(self, names: Iterable[str], places: Places) -> Named:
        """Return the extinction to places in the box [mag], shape ``(n,)``."""
        ray = (places.l, places.b, places.distance)
        return dict.fromkeys(names, truth_extinction(self.cube, *ray, name=self.name))

    def last_star(self, places: Places) -> np.ndarray:
        """Return the end of the last stretch with stars on each sight line [pc]."""

        def support_at(points: np.ndarray) -> np.ndarray:
            places = Places.of_points(points)
            found = places.restore(self.cells.support(places))
            # Cells end at the faces of the box.
            return np.where(self.box.contains(points), found, 0.0)

        return last_seen(support_at, self.cells.grids, places.directions)


def grid_steps(grids: NestedGrids, cells: float) -> np.ndarray:
    """Return distances [pc] spaced by ``cells`` cells of the finest grid there."""
    found = [0.0]
    for grid in reversed(grids.grids):
        end = farthest(grid) if grid is grids.box else grid.reach
        step = cells * min(grid.spacing)
        count = math.floor((end - found[-1]) / step * (1 + 1e-12))
        found += (found[-1] + step * np.arange(1, count + 1)).tolist()
    return np.array(found[1:])


def last_seen(
    support_at: Callable[[np.ndarray], np.ndarray],
    grids: NestedGrids,
    directions: np.ndarray,
) -> np.ndarray:
    """Return the end of the last stretch with sight lines along rays [pc], ``(n,)``.

    Support is looked up in the nearest cell every half grid step, accurate to a cell.
    Rays without support give zero.
    """
    ends = grid_steps(grids, 0.5)
    ends = np.append(ends, 2 * ends[-1] - ends[-2])
    along = (ends + np.append(0.0, ends[:-1])) / 2
    last = np.zeros(len(directions), dtype=np.float32)
    # A point, its cell and its support.
    for part in row_blocks(len(directions), 32 * len(along)):
        lit = support_at(along[:, None] * directions[part, None]) > 0
        final = len(along) - 1 - np.argmax(lit[:, ::-1], axis=1)
        last[part] = np.where(lit.any(axis=1), ends[final], 0.0)
    return last


def within_map(
    found: np.ndarray, reach: np.ndarray, last_star: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return crossings ``(3, n)`` [pc] without those beyond the map, and flags."""
    known = ~np.isnan(found[0])
    found[1] = np.minimum(found[1], reach)
    found[found > reach] = np.nan
    flags = np.zeros(len(known), dtype=CROSSING_FLAGS)
    flags["inside"] = known
    flags["not_reached"] = known & np.isnan(found[0])
    flags["bounded"] = np.isfinite(found[2])
    flags["extrapolated"] = np.nan_to_num(found[0]) > last_star
    return found, flags


def first_reached(
    nodes: np.ndarray, curve: np.ndarray, value: np.ndarray
) -> np.ndarray:
    """Return nodes where curves ``(m, k)`` first reach ``value (m,)``; NaN for NaN."""
    nodes = np.broadcast_to(nodes, curve.shape)
    above = curve >= value[:, None]
    step = np.maximum(above.argmax(axis=1), 1)
    row = np.arange(len(curve))
    low, high = curve[row, step - 1], curve[row, step]
    reached = above.any(axis=1)
    share = (value - low) / np.where(reached, high - low, 1.0)
    begin, end = nodes[row, step - 1], nodes[row, step]
    distance = begin + share * (end - begin)
    distance = np.where(reached, distance, np.inf)
    return np.where(np.isnan(curve[:, -1]), np.nan, distance)
