"""Quintic splines on nested grids: values, and coefficients at half the spacing.

Arrays of coefficients reach ``MARGIN`` points beyond the box on every side.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# Values need two coefficients on each side; refinement preserves a margin of three.
MARGIN = 3
# A quintic B-spline at the points of its grid (the middle, and outwards on one side).
_AT_POINTS = (66 / 120, 26 / 120, 1 / 120)
# Two-scale relation: binomials of 6 over 2⁵, at points of the coarse grid and between.
_KEPT = (6 / 32, 20 / 32, 6 / 32)
_BETWEEN = (1 / 32, 15 / 32, 15 / 32, 1 / 32)


def symbol(count: int) -> Float[Tensor, " n"]:
    """Return the Fourier transform of a B-spline's values at a period's points."""
    angle = 2 * math.pi * torch.fft.fftfreq(count, dtype=torch.float64)
    middle, one, two = _AT_POINTS
    return middle + 2 * one * torch.cos(angle) + 2 * two * torch.cos(2 * angle)


def values(coefficients: Float[Tensor, "*n"], dimension: int) -> Float[Tensor, "*m"]:
    """Return the spline at the box's points; the last ``dimension`` dims are axes."""
    middle, one, two = _AT_POINTS
    inside = slice(MARGIN - 2, -(MARGIN - 2))
    for axis in range(-dimension, 0):
        c = coefficients[_along(axis, inside)]
        n = c.shape[axis] - 4
        parts = [c.narrow(axis, k, n) for k in range(5)]
        coefficients = middle * parts[2]
        coefficients += one * (parts[1] + parts[3])
        coefficients += two * (parts[0] + parts[4])
    return coefficients


def values_transpose(field: Float[Tensor, "*m"], dimension: int) -> Float[Tensor, "*n"]:
    """Apply the transpose of :func:`values`."""
    for axis in range(-dimension, 0):
        n = field.shape[axis]
        shape = list(field.shape)
        shape[axis] = n + 2 * MARGIN
        spread = field.new_zeros(shape)
        for k, weight in enumerate(_AT_POINTS):
            spread.narrow(axis, MARGIN + k, n).add_(field, alpha=weight)
            if k:
                spread.narrow(axis, MARGIN - k, n).add_(field, alpha=weight)
        field = spread
    return field


def refine(coarse: Float[Tensor, "*n"], points: tuple[int, ...]) -> Float[Tensor, "*m"]:
    """Return the spline's coefficients at half the spacing, for a box of ``points``.

    Along an axis with ``m`` points the coarse box has ``m // 2 + 1``.
    """
    for axis, count in enumerate(points, start=-len(points)):
        shape = list(coarse.shape)
        shape[axis] = count + 2 * MARGIN
        fine = coarse.new_zeros(shape)
        for part, weights, first in _two_scale(fine, axis):
            n = part.shape[axis]
            for k, weight in enumerate(weights):
                part.add_(coarse.narrow(axis, first + k, n), alpha=weight)
        coarse = fine
    return coarse


def refine_transpose(fine: Float[Tensor, "*m"], dimension: int) -> Float[Tensor, "*n"]:
    """Apply the transpose of :func:`refine`."""
    for axis in range(-dimension, 0):
        shape = list(fine.shape)
        shape[axis] = (shape[axis] - 2 * MARGIN) // 2 + 1 + 2 * MARGIN
        coarse = fine.new_zeros(shape)
        for part, weights, first in _two_scale(fine, axis):
            n = part.shape[axis]
            for k, weight in enumerate(weights):
                coarse.narrow(axis, first + k, n).add_(part, alpha=weight)
        fine = coarse
    return fine


def _two_scale(fine: Tensor, axis: int) -> list[tuple[Tensor, tuple[float, ...], int]]:
    """Return views of the coefficients at coarse points, and between them.

    Each comes with the weights of coarse coefficients and the index of the first. The
    margin of three begins between two coarse points.
    """
    kept = fine[_along(axis, slice(1, None, 2))]
    between = fine[_along(axis, slice(0, None, 2))]
    return [(kept, _KEPT, 1), (between, _BETWEEN, 0)]


def _along(axis: int, part: slice) -> tuple[Any, ...]:
    """Return an index that selects a part along one of the last axes."""
    return (..., part, *(slice(None),) * (-axis - 1))
