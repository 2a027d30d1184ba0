"""Stationary covariance functions."""

from dustmap.kernels.base import IMAGE_TOLERANCE, Kernel, Sum
from dustmap.kernels.constant import Constant
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
    "IMAGE_TOLERANCE",
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
