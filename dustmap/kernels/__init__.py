"""Stationary covariance functions."""

from dustmap.kernels.base import IMAGE_TOLERANCE, Constant, Kernel, Sum
from dustmap.kernels.families import (
    KERNELS,
    Matern12,
    Matern32,
    Matern52,
    SquaredExponential,
)
from dustmap.kernels.mixture import OctaveMatern
from dustmap.kernels.radial import Periodised, Radial

__all__ = [
    "IMAGE_TOLERANCE",
    "KERNELS",
    "Constant",
    "Kernel",
    "Matern12",
    "Matern32",
    "Matern52",
    "OctaveMatern",
    "Periodised",
    "Radial",
    "SquaredExponential",
    "Sum",
]
