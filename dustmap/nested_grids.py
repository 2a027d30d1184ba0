"""Nested regular grids, and values between and at their points.

Only this module and :mod:`dustmap.projection.corner_weights`, the compiled loop that
makes W, assign grid points to positions. Arrays are NumPy's (or tensors on the CPU), so
that maps can be read without torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from dustmap.grid import ROUNDING, Grid

Points = Float[np.ndarray, "n d"]
Rows = Int[np.ndarray, " k"]
# Fraction of a cell by which spacings and corners of grids may be off.
_EDGE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedGrids:
    """One or more regular grids, the coarsest first, one inside the other.

    Each has half the spacing of the previous one. At any position the finest grid whose
    closed box contains it applies. Positions up to `ROUNDING` of a side beyond a face
    count as on it.

    Raises `ValueError` if there is no grid, or dimensions or spacings do not agree.
    """

    grids: tuple[Grid, ...]

    def __post_init__(self) -> None:
        if not self.grids:
            raise ValueError("nested grids need at least one grid")
        for coarse, fine in itertools.pairwise(self.grids):
            if fine.dimension != coarse.dimension:
                raise ValueError(
                    f"nested grids need equal numbers of axes, got {coarse.dimension} "
                    f"and {fine.dimension}"
                )
            for h, half in zip(coarse.spacing, fine.spacing, strict=True):
                if abs(half - h / 2) > _EDGE * h:
                    raise ValueError(
                        f"spacing must be halved from grid to grid, got "
                        f"{coarse.spacing} and {fine.spacing}"
                    )

    def __len__(self) -> int:
        return len(self.grids)

    def __iter__(self) -> Iterator[Grid]:
        return iter(self.grids)

    def __getitem__(self, level: int) -> Grid:
        return self.grids[level]

    @property
    def box(self) -> Grid:
        """The coarsest grid, whose box contains all others."""
        return self.grids[0]

    @property
    def finer(self) -> tuple[Grid, ...]:
        """All grids but the coarsest."""
        return self.grids[1:]

    @property
    def dimension(self) -> int:
        """Number of axes D."""
        return self.box.dimension

    def require_shared_points(self) -> None:
        """Check that each box's corners are points of the next coarser grid.

        Raises `ValueError` if a corner is not such a point, or lies outside.
        """
        for coarse, fine in itertools.pairwise(self.grids):
            for corner in (fine.lower, fine.upper):
                place = self._places(coarse, np.array([corner]))[0]
                index = np.rint(place)
                outside = (index < 0) | (index > np.array(coarse.shape) - 1)
                if outside.any() or (np.abs(place - index) > _EDGE).any():
                    raise ValueError(
                        f"the corner {corner} of a nested box is not a point of the "
                        f"coarser grid from {coarse.lower} to {coarse.upper} every "
                        f"{coarse.spacing}"
                    )

    def level_of(self, x: Points) -> Int[np.ndarray, " n"]:
        """Return the number of the finest grid at each position, −1 outside."""
        level = np.full(len(x), -1)
        for number, rows, _ in self._held(x):
            level[rows] = number
        return level

    def corners(
        self, x: Points
    ) -> Iterator[tuple[int, Rows, Int[np.ndarray, "c k d"], np.ndarray]]:
        """Yield the cells around positions, level by level; none for those outside.

        Items are a level's number, the rows of its positions, the grid points at the
        ``c = 2^D`` corners of their cells, and the weights ``(c, k)`` of the linear
        interpolant, which sum to one.
        """
        for level, rows, places in self._held(x):
            last = np.array(self.grids[level].shape) - 2
            base = np.minimum(np.floor(places).astype(np.int64), last)
            share = places - base
            offsets = np.array(list(itertools.product((0, 1), repeat=self.dimension)))
            weight = np.where(offsets[:, None, :], share, 1.0 - share).prod(axis=-1)
            yield level, rows, base + offsets[:, None, :], weight

    def nearest(self, x: Points) -> Iterator[tuple[int, Rows, Int[np.ndarray, "k d"]]]:
        """Yield level, rows and nearest grid points, without positions outside."""
        for level, rows, places in self._held(x):
            yield level, rows, np.rint(places).astype(np.int64)

    def sample(
        self, values: Sequence[np.ndarray], x: Float[np.ndarray, "*n d"]
    ) -> Float[np.ndarray, "*n"]:
        """Interpolate linearly between grid points (float64); NaN outside the box.

        Parameters
        ----------
        values
            The values at the points of each grid, arrays of its ``shape``.

        Raises
        ------
        ValueError
            Unless there is one array of the right shape for each grid.
        """
        # Queries of a map, which start fast, do without SciPy.
        from scipy.ndimage import map_coordinates

        shapes = [grid.shape for grid in self.grids]
        if [tuple(array.shape) for array in values] != shapes:
            raise ValueError(
                f"values need the shapes {shapes}, one array for each grid, got "
                f"{[tuple(array.shape) for array in values]}"
            )
        x = np.asarray(x)
        found = np.full(x.shape[:-1], np.nan)
        flat = found.reshape(-1)
        for level, rows, places in self._held(x.reshape(-1, self.dimension)):
            flat[rows] = map_coordinates(
                values[level], places.T, output=np.float64, order=1, mode="nearest"
            )
        return found

    def _held(self, x: Points) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield each level's rows with their places in its box [cells]."""
        x = np.asarray(x)
        left = np.arange(len(x))
        for level in reversed(range(len(self))):
            places = self._places(self[level], x if len(left) == len(x) else x[left])
            last = np.array(self[level].shape) - 1.0
            inside = np.ones(len(left), dtype=bool)
            for axis, end in zip(places.T, last, strict=True):
                slack = ROUNDING * end
                inside &= (axis >= -slack) & (axis <= end + slack)
                np.clip(axis, 0.0, end, out=axis)
            if inside.any():
                yield level, left[inside], places.T[:, inside].T
            left = left[~inside]

    @staticmethod
    def _places(grid: Grid, x: np.ndarray) -> np.ndarray:
        """Return positions in cells from the first point, each axis contiguous."""
        origins, steps = grid.origin, grid.spacing
        return np.stack([(a - o) / h for a, o, h in zip(x.T, origins, steps)]).T
