"""A cube seen from above, from the side, and cut in the plane of the Sun."""

from __future__ import annotations

from typing import Any

import numpy as np
from astropy import units as u
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipelines.export.cube import Cube
from pipelines.figures.style import (
    NORMAL,
    SMALL,
    Scale,
    colour_bar,
    density_unit,
    length_unit,
    outline,
    signed_scale,
    signed_text,
    spread_scale,
)

_TOWARDS = {
    "x": r"towards $l = 0°$",
    "y": r"towards $l = 90°$",
    "z": r"towards $b = +90°$",
}
_ARRAY_AXIS = {"z": 0, "y": 1, "x": 2}
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_CIRCLES = 4
_WIDTH = 6.0
# Below this ratio of height to width the colour bar goes under the panel.
_FLAT = 0.55


def face_on(cube: Cube) -> Figure:
    """Draw the extinction through the whole box, seen from the north Galactic pole.

    It is that of the mean density, or of the median where the cube has it: the mean of
    a lognormal density grows without bound where no star looks.
    """
    return _integrated(cube, across="x", up="y", along="z")


def edge_on(cube: Cube) -> Figure:
    """Draw the extinction through the whole box along y, with z upwards."""
    return _integrated(cube, across="x", up="z", along="y")


def density_slice(cube: Cube, truth: Cube | None = None) -> Figure:
    """Draw the density in the plane nearest z = 0: truth (if given), map and std.

    The map is the median where the cube has it, else the mean. Truth and map have one
    colour scale; the standard deviation has its own.
    """
    cubes = [] if truth is None else [("truth", truth, _density_name(truth))]
    title = "map (median)" if "p50" in cube.arrays else "map"
    cubes.append((title, cube, _density_name(cube)))
    factor, unit = density_unit(_plane(cube, _density_name(cube)), cube.unit)
    planes = [_plane(one, name) * factor for _, one, name in cubes]
    scale = signed_scale(*planes)
    panels: list[tuple[str, Cube, np.ndarray, Scale, str]] = [
        (title, one, plane, scale, f"density {unit}")
        for (title, one, _), plane in zip(cubes, planes)
    ]
    if "std" in cube.arrays:
        std = _plane(cube, "std") * factor
        label = f"standard deviation {unit}"
        panels.append(("uncertainty of the map", cube, std, spread_scale(std), label))
    ratio = np.ptp(cube.y) / np.ptp(cube.x)
    figure = Figure(figsize=(3.3 * len(panels), 3.0 * ratio + 1.2))
    for number, (title, one, plane, scale, label) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        image = _draw(axes, one, plane, scale, across="x", up="y", short=True)
        place = (0.0, -0.26 / ratio, 1.0, 0.05 / ratio)
        colour_bar(axes, image, scale, label, place=place, horizontal=True)
        height = signed_text(one.z[np.abs(one.z).argmin()])
        axes.set_title(f"{title}, $z$ = {height} pc", fontsize=NORMAL)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        if number:
            axes.set_ylabel("")
    figure.subplots_adjust(wspace=0.3)
    return figure


def _integrated(cube: Cube, *, across: str, up: str, along: str) -> Figure:
    name = _density_name(cube)
    axis = _ARRAY_AXIS[along]
    step = cube.spacing["xyz".index(along)]
    to_mag = (u.Unit(cube.unit) * u.pc).to(u.mag)
    image = cube.arrays[name].sum(axis=axis, dtype=np.float64) * step * to_mag
    scale = signed_scale(image)
    ratio = np.ptp(getattr(cube, up)) / np.ptp(getattr(cube, across))
    figure = Figure(figsize=(_WIDTH, max(1.5, _WIDTH * ratio)))
    axes = figure.add_subplot()
    drawn = _draw(axes, cube, image, scale, across=across, up=up)
    if "support" in cube.arrays:
        _draw_support(axes, cube, axis, across=across, up=up)
    low, high = (signed_text(edge) for edge in _edges(getattr(cube, along)))
    what = "extinction of the median density" if name == "p50" else "extinction"
    label = f"{what}, {low} < ${along}$ < {high} pc [mag]"
    if ratio >= _FLAT:
        colour_bar(axes, drawn, scale, label)
    else:
        place = (0.15, -0.15 / ratio, 0.7, 0.025 / ratio)
        colour_bar(axes, drawn, scale, label, place=place, horizontal=True)
    return figure


def _density_name(cube: Cube) -> str:
    for name in ("p50", "mean", "density"):
        if name in cube.arrays:
            return name
    raise ValueError(
        f"the cube has arrays {sorted(cube.arrays)}; expected p50, mean or density"
    )


def _plane(cube: Cube, name: str) -> np.ndarray:
    return np.asarray(cube.arrays[name][np.abs(cube.z).argmin()], dtype=np.float64)


def _draw(
    axes: Axes,
    cube: Cube,
    image: np.ndarray,
    scale: Scale,
    *,
    across: str,
    up: str,
    short: bool = False,
) -> Any:
    left, right = _edges(getattr(cube, across))
    bottom, top = _edges(getattr(cube, up))
    edges = (left, right, bottom, top)
    factor, unit = length_unit(max(abs(edge) for edge in edges))
    extent = (left * factor, right * factor, bottom * factor, top * factor)
    drawn = axes.imshow(image, origin="lower", extent=extent, **scale.image_options())
    _draw_circles(axes, edges, factor, None if short else unit)
    axes.plot(0, 0, "o", mfc="white", mec="black", ms=7, mew=0.9)
    axes.plot(0, 0, "o", color="black", ms=1.8)
    axes.set_xlim(*extent[:2])
    axes.set_ylim(*extent[2:])
    for name, put in ((across, axes.set_xlabel), (up, axes.set_ylabel)):
        room = not short and (name == across or top - bottom > _FLAT * (right - left))
        hint = f"   ({_TOWARDS[name]} $\\rightarrow$)" if room else ""
        put(f"${name}$ [{unit}]{hint}", fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL, direction="out")
    return drawn


def _draw_circles(
    axes: Axes, edges: tuple[float, ...], factor: float, unit: str | None
) -> None:
    left, right, bottom, top = edges
    reach = max(-left, right, -bottom, top)
    step = _nice_step(reach)
    angle = np.linspace(0, 2 * np.pi, 361)
    for radius in np.arange(step, reach * 1.42, step):
        axes.plot(
            radius * np.cos(angle) * factor,
            radius * np.sin(angle) * factor,
            color="black",
            linewidth=0.6,
            linestyle=(0, (4, 3)),
            alpha=0.55,
        )
        height = min(radius * np.sin(np.pi / 4), 0.65 * top)
        width = np.sqrt(radius**2 - height**2)
        if unit and 0 < width < 0.93 * right and height > 0:
            axes.annotate(
                f"{radius * factor:.4g} {unit}",
                (width * factor, height * factor),
                fontsize=SMALL,
                ha="center",
                va="center",
                path_effects=outline(2.5),
            )


def _draw_support(axes: Axes, cube: Cube, axis: int, *, across: str, up: str) -> None:
    seen = cube.arrays["support"].sum(axis=axis) > 0
    if seen.all() or not seen.any():
        return
    horizontal, vertical = getattr(cube, across), getattr(cube, up)
    factor, _ = length_unit(
        max(np.abs([*_edges(horizontal), *_edges(vertical)]).tolist())
    )
    axes.contour(
        horizontal * factor,
        vertical * factor,
        seen,
        levels=[0.5],
        colors="black",
        linewidths=0.9,
        linestyles="dotted",
    )
    axes.set_title("dotted: no sight line beyond", fontsize=SMALL, loc="right")


def _nice_step(reach: float) -> float:
    rough = reach / _CIRCLES
    power = 10.0 ** np.floor(np.log10(rough))
    return float(power * next(step for step in _STEPS if step * power >= rough))


def _edges(centres: np.ndarray) -> tuple[float, float]:
    half = (centres[-1] - centres[0]) / (len(centres) - 1) / 2
    return float(centres[0] - half), float(centres[-1] + half)
