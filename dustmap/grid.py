"""Regular grids of inducing points.

Torch is imported only to make tensors, so that maps can be read without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

if TYPE_CHECKING:
    from torch import Tensor

# Fraction of a box's side up to which positions beyond a face count as on it: rounding
# of l, b and distance moves positions by some 1e-15 of their distance.
ROUNDING = 1e-9


def tolerant_faces(
    lower: tuple[float, ...], upper: tuple[float, ...]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Return the corners of a box, moved outwards by `ROUNDING` of its sides."""
    low, high = np.array(lower), np.array(upper)
    slack = ROUNDING * (high - low)
    return low - slack, high + slack


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A regular grid ``z_i = origin + i * spacing``, C order, in one to three axes.

    Parameters
    ----------
    shape
        Points per axis, each at least 2.
    spacing
        Distance between neighbours per axis, in the unit of the inputs.
    origin
        Position of the first point.

    Raises
    ------
    ValueError
        If the tuples disagree in length, a shape is below 2, a spacing is not positive
        and finite, or an origin is not finite.
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    origin: tuple[float, ...]

    def __post_init__(self) -> None:
        counts = {len(self.shape), len(self.spacing), len(self.origin)}
        if not counts <= {1, 2, 3} or len(counts) != 1:
            raise ValueError(
                "shape, spacing and origin need one entry for each of 1 to 3 axes, got "
                f"{self.shape}, {self.spacing} and {self.origin}"
            )
        if min(self.shape) < 2:
            raise ValueError(f"every axis needs at least 2 points, got {self.shape}")
        if not all(math.isfinite(h) and h > 0 for h in self.spacing):
            raise ValueError(f"spacing must be positive, got {self.spacing}")
        if not all(math.isfinite(o) for o in self.origin):
            raise ValueError(f"origin must be finite, got {self.origin}")

    @property
    def dimension(self) -> int:
        """Number of axes D."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of points M."""
        return math.prod(self.shape)

    @property
    def lower(self) -> tuple[float, ...]:
        """The first point, the box's lower corner."""
        return self.origin

    @property
    def upper(self) -> tuple[float, ...]:
        """The last point, the box's upper corner."""
        return tuple(
            o + (n - 1) * h
            for o, n, h in zip(self.origin, self.shape, self.spacing, strict=True)
        )

    @property
    def reach(self) -> float:
        """Distance from the origin of coordinates to the nearest face of the box."""
        return min(abs(x) for x in (*self.lower, *self.upper))

    def axis(self, axis: int) -> Float[Tensor, " n"]:
        """Return coordinates of the points along one axis (float64)."""
        import torch

        steps = torch.arange(self.shape[axis], dtype=torch.float64)
        return self.origin[axis] + steps * self.spacing[axis]

    def points(self) -> Float[Tensor, "m d"]:
        """Return all points in C order (float64)."""
        return _mesh([self.axis(d) for d in range(self.dimension)]).flatten(0, -2)

    def contains(self, x: Float[Tensor, "n d"]) -> Bool[Tensor, " n"]:
        """Return True for points in the closed box between first and last point.

        Points up to `ROUNDING` of a side beyond a face count as on it.
        """
        inside: Any = True
        faces = zip(*tolerant_faces(self.lower, self.upper), strict=True)
        for axis, (lower, upper) in enumerate(faces):
            inside = inside & (x[..., axis] >= lower) & (x[..., axis] <= upper)
        return inside

    def refined(self, factor: int) -> Grid:
        """Return the grid with ``factor`` times finer spacing on the same box."""
        return Grid(
            shape=tuple((n - 1) * factor + 1 for n in self.shape),
            spacing=tuple(h / factor for h in self.spacing),
            origin=self.origin,
        )


def smooth_size(n: int) -> int:
    """Return the smallest even integer >= ``n`` whose prime factors are 2, 3, 5, 7.

    Fast for every FFT library; large prime sizes have given wrong results on GPUs.
    """
    size = max(2, n + n % 2)
    # A power of 2 · 3 · 5 · 7 is a multiple of every such number below 2^64, and of no
    # other.
    while pow(210, 64, int(size)):
        size += 2
    return size


def _mesh(axes: list[Float[Tensor, " _"]]) -> Float[Tensor, "*n d"]:
    import torch

    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """A periodic grid of ``shape`` whose first ``grid.shape`` points are ``grid``."""

    grid: Grid
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != self.grid.dimension or any(
            n < m for n, m in zip(self.shape, self.grid.shape, strict=True)
        ):
            raise ValueError(
                f"torus shape {self.shape} must contain the grid {self.grid.shape}"
            )

    @property
    def size(self) -> int:
        """Number of points on the torus."""
        return math.prod(self.shape)

    @property
    def periods(self) -> tuple[float, ...]:
        """Length of the torus per axis."""
        return tuple(n * h for n, h in zip(self.shape, self.grid.spacing, strict=True))

    def lags(self) -> Float[Tensor, "*n d"]:
        """Return signed shortest displacements from point 0 to all points (float64)."""
        import torch

        axes = []
        for n, h in zip(self.shape, self.grid.spacing, strict=True):
            index = torch.arange(n, dtype=torch.float64)
            axes.append(torch.where(index > n // 2, index - n, index) * h)
        return _mesh(axes)
