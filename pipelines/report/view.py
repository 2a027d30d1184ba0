"""The density in three dimensions, thinned until a browser turns it freely."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from astropy import units as u

from pipelines.cubes.cube import Cube
from pipelines.report.blocks import View
from pipelines.report.numbers import by, count, significant

# A browser computes the surfaces of so many points in about a second.
_POINTS = 320_000
# Fractions of the seen cells, by density, below the levels on offer.
_LEVELS = (0.50, 0.70, 0.80, 0.88, 0.93, 0.96, 0.98, 0.99, 0.995, 0.998)
_FIRST = 4
_HOW = (
    "Drag to turn, scroll or pinch to come near, point at a surface for place and "
    "density. The outer surface has the density below, the inner ones 2.5 and 4 times "
    "that."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinned:
    """Block means of a cube.

    ``x y z`` [pc] of the blocks' centres; ``density`` [mag/kpc] and ``seen`` (whether a
    sight line crosses the block), shape ``(z, y, x)``; ``factor`` grid points a side.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    density: np.ndarray
    seen: np.ndarray
    factor: int


def view(cube: Cube) -> View:
    """What ``view.js`` draws, and what to know of it: of nested cubes two."""
    shown = {"Whole box": cube}
    if cube.finer:
        shown["Near the Sun"] = cube.levels[cube.level_within()]
    thin = {name: thinned(one) for name, one in shown.items()}
    about = [_about(shown[name], name, one) for name, one in thin.items()]
    data = [_drawn(name, one) for name, one in thin.items()]
    return View(data=json.dumps(data), about=(*about, _HOW))


def _drawn(name: str, thin: Thinned) -> dict[str, Any]:
    """A box as ``view.js`` takes it."""
    levels = iso_levels(thin)
    return {
        "name": name,
        "x": thin.x.tolist(),
        "y": thin.y.tolist(),
        "z": thin.z.tolist(),
        "density": _encoded(thin.density.astype("<f4")),
        "seen": _encoded(np.packbits(thin.seen.reshape(-1), bitorder="little")),
        "levels": [float(f"{level:.3g}") for level in levels],
        "first": min(_FIRST, len(levels) - 1),
    }


def thinned(cube: Cube, points: int | None = None) -> Thinned:
    """The mean of the density in blocks of equal sides, of at most so many points.

    It is the posterior mean that is averaged, which integrates to the extinction. A
    block at an edge may hold fewer cells.
    """
    shape = cube.arrays["mean"].shape
    points = _POINTS if points is None else points
    factor = 1
    while math.prod(-(-n // factor) for n in shape) > points:
        factor += 1
    to_kpc = u.Unit(cube.unit).to(u.Unit("mag kpc-1"))
    support = cube.arrays["support"].astype(np.float64)
    return Thinned(
        x=_blocks(cube.x, factor),
        y=_blocks(cube.y, factor),
        z=_blocks(cube.z, factor),
        density=_blocks(cube.arrays["mean"].astype(np.float64) * to_kpc, factor),
        seen=_blocks(support, factor) > 0,
        factor=factor,
    )


def _blocks(values: np.ndarray, factor: int) -> np.ndarray:
    """Means of blocks of ``factor`` along every axis."""
    for axis, length in enumerate(values.shape):
        first = np.arange(0, length, factor)
        number = np.diff([*first, length])
        shape = [-1 if a == axis else 1 for a in range(values.ndim)]
        values = np.add.reduceat(values, first, axis=axis) / number.reshape(shape)
    return values


def iso_levels(thin: Thinned) -> list[float]:
    """Increasing positive densities that ever fewer of the seen blocks exceed."""
    known = thin.density[thin.seen] if thin.seen.any() else thin.density
    found = np.quantile(known, _LEVELS)
    least = float(np.max(known, initial=0.0)) * 1e-6
    levels = sorted({float(f"{level:.3g}") for level in found if level > least})
    return levels or [1.0]


def _encoded(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def _about(cube: Cube, name: str, thin: Thinned) -> str:
    shape = " × ".join(map(str, thin.density.shape[::-1]))
    if thin.factor == 1:
        how = f"every one of the {count(thin.density.size)} grid points ({shape})"
    else:
        step = by(thin.factor * s for s in cube.spacing)
        how = (
            f"averages over {thin.factor} × {thin.factor} × {thin.factor} grid points, "
            f"{shape} of them, {step} pc apart: the map itself is "
            f"{thin.factor} times as fine"
        )
    return (
        f"{name}: surfaces of equal mean density, from {how}. The densest block has "
        f"{significant(float(thin.density.max()))} mag/kpc."
    )
