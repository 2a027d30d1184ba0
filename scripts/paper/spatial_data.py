"""Spatial data sets that stand in for those of the paper's section 5.4.

Precipitation anomalies of US stations in April 1948 (the observed ones of 11,918) and a
simulated field that is known without noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from ananke_data import read_columns
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern52
from dustmap.whitening import TorusWhitening

PRECIPITATION = "us_precip_april1948.csv.gz"
_US_COLUMNS = ("lon", "lat", "anomaly", "infill")
# Of the simulated field, which fills the unit square.
_LATTICE = 1_000
_LENGTHSCALE = 1 / 75
_NOISE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spatial:
    """Observations of a plane field minus their mean, and others to test on.

    Parameters
    ----------
    name
        For tables.
    train, test
        Positions, in the unit of ``lower`` and ``upper``.
    values, test_values
        Noisy observations minus the mean of ``values``.
    truth
        The same at ``test`` without noise, if it is known.
    lower, upper
        Corners of the box that the inducing points fill.
    """

    name: str
    train: Float[Tensor, "n 2"]
    values: Float[Tensor, " n"]
    test: Float[Tensor, "t 2"]
    test_values: Float[Tensor, " t"]
    truth: Float[Tensor, " t"] | None
    lower: tuple[float, float]
    upper: tuple[float, float]

    @property
    def extent(self) -> float:
        """Geometric mean of the box's sides."""
        x, y = (b - a for a, b in zip(self.lower, self.upper, strict=True))
        return math.sqrt(x * y)

    def grid(self, side: int) -> Grid:
        """``side²`` inducing points that fill the box."""
        sides = zip(self.lower, self.upper, strict=True)
        return Grid(
            shape=(side, side),
            spacing=tuple((b - a) / (side - 1) for a, b in sides),
            origin=self.lower,
        )

    def shortened(self, train: int, test: int) -> Spatial:
        """At most so many observations; all are in random order."""
        return replace(
            self,
            train=self.train[:train],
            values=self.values[:train],
            test=self.test[:test],
            test_values=self.test_values[:test],
            truth=None if self.truth is None else self.truth[:test],
        )


def read_precipitation(folder: Path, seed: int) -> Spatial:
    """Read standardised anomalies of the stations that observed; test on a fifth.

    Longitudes are shortened by the cosine of the mean latitude.

    Raises
    ------
    InputError
        If the file is missing or is not the expected table.
    """
    x, y, anomaly, infill = read_columns(folder / PRECIPITATION, _US_COLUMNS)
    observed = infill == 1
    scaled = x * math.cos(math.radians(float(y[observed].mean())))
    positions = np.stack([scaled, y], axis=1)[observed]
    order = np.random.default_rng(seed).permutation(len(positions))
    tests = len(order) // 5
    values = anomaly[observed][order]
    centred = torch.as_tensor(values - values[:-tests].mean())
    where = torch.as_tensor(positions[order])
    lower, upper = (
        (float(c[0]), float(c[1])) for c in (positions.min(0), positions.max(0))
    )
    return Spatial(
        name="US precipitation",
        train=where[:-tests],
        values=centred[:-tests],
        test=where[-tests:],
        test_values=centred[-tests:],
        truth=None,
        lower=lower,
        upper=upper,
    )


def simulate(train: int, test: int, seed: int) -> Spatial:
    """A Matérn-5/2 field of variance 1, lengthscale 1/75 of the box, noise 0.3.

    It is drawn exactly on a lattice of 1,000² points, at random ones of which it is
    observed.
    """
    grid = Grid(
        shape=(_LATTICE, _LATTICE), spacing=(1 / (_LATTICE - 1),) * 2, origin=(0.0, 0.0)
    )
    kernel = Matern52(lengthscale=_LENGTHSCALE)
    torus = Torus(grid=grid, shape=(1_120, 1_120))
    generator = torch.Generator().manual_seed(seed)
    drawn, _ = TorusWhitening(kernel, torus).prior_draw(generator)
    field = drawn.reshape(torus.shape)[:_LATTICE, :_LATTICE].reshape(-1)
    rows = torch.randperm(grid.size, generator=generator)[: train + test]
    white = torch.randn(len(rows), generator=generator, dtype=torch.float64)
    noisy = field[rows] + _NOISE * white
    mean = noisy[:train].mean()
    place = torch.stack([rows // _LATTICE, rows % _LATTICE], dim=1) / (_LATTICE - 1)
    positions = place.to(torch.float64)
    return Spatial(
        name="simulated",
        train=positions[:train],
        values=noisy[:train] - mean,
        test=positions[train:],
        test_values=noisy[train:] - mean,
        truth=field[rows[train:]] - mean,
        lower=(0.0, 0.0),
        upper=(1.0, 1.0),
    )
