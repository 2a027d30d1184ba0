"""Elevations along roads: a simulated set of the size of 3DRoad.

3DRoad (Guo, Ma, Yang & Bindingnavale 2013, UCI repository) has 434,874 points of roads
in North Jutland. The simulated set walks roads from towns over a Matérn-1/2 relief.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern12
from dustmap.whitening import TorusWhitening

ROWS = 434_874
# Shares of training and test rows; the rest is for validation and is not looked at.
_TRAIN, _TEST = 0.64, 0.2
# The simulated relief on the unit square, in units of its standard deviation.
_LENGTHSCALE, _NOISE = 1 / 20, 0.05
_TOWNS, _PER_ROAD, _TURN = 60, 220, 0.05
_STEP = 1 / 3_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roads:
    """Places in one unit for both axes, and observed elevations."""

    at: Float[Tensor, "n 2"]
    height: Float[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.height)

    def grid(self, count: int) -> Grid:
        """About so many inducing points with cells that are nearly square."""
        low, high = self.at.min(dim=0).values, self.at.max(dim=0).values
        width, depth = (float(extent) for extent in high - low)
        first = max(4, round(math.sqrt(count * width / depth)))
        second = max(4, round(count / first))
        margin = 1e-9 * max(width, depth)
        return Grid(
            shape=(first, second),
            spacing=(
                (width + 2 * margin) / (first - 1),
                (depth + 2 * margin) / (second - 1),
            ),
            origin=(float(low[0]) - margin, float(low[1]) - margin),
        )

    def split(self, seed: int) -> Split:
        """64% to train and 20% to test on, elevations standardised by the former."""
        order = torch.as_tensor(np.random.RandomState(seed).permutation(len(self)))
        train = order[: round(_TRAIN * len(self))]
        test = order[len(self) - round(_TEST * len(self)) :]
        mean, scale = self.height[train].mean(), self.height[train].std()
        return Split(
            roads=self,
            train=self.at[train],
            values=(self.height[train] - mean) / scale,
            test=self.at[test],
            test_values=(self.height[test] - mean) / scale,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Standardised elevations to train and to test on, in random order."""

    roads: Roads
    train: Float[Tensor, "n 2"]
    values: Float[Tensor, " n"]
    test: Float[Tensor, "t 2"]
    test_values: Float[Tensor, " t"]

    @property
    def wanted(self) -> PointValues:
        """The field at the test rows."""
        return PointValues(self.test)


def simulate_roads(count: int, lattice: int, seed: int) -> Roads:
    """Roads over a Matérn-1/2 relief of variance 1, lengthscale 1/20, noise 0.05.

    The relief is drawn exactly on a lattice of ``lattice²`` points, the nearest of
    which a road sees.
    """
    generator = torch.Generator().manual_seed(seed)
    walked = _walk(count, generator)
    index = (walked * (lattice - 1)).round().to(torch.int64)
    grid = Grid(
        shape=(lattice, lattice), spacing=(1 / (lattice - 1),) * 2, origin=(0.0, 0.0)
    )
    torus = Torus(grid=grid, shape=(lattice + lattice // 4,) * 2)
    kernel = Matern12(lengthscale=_LENGTHSCALE)
    field, _ = TorusWhitening(kernel, torus).prior_draw(generator)
    relief = field.reshape(torus.shape)[index[:, 0], index[:, 1]]
    white = torch.randn(count, generator=generator, dtype=torch.float64)
    return Roads(
        at=index.to(torch.float64) / (lattice - 1),
        height=relief + _NOISE * white,
    )


def _walk(count: int, generator: torch.Generator) -> Float[Tensor, "n 2"]:
    """Points of winding roads that start near towns and turn back at the border."""
    roads = math.ceil(count / _PER_ROAD)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    towns = torch.rand(_TOWNS, 2, generator=generator, dtype=torch.float64)
    chosen = torch.randint(_TOWNS, (roads,), generator=generator)
    start = towns[chosen] + 0.05 * normal(roads, 2)
    turns = torch.cat([math.pi * normal(roads, 1), _TURN * normal(roads, _PER_ROAD)], 1)
    heading = turns.cumsum(dim=1)[:, 1:]
    steps = _STEP * torch.stack([heading.cos(), heading.sin()], dim=-1)
    places = (start[:, None, :] + steps.cumsum(dim=1)).reshape(-1, 2)[:count]
    # Reflected at the borders of the unit square.
    folded = places.remainder(2.0)
    return torch.where(folded > 1, 2 - folded, folded)
