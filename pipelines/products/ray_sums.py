"""Sums along rays, and moments of them over samples."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dustmap.posterior import Moments, log_moments


class RaySums:
    """Segments of rays, accumulated from the observer outwards.

    Parameters
    ----------
    inside
        Whether the segment that ends at each distance is in the box, by distance and
        direction; values of segments come as ``values[inside]`` has them.
    """

    def __init__(self, inside: Bool[Tensor, "e n"]) -> None:
        self._inside = inside
        self.size = int(inside.sum())

    def outwards(self, values: Float[Tensor, " i"]) -> Float[Tensor, " i"]:
        """What each ray has gathered up to the end of each segment (float64)."""
        total = torch.zeros(self._inside.shape, dtype=torch.float64)
        total[self._inside] = values.to(torch.float64).cpu()
        return total.cumsum(dim=0)[self._inside]


class LogMoments:
    """Moments of positive quantities and of their logarithms, sample by sample.

    The rule of `Posterior.moments`: over samples, with the mean of the conditional
    variances added; logarithms by `dustmap.posterior.log_moments`.
    """

    def __init__(self, size: int) -> None:
        self._count = 0
        self._first: Tensor | None = None
        self._sums = torch.zeros(6, size, dtype=torch.float64)

    def add(self, values: Float[Tensor, " i"], variance: Float[Tensor, " i"]) -> None:
        """One more sample of the quantities, with their conditional variances."""
        logarithm, scatter = log_moments(values, variance)
        if self._first is None:
            # Squares of differences from the first sample: of the values themselves
            # they would cancel.
            self._first = torch.stack([values, logarithm])
        self._count += 1
        for row, now in enumerate((values, logarithm)):
            apart = now - self._first[row]
            self._sums[2 * row] += apart
            self._sums[2 * row + 1] += apart**2
        self._sums[4] += variance
        self._sums[5] += scatter

    def moments(self) -> Moments:
        """Mean and std of the quantities and of their logarithms."""
        assert self._first is not None
        assert self._count > 1
        means, spreads = [], []
        for row in range(2):
            first, second = self._sums[2 * row : 2 * row + 2] / self._count
            means.append(self._first[row] + first)
            share = self._count / (self._count - 1)
            spreads.append((second - first**2).clamp(min=0.0) * share)
        unresolved, scatter = self._sums[4:] / self._count
        return Moments(
            mean=means[0],
            std=(spreads[0] + unresolved).sqrt(),
            log_mean=means[1],
            log_std=(spreads[1] + scatter).sqrt(),
        )
