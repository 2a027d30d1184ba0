"""Pictures of the map, each with what it shows in words, and the view that turns."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass

import numpy as np
from astropy import units as u

from pipelines.cubes.cube import Cube
from pipelines.figures.registry import PlotOptions, draw
from pipelines.report.blocks import (
    Picture,
    Section,
    View,
    by,
    count,
    percent,
    picture,
    significant,
)
from pipelines.report.data import ReportData

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


# Of figures of `dustmap plot`: what they show in words, and their captions.
_FIGURES = {
    "face-on": (
        "Map of the extinction through the box seen from the north Galactic pole, the "
        "Sun at the origin",
        "Face-on: mean extinction through the whole box along z, and its standard "
        "deviation.",
    ),
    "sky": (
        "Extinction over the whole sky in Galactic coordinates",
        "The sky: extinction from the Sun to a distance, Galactic coordinates, l = 0° "
        "in the middle and growing to the left.",
    ),
    "near": (
        "Map of the extinction through a finer grid around the Sun, seen from the "
        "north Galactic pole",
        "Near the Sun: mean extinction through a finer grid alone, between the heights "
        "that the picture names, and its standard deviation.",
    ),
    "edge-on": (
        "Map of the extinction through the box seen along y, the Galactic plane "
        "horizontal",
        "Edge-on: mean extinction along y, between the ends that the picture names, "
        "and its standard deviation.",
    ),
    "slice": (
        "Mean density in the plane of the Sun",
        "The mean density in the plane nearest z = 0: along a line it adds up to the "
        "extinction.",
    ),
    "los": (
        "Extinction against distance with its uncertainty",
        "Extinction to a distance along directions of much dust, its 68% and 95% "
        "bands, and the stars near by. Where the last star stands, the map begins to "
        "extrapolate.",
    ),
}


def drawn(data: ReportData, kind: str) -> Picture:
    """Draw a figure as `dustmap plot` does; its panels' titles stand in the words."""
    figure = draw(data.source, kind, PlotOptions(nside=data.nside))
    alt, caption = _FIGURES[kind]
    titles = dict.fromkeys(axes.get_title() for axes in figure.axes)
    if named := "; ".join(filter(None, titles)):
        alt = f"{alt}: {named}".replace("$", "").replace("\n", " ")
    return picture(figure, alt=alt, caption=caption)


def maps(data: ReportData) -> Section:
    """Draw what is near the Sun, the box edge-on, and a slice."""
    cube = data.source.cube()
    seen = percent(float((cube.arrays["support"] > 0).mean()))
    text = (
        "The Sun is at the origin; x points to the Galactic centre (l = 0°), y to "
        f"l = 90°, z to the north Galactic pole. {seen} of the cells are crossed "
        "by the sight line of some star. In the others the map is its prior."
    )
    kinds = (*(["near"] if cube.finer else []), "edge-on", "slice")
    blocks = (text, *(drawn(data, kind) for kind in kinds))
    return Section(key="maps", title="More maps", blocks=blocks)


def sight_lines(data: ReportData) -> Section:
    """Draw the extinction along a few directions, with the stars near them."""
    blocks = (drawn(data, "los"),)
    return Section(key="sight-lines", title="Lines of sight", blocks=blocks)


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
    """Collect what ``view.js`` draws and its description; two boxes of nested cubes."""
    shown = {"Whole box": cube}
    if cube.finer:
        shown["Near the Sun"] = cube.levels[cube.level_within()]
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
                "levels": [float(f"{level:.3g}") for level in levels],
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
    return View(data=json.dumps(drawn), about=(*about, _HOW))


def thinned(cube: Cube, points: int | None = None) -> Thinned:
    """Average the density in blocks of equal sides, at most ``points`` of them.

    The posterior mean is averaged, which integrates to the extinction. A block at an
    edge may hold fewer cells.
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
    """Average blocks of ``factor`` along every axis."""
    for axis, length in enumerate(values.shape):
        first = np.arange(0, length, factor)
        number = np.diff([*first, length])
        shape = [-1 if a == axis else 1 for a in range(values.ndim)]
        values = np.add.reduceat(values, first, axis=axis) / number.reshape(shape)
    return values


def iso_levels(thin: Thinned) -> list[float]:
    """Return increasing positive densities, which ever fewer seen blocks exceed."""
    known = thin.density[thin.seen] if thin.seen.any() else thin.density
    found = np.quantile(known, _LEVELS)
    least = float(np.max(known, initial=0.0)) * 1e-6
    levels = sorted({float(f"{level:.3g}") for level in found if level > least})
    return levels or [1.0]


def _encoded(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
