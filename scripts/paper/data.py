"""Rows to train on and others to test on, from files and from simulations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals, LineIntegrals, PointValues, Rule
from dustmap.grid import Grid, Torus
from dustmap.kernels import Radial
from dustmap.whitening import TorusWhitening
from pipelines.base.errors import InputError

Numbers = np.ndarray | Tensor
Box = tuple[Sequence[float], Sequence[float]]
_COLUMNS = ("inputs", "values", "noise", "truth")


def grid_of(lower: Sequence[float], upper: Sequence[float], *shape: int) -> Grid:
    """Points that fill a box from corner to corner."""
    sides = zip(lower, upper, shape, strict=True)
    spacing = tuple((b - a) / (n - 1) for a, b, n in sides)
    return Grid(shape=shape, spacing=spacing, origin=tuple(lower))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Observations.

    Parameters
    ----------
    inputs
        Places; of integrals along sight lines the ends, seen from the origin.
    values
        What was observed there.
    noise
        Known variances of the noise; zero where there are none.
    truth
        The same without noise; nan if it is not known.
    rays
        Whether integrals were observed.
    """

    inputs: Float[Tensor, "n d"]
    values: Float[Tensor, " n"]
    noise: Float[Tensor, " n"]
    truth: Float[Tensor, " n"]
    rays: bool = False

    @classmethod
    def of(
        cls,
        inputs: Numbers,
        values: Numbers,
        *,
        noise: Numbers | float = 0.0,
        truth: Numbers | float = math.nan,
        rays: bool = False,
    ) -> Rows:
        """Make rows of arrays or tensors."""
        values = torch.as_tensor(values)
        noise, truth = (
            torch.as_tensor(column, dtype=values.dtype).expand_as(values)
            for column in (noise, truth)
        )
        inputs = torch.as_tensor(inputs)
        return cls(inputs=inputs, values=values, noise=noise, truth=truth, rays=rays)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | Tensor) -> Rows:
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return replace(self, **columns)

    def functionals(self, rule: Rule | None = None) -> Functionals:
        """Point values, or integrals by a rule."""
        if not self.rays:
            return PointValues(self.inputs)
        assert rule is not None
        return LineIntegrals(self.inputs, rule)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Rows to train on and others to test on, both in random order.

    Parameters
    ----------
    name
        For tables.
    box
        Corners of what a grid of inducing points fills.
    unit
        What one in ``values`` is in the file's unit.
    dropped
        Rows of the file with a missing number.
    """

    name: str
    train: Rows
    test: Rows
    box: Box = ((), ())
    unit: float = 1.0
    dropped: int = 0

    @property
    def sides(self) -> tuple[float, ...]:
        """Of the box."""
        return tuple(b - a for a, b in zip(*self.box, strict=True))

    def grid(self, *shape: int) -> Grid:
        """Inducing points that fill the box."""
        return grid_of(*self.box, *shape)

    def shortened(self, train: int | None, test: int | None = None) -> Split:
        """At most so many rows of each kind."""
        return replace(self, train=self.train[:train], test=self.test[:test])

    def scaled(self, unit: float = 1.0) -> Split:
        """What was observed minus its mean in training, in another unit."""
        mean = self.train.values.mean()
        train, test = (
            replace(
                rows,
                values=(rows.values - mean) / unit,
                noise=rows.noise / unit**2,
                truth=(rows.truth - mean) / unit,
            )
            for rows in (self.train, self.test)
        )
        return replace(self, train=train, test=test, unit=unit)


def split(
    name: str, rows: Rows, order: Numbers, train: int, test: int, box: Box = ((), ())
) -> Split:
    """Take the first rows of an order to train on and its last to test on.

    Raises
    ------
    InputError
        If there are too few rows, or a number is not finite.
    """
    if test < 2 or train + test > len(order):
        raise InputError(
            f"{name} has {len(order)} rows, too few for {train} to train on and {test} "
            "to test on"
        )
    finite = rows.inputs.isfinite().all(dim=1) & rows.values.isfinite()
    if not bool(finite.all()):
        raise InputError(
            f"{name}: {int((~finite).sum())} of {len(rows)} rows are not finite"
        )
    order = torch.as_tensor(order)
    return Split(
        name=name,
        train=rows[order[:train]],
        test=rows[order[len(order) - test :]],
        box=box,
    )


def read_table(file: Path, names: Sequence[str] = ()) -> np.ndarray:
    """Columns of a CSV file with a header, or of one without all, shape (n, columns).

    What is missing or no number is nan.

    Raises
    ------
    InputError
        If the file or a column is missing, or it is no table of numbers.
    """
    if not file.is_file():
        raise InputError(f"{file} is not a file")
    try:
        table = np.genfromtxt(file, delimiter=",", names=True if names else None)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is no table of numbers: {error}") from None
    if not names:
        return np.atleast_2d(table)
    known = table.dtype.names or ()
    absent = [name for name in names if name not in known]
    if absent:
        raise InputError(f"{file} has no column {', '.join(absent)}")
    return np.stack([np.atleast_1d(table[name]) for name in names], axis=1)


def standardised(name: str, inputs: np.ndarray, values: np.ndarray, seed: int) -> Split:
    """Three quarters to train on and 15% to test on, standardised by the former.

    As in the experiments of Pleiss, Jankowiak, Eriksson, Damle & Gardner (2020,
    NeurIPS); the tenth that they validate on is set aside. An input without spread
    becomes 0.
    """
    count = len(values)
    order = np.random.default_rng(seed).permutation(count)
    rows = Rows.of(inputs, values)
    data = split(name, rows, order, int(0.75 * count), int(0.15 * count))
    x, y = data.train.inputs, data.train.values
    spread = x.std(dim=0, correction=0)
    spread = torch.where(spread > 0, spread, 1)
    train, test = (
        replace(part, inputs=(part.inputs - x.mean(dim=0)) / spread)
        for part in (data.train, data.test)
    )
    unit = float(y.std(correction=0))
    return replace(data, train=train, test=test).scaled(unit if unit > 0 else 1.0)


def drawn_field(
    kernel: Radial, lattice: int, torus: int, generator: torch.Generator
) -> Float[Tensor, "l l"]:
    """An exact draw on ``lattice²`` points of the unit square, by a larger torus."""
    grid = grid_of((0.0, 0.0), (1.0, 1.0), lattice, lattice)
    whitening = TorusWhitening(kernel, Torus(grid=grid, shape=(torus,) * 2))
    drawn, _ = whitening.prior_draw(generator)
    return drawn.reshape(torus, torus)[:lattice, :lattice]
