"""Stationary covariance functions."""

from dustmap.kernels.base import Kernel
from dustmap.kernels.composite import Constant, Sum
from dustmap.kernels.radial import (
    KERNELS,
    Matern12,
    Matern32,
    Matern52,
    Periodised,
    Radial,
    SquaredExponential,
)

__all__ = [
    "KERNELS",
    "Constant",
    "Kernel",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodised",
    "Radial",
    "SquaredExponential",
    "Sum",
]
