"""The interactive view: surfaces of equal density, thinned for a browser."""

from __future__ import annotations

import base64
import json
import math
from typing import NamedTuple

import numpy as np
from astropy import units as u

from pipelines.cubes.cube import Cube
from pipelines.report.blocks import View, by, count, significant

# Points of which a browser computes the surfaces in about a second.
_POINTS = 320_000
# Quantiles of the seen cells' density for the levels to choose from.
_LEVELS = (0.50, 0.70, 0.80, 0.88, 0.93, 0.96, 0.98, 0.99, 0.995, 0.998)
_FIRST = 4
_HOW = (
    "Drag to turn, scroll or pinch to come near, point at a surface for place and "
    "density. The outer surface has the density below, the inner ones 2.5 and 4 times "
    "that."
)


class Thinned(NamedTuple):
    """Means over blocks of a cube with ``factor`` cells a side.

    ``x y z`` [pc] are the blocks' centres; ``density`` [mag/kpc] and ``seen`` (true if
    a sight line crosses the block) have shape ``(z, y, x)``.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    density: np.ndarray
    seen: np.ndarray
    factor: int


def view(cube: Cube) -> View:
    """Return data for ``view.js`` and a description; nested cubes have two boxes."""
    shown = {"Whole box": cube}
    if cube.finer:
        shown["Near the Sun"] = cube.levels[cube.level_near_the_sun()]
    drawn, about = [], []
    for name, one in shown.items():
        thin = thinned(one)
        levels = iso_levels(thin)
        drawn.append(
            {
                "name": name,
                **{axis: getattr(thin, axis).tolist() for axis in "xyz"},
                "density": _encoded(thin.density.astype("<f4")),
                "seen": _encoded(np.packbits(thin.seen.reshape(-1), bitorder="little")),
                "levels": levels,
                "first": min(_FIRST, len(levels) - 1),
            }
        )
        n, shape = thin.factor, " × ".join(map(str, thin.density.shape[::-1]))
        how = f"every one of the {count(thin.density.size)} grid points ({shape})"
        if n > 1:
            step = by(n * spacing for spacing in one.spacing)
            how = (
                f"averages over {n} × {n} × {n} grid points, {shape} of them, {step} "
                f"pc apart: the map itself is {n} times as fine"
            )
        about.append(
            f"{name}: surfaces of equal mean density, from {how}. The densest block "
            f"has {significant(float(thin.density.max()))} mag/kpc."
        )
    return View(json.dumps(drawn), [*about, _HOW])


def thinned(cube: Cube, points: int = _POINTS) -> Thinned:
    """Average the density in blocks of equal sides, at most ``points`` of them.

    The posterior mean is averaged, which integrates to the extinction. Blocks at an
    edge may have fewer cells.
    """
    shape = cube.arrays["mean"].shape
    factor = 1
    while math.prod(-(-n // factor) for n in shape) > points:
        factor += 1
    to_kpc = u.Unit(cube.unit).to(u.Unit("mag kpc-1"))
    x, y, z, density, support = (
        _blocks(values, factor)
        for values in (
            *(cube.x, cube.y, cube.z),
            cube.arrays["mean"].astype(np.float64) * to_kpc,
            cube.arrays["support"].astype(np.float64),
        )
    )
    return Thinned(x, y, z, density, support > 0, factor)


def _blocks(values: np.ndarray, factor: int) -> np.ndarray:
    """Average blocks of ``factor`` along every axis."""
    for axis, length in enumerate(values.shape):
        first = np.arange(0, length, factor)
        number = np.diff([*first, length])
        shape = [-1 if a == axis else 1 for a in range(values.ndim)]
        values = np.add.reduceat(values, first, axis=axis) / number.reshape(shape)
    return values


def iso_levels(thin: Thinned) -> list[float]:
    """Return increasing positive densities, exceeded by ever fewer seen blocks."""
    known = thin.density[thin.seen] if thin.seen.any() else thin.density
    found = np.quantile(known, _LEVELS)
    least = float(np.max(known, initial=0.0)) * 1e-6
    levels = sorted({float(f"{level:.3g}") for level in found if level > least})
    return levels or [1.0]


def _encoded(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
