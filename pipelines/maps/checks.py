"""Checks that maps on pixels and distances share, and the titles of their arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.quantiles import KINDS

_STATISTICS = {
    "mean": "posterior mean",
    "std": "posterior std",
    "p2_5": "posterior 2.5% quantile",
    "p16": "posterior 16% quantile",
    "p50": "posterior median",
    "p84": "posterior 84% quantile",
    "p97_5": "posterior 97.5% quantile",
}


def statistic_title(name: str, quantity: str) -> str:
    """One line that says which statistic of a quantity the array ``name`` holds."""
    return f"{_STATISTICS[name]} of the {quantity}" if name in _STATISTICS else name


def check_distances(distances: np.ndarray, *, edges: bool = False) -> None:
    """Raise an `InputError` unless these are positive, increasing distances [pc].

    Edges of shells are two or more and may begin at 0.
    """
    rising = distances.ndim == 1 and bool((np.diff(distances) > 0).all())
    if edges:
        sound = rising and len(distances) > 1 and distances[0] >= 0
        expected = "shells lie between two or more distances that increase from 0 on"
    else:
        sound = rising and len(distances) > 0 and distances[0] > 0
        expected = "distances must be positive and increasing"
    if not sound:
        raise InputError(f"{expected} [pc], got {distances.tolist()}")


def check_arrays(arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> None:
    """Raise an `InputError` unless mean, std and maybe quantiles have this shape."""
    if not {"mean", "std"} <= set(arrays) <= set(KINDS):
        raise InputError(
            f"arrays must be mean, std and maybe {', '.join(KINDS[2:])}; got "
            f"{', '.join(arrays) or 'none'}"
        )
    for name, array in arrays.items():
        if array.shape != shape:
            raise InputError(
                f"array {name!r} has shape {array.shape}, expected {shape}"
            )


def nside_of(pixels: int) -> int:
    """HEALPix resolution of a number of pixels.

    Raises
    ------
    InputError
        If no NESTED map has so many.
    """
    nside = math.isqrt(pixels // 12)
    if not nside or 12 * nside**2 != pixels or nside & (nside - 1):
        raise InputError(
            f"got {pixels} pixels, expected 12 nside² with nside a power of two"
        )
    return nside
