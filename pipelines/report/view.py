"""The interactive view: surfaces of equal density, thinned for a browser."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
from astropy import units as u

from pipelines.cubes.cube import Cube
from pipelines.cubes.thinned import POINTS, Thinned, shown_levels, thinned
from pipelines.view.embedding import encoded

# Quantiles of the seen cells' density for the levels to choose from.
_LEVELS = (0.50, 0.70, 0.80, 0.88, 0.93, 0.96, 0.98, 0.99, 0.995, 0.998)
_FIRST = 4


class View(NamedTuple):
    """Data of ``view.js`` as JSON, and the boxes that it shows, by name."""

    data: str
    boxes: dict[str, Thinned]


def view(cube: Cube) -> View:
    """Return what the view shows: nested cubes whole, and near the Sun."""
    boxes = {
        name: thinned_mean(cube.levels[number])
        for name, number in shown_levels(cube).items()
    }
    data = []
    for name, box in boxes.items():
        levels = iso_levels(box)
        data.append(
            {
                "name": name,
                **{axis: getattr(box, axis).tolist() for axis in "xyz"},
                "density": encoded(box.arrays["mean"].astype("<f4")),
                "seen": encoded(np.packbits(box.seen.reshape(-1), bitorder="little")),
                "levels": levels,
                "first": min(_FIRST, len(levels) - 1),
            }
        )
    return View(json.dumps(data), boxes)


def thinned_mean(cube: Cube, points: int = POINTS) -> Thinned:
    """Average the mean density [mag/kpc] in at most ``points`` blocks."""
    to_kpc = u.Unit(cube.unit).to(u.Unit("mag kpc-1"))
    mean = cube.arrays["mean"].astype(np.float64) * to_kpc
    return thinned(cube, {"mean": mean}, points)


def iso_levels(thin: Thinned) -> list[float]:
    """Return increasing positive densities, exceeded by ever fewer seen blocks."""
    density = thin.arrays["mean"]
    known = density[thin.seen] if thin.seen.any() else density
    found = np.quantile(known, _LEVELS)
    least = float(np.max(known, initial=0.0)) * 1e-6
    return sorted({float(f"{level:.3g}") for level in found if level > least}) or [1.0]
