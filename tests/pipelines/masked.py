"""The ways in which Python marks missing values, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
from astropy import units as u
from astropy.table import MaskedColumn
from astropy.utils.masked import Masked


def _nullable(values: np.ndarray, mask: np.ndarray, unit: u.UnitBase) -> Any:
    del unit  # pandas has none
    return pandas.Series(values, dtype="Float64").mask(mask)


MASKED: dict[str, Callable[[np.ndarray, np.ndarray, u.UnitBase], Any]] = {
    "NaN": lambda values, mask, unit: np.where(mask, np.nan, values) * unit,
    "numpy.ma": lambda values, mask, _: np.ma.array(values, mask=mask),
    "Masked quantity": lambda values, mask, unit: Masked(values * unit, mask=mask),
    "MaskedColumn": lambda values, mask, unit: MaskedColumn(
        values, mask=mask, unit=unit
    ),
    "pandas": _nullable,
}
"""Functions of values, mask and unit; the masked values remain below the mask."""
