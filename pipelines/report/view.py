"""The interactive view: surfaces of equal density, thinned for a browser."""

from __future__ import annotations

import base64
import json
import math
from typing import NamedTuple

import numpy as np
from astropy import units as u

from pipelines.cubes.cube import Cube

# Points of which a browser computes the surfaces in about a second.
_POINTS = 320_000
# Quantiles of the seen cells' density for the levels to choose from.
_LEVELS = (0.50, 0.70, 0.80, 0.88, 0.93, 0.96, 0.98, 0.99, 0.995, 0.998)
_FIRST = 4


class View(NamedTuple):
    """Data of ``view.js`` as JSON, and the boxes that it shows, by name."""

    data: str
    boxes: dict[str, Thinned]


class Thinned(NamedTuple):
    """Means over blocks of a cube with ``factor`` cells a side, ``step`` [pc] apart.

    ``x y z`` [pc] are the blocks' centres; ``density`` [mag/kpc] and ``seen`` (true if
    a sight line crosses the block) have shape ``(z, y, x)``.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    density: np.ndarray
    seen: np.ndarray
    factor: int
    step: tuple[float, ...]


def view(cube: Cube) -> View:
    """Return what the view shows: nested cubes whole, and near the Sun."""
    shown = {"Whole box": cube}
    if cube.finer:
        shown["Near the Sun"] = cube.levels[cube.level_near_the_sun()]
    boxes = {name: thinned(one) for name, one in shown.items()}
    data = []
    for name, box in boxes.items():
        levels = iso_levels(box)
        data.append(
            {
                "name": name,
                **{axis: getattr(box, axis).tolist() for axis in "xyz"},
                "density": _encoded(box.density.astype("<f4")),
                "seen": _encoded(np.packbits(box.seen.reshape(-1), bitorder="little")),
                "levels": levels,
                "first": min(_FIRST, len(levels) - 1),
            }
        )
    return View(json.dumps(data), boxes)


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
    step = tuple(factor * spacing for spacing in cube.spacing)
    return Thinned(x, y, z, density, support > 0, factor, step)


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
