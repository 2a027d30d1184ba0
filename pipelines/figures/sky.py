"""The whole sky in Mollweide's projection, Galactic longitude growing to the left."""

from __future__ import annotations

from collections.abc import Callable

import healpy
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from pipelines.export.cube import SkyMaps
from pipelines.figures.style import (
    NORMAL,
    SMALL,
    UNMAPPED,
    colour_bar,
    length_text,
    outline,
    signed_scale,
)

Sky = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Values at Galactic longitude and latitude [deg], NaN where there is no map."""

_PANELS = 4
_PIXELS = 1400
_MERIDIANS = (120, 60, 0, 300, 240)
_PARALLELS = (-60, -30, 30, 60)


def sky(skymaps: SkyMaps) -> Figure:
    """Draw the mean cumulative extinction to at most four of the distances."""
    count = len(skymaps.distances)
    chosen = np.unique(np.linspace(0, count - 1, min(count, _PANELS)).round())
    rows, columns = {1: (1, 1), 2: (1, 2)}.get(len(chosen), (2, 2))
    figure = Figure(figsize=(5.0 * columns, 3.3 * rows))
    for number, index in enumerate(chosen.astype(int)):
        axes = figure.add_subplot(rows, columns, number + 1)
        title = f"out to {length_text(float(skymaps.distances[index]))}"
        _draw(axes, healpix_sky(skymaps.mean[index]), title, "extinction [mag]")
    figure.subplots_adjust(wspace=0.04, hspace=0.2)
    return figure


def sky_slice(values: Sky, *, title: str, label: str) -> Figure:
    """Draw any quantity on the sky in one panel."""
    figure = Figure(figsize=(7.0, 4.4))
    _draw(figure.add_subplot(), values, title, label)
    return figure


def healpix_sky(pixels: np.ndarray) -> Sky:
    """See a NESTED Galactic HEALPix map as values by direction (nearest pixel)."""
    nside = healpy.npix2nside(len(pixels))

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        return pixels[healpy.ang2pix(nside, l, b, lonlat=True, nest=True)]

    return values


def _draw(axes: Axes, values: Sky, title: str, label: str) -> None:
    image = _project(values)
    scale = signed_scale(image)
    drawn = axes.imshow(
        image, origin="lower", extent=(-2, 2, -1, 1), **scale.image_options()
    )
    rim = Ellipse((0, 0), 4, 2, facecolor=UNMAPPED, edgecolor="none", zorder=-1)
    axes.add_patch(rim)
    drawn.set_clip_path(Ellipse((0, 0), 4, 2, transform=axes.transData))
    axes.add_patch(Ellipse((0, 0), 4, 2, facecolor="none", edgecolor="black", lw=0.9))
    _draw_graticule(axes)
    axes.set_axis_off()
    axes.set_xlim(-2.02, 2.02)
    axes.set_ylim(-1.02, 1.02)
    axes.set_aspect("equal")
    axes.set_title(title, fontsize=NORMAL + 1, pad=6)
    colour_bar(
        axes, drawn, scale, label, place=(0.2, -0.07, 0.6, 0.04), horizontal=True
    )


def _project(values: Sky) -> np.ndarray:
    """Sample the sky at the pixels of the panel; NaN beyond the rim."""
    across = (np.arange(_PIXELS) + 0.5) / _PIXELS * 4 - 2
    up = (np.arange(_PIXELS // 2) + 0.5) / (_PIXELS // 2) * 2 - 1
    x, y = np.meshgrid(across, up)
    # The pixels that the rim cuts take the value at the rim, and are clipped there.
    radius = np.hypot(x / 2, y)
    touched = radius < 1 + 4.0 / _PIXELS
    shrink = np.minimum(1.0, (1 - 1e-9) / np.maximum(radius, 1e-9))[touched]
    l, b = unproject(x[touched] * shrink, y[touched] * shrink)  # noqa: E741
    image = np.full(x.shape, np.nan)
    image[touched] = values(l, b)
    return image


def unproject(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Longitude and latitude [deg] at a point of the ellipse of half-axes 2 and 1."""
    half_width = np.maximum(np.sqrt(1 - y**2), np.finfo(float).tiny)
    return -90.0 * x / half_width % 360.0, _latitude(y)


def project(l: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # noqa: E741
    """Point of the ellipse of half-axes 2 and 1 at a direction [deg]."""
    # The latitude grows steadily with the auxiliary angle: a table inverts it.
    table = np.sin(np.linspace(-np.pi / 2, np.pi / 2, 4001))
    height = np.interp(b, _latitude(table), table)
    turned = (np.asarray(l) + 180.0) % 360.0 - 180.0
    return -turned / 90.0 * np.sqrt(1 - height**2), height


def _latitude(height: np.ndarray) -> np.ndarray:
    theta = np.arcsin(height)
    sine = (2 * theta + np.sin(2 * theta)) / np.pi
    return np.rad2deg(np.arcsin(np.clip(sine, -1, 1)))


def _draw_graticule(axes: Axes) -> None:
    line = {"color": "black", "linewidth": 0.4, "alpha": 0.45}
    text = {"fontsize": SMALL - 1, "path_effects": outline(2.0)}
    latitudes = np.linspace(-90, 90, 181)
    for meridian in _MERIDIANS:
        axes.plot(*project(np.full(181, float(meridian)), latitudes), **line)
        x, y = project(np.array(float(meridian)), np.array(0.0))
        axes.text(
            float(x), float(y) + 0.02, f"{meridian}°", ha="center", va="bottom", **text
        )
    longitudes = np.linspace(180.0001, 539.9999, 361)
    for parallel in (*_PARALLELS, 0):
        axes.plot(*project(longitudes, np.full(361, float(parallel))), **line)
    for parallel in _PARALLELS:
        x, y = project(np.array(179.999), np.array(float(parallel)))
        axes.text(
            float(x) - 0.03,
            float(y),
            f"{parallel:+d}°".replace("-", "\N{MINUS SIGN}"),
            ha="right",
            va="bottom" if parallel > 0 else "top",
            fontsize=SMALL - 1,
        )
