"""Tables of inputs and one output: three quarters to train on, 15% to test on.

Inputs and outputs are standardised by the training rows, as in the experiments of
Pleiss, Jankowiak, Eriksson, Damle & Gardner (2020, NeurIPS); the tenth that they
validate on is set aside and not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pipelines.base.errors import InputError

FLIGHTS = "pnw_flights_2014.csv.gz"
PRECIPITATION = "colorado_monthly_precip.csv.gz"
KIN40K = "kin40k.csv.gz"
# Hensman, Fusi & Lawrence (2013): their inputs for the 2008 flights.
FLIGHT_INPUTS = (
    "plane_age",
    "distance",
    "air_time",
    "dep_time_min",
    "arr_time_min",
    "day_of_week",
    "day_of_month",
    "month",
)
# First year of precipitation that is kept: months are nearly independent of each other,
# so that of many years a thousand inducing points see the climate alone.
_FIRST_YEAR = 1995
_TRAIN, _TEST = 0.75, 0.15


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Standardised rows to train on and to test on, in random order.

    Parameters
    ----------
    name
        For tables.
    train, test
        Inputs, of zero mean and unit variance in training.
    values, test_values
        Outputs likewise.
    unit
        What one of the standardised outputs is in the file's unit.
    dropped
        Rows of the file with a missing number.
    """

    name: str
    train: Float[Tensor, "n d"]
    values: Float[Tensor, " n"]
    test: Float[Tensor, "t d"]
    test_values: Float[Tensor, " t"]
    unit: float = 1.0
    dropped: int = 0

    def shortened(self, train: int | None, test: int | None = None) -> Split:
        """At most so many rows of each kind."""
        return replace(
            self,
            train=self.train[:train],
            values=self.values[:train],
            test=self.test[:test],
            test_values=self.test_values[:test],
        )


def read_kin40k(folder: Path, seed: int) -> Split:
    """Read the forward kinematics of an arm: 8 inputs and a distance.

    Raises
    ------
    InputError
        If the file is missing or is not the expected table; so do all readers.
    """
    file = folder / KIN40K
    if not file.is_file():
        raise InputError(f"{file} is not a file")
    try:
        found = np.loadtxt(file, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is no table of numbers: {error}") from None
    if found.shape[1] != 9:
        raise InputError(
            f"{file} has {found.shape[1]} columns, expected 8 inputs and an output"
        )
    return split("kin40k", found[:, :-1], found[:, -1], seed)


def read_colorado(folder: Path, seed: int) -> Split:
    """Read monthly precipitation [cm] of Colorado by longitude, latitude and month."""
    names = ("lon", "lat", "year", "month", "ppt_cm")
    found = _columns(folder / PRECIPITATION, names)
    lon, lat, year, month, fallen = found[found[:, 2] >= _FIRST_YEAR].T
    inputs = np.stack([lon, lat, year + (month - 0.5) / 12], axis=1)
    return split("Colorado precipitation", inputs, fallen, seed)


def read_flights(file: Path, seed: int) -> Split:
    """Read arrival delays [min] and eight inputs.

    Rows with a missing number are left out and counted.

    Raises
    ------
    InputError
        If the file is missing or is not the expected table.
    """
    found = _columns(file, (*FLIGHT_INPUTS, "arr_delay"))
    complete = np.isfinite(found).all(axis=1)
    inputs, delay = found[complete, :-1], found[complete, -1]
    made = split("flights", inputs, delay, seed)
    return replace(made, dropped=int((~complete).sum()))


def split(name: str, inputs: np.ndarray, values: np.ndarray, seed: int) -> Split:
    """Shuffle, take 75% and 15%, standardise; an input without spread becomes 0.

    Raises
    ------
    InputError
        If there are too few rows, or a number is not finite.
    """
    finite = np.isfinite(np.column_stack([inputs, values]))
    bad = np.count_nonzero(~finite.all(axis=1))
    if bad:
        raise InputError(f"{name}: {bad} of {len(values)} rows are not finite")
    count = len(values)
    train, test = int(_TRAIN * count), int(_TEST * count)
    if test < 2:
        raise InputError(f"{name} has {count} rows, at least 14 were expected")
    order = np.random.default_rng(seed).permutation(count)
    own, others = order[:train], order[count - test :]
    x = _standardised(inputs, own)
    y = _standardised(values, own)
    return Split(
        name=name,
        train=torch.as_tensor(x[own]),
        values=torch.as_tensor(y[own]),
        test=torch.as_tensor(x[others]),
        test_values=torch.as_tensor(y[others]),
        unit=float(values[own].std()),
    )


def _standardised(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    spread = values[rows].std(axis=0)
    return (values - values[rows].mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def _columns(file: Path, names: Sequence[str]) -> np.ndarray:
    """Named columns, shape (n, columns); what is missing or no number is nan."""
    if not file.is_file():
        raise InputError(f"{file} is not a file")
    try:
        table = np.genfromtxt(file, delimiter=",", names=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is no table of numbers: {error}") from None
    known = table.dtype.names or ()
    absent = [name for name in names if name not in known]
    if absent:
        raise InputError(f"{file} has no column {', '.join(absent)}")
    return np.stack([np.atleast_1d(table[name]) for name in names], axis=1)
