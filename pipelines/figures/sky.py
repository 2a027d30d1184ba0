"""Maps of the sky: one panel or many, each a quantity by direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import healpy
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Ellipse, Patch, Rectangle

from pipelines.export.cube import SkyMaps
from pipelines.figures.box import label_bar
from pipelines.figures.graticule import draw_graticule
from pipelines.figures.labels import band_of, extinction_label
from pipelines.figures.page import DOUBLE, NARROW, SINGLE, Page, below, sheet
from pipelines.figures.projections import Gnomonic, Mollweide, Projection
from pipelines.figures.scales import (
    difference_scale,
    error_scale,
    fixed_difference_scale,
    log_scale,
    ratio_scale,
)
from pipelines.figures.style import NORMAL, UNMAPPED, Scale, length_text, signed_scale

Sky = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Values at Galactic longitude and latitude [deg], NaN where there is no map."""

_DISTANCES = 3
# Pixels per mm of a panel: 450 to the inch.
_DENSITY = 18
_SIGMAS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyPanel:
    """A quantity on the sky, its title, its label and its kind of colours.

    ``kind`` is ``value``, ``error``, ``ratio``, ``difference`` or ``deviation`` (a
    difference in standard deviations).
    """

    values: Sky
    title: str
    label: str
    kind: str = "value"


def sky(
    skymaps: SkyMaps,
    *,
    distances: Sequence[float] | None = None,
    width: float = DOUBLE,
    log: bool = False,
    band: str | None = None,
) -> Page:
    """Draw the cumulative extinction and, beside it, its std, out to some distances.

    Parameters
    ----------
    distances
        Those of the maps to draw [pc]; at most three of them if ``None``, with the
        last.
    width, log, band
        As in `pipelines.figures.views.face_on`.

    Raises
    ------
    ValueError
        If the maps have no such distance.
    """
    named = band_of(skymaps.meta) if band is None else band
    panels = []
    for index in _chosen(skymaps.distances, distances):
        title = f"out to {length_text(float(skymaps.distances[index]))}"
        for array, what, kind in (
            (skymaps.mean, "mean extinction", "value"),
            (skymaps.std, "std of the extinction", "error"),
        ):
            if np.isfinite(array[index]).any():
                panels.append(
                    SkyPanel(
                        values=healpix_sky(array[index]),
                        title=title,
                        label=extinction_label(named, what),
                        kind=kind,
                    )
                )
    return sky_panels(panels, width=width, log=log)


def sky_slice(
    values: Sky, *, title: str, label: str, projection: Projection | None = None
) -> Page:
    """Draw any quantity on the sky in one panel."""
    panel = SkyPanel(values=values, title=title, label=label)
    return sky_panels([panel], projection=projection)


def sky_panels(
    panels: Sequence[SkyPanel],
    *,
    projection: Projection | None = None,
    columns: int | None = None,
    width: float = DOUBLE,
    log: bool = False,
) -> Page:
    """Draw quantities on the sky side by side.

    ``projection`` is Mollweide's of the whole sky if ``None``; ``columns`` two if the
    page is wide enough; ``log`` takes logarithmic colours for values and errors.
    """
    seen = Mollweide() if projection is None else projection
    if columns is None:
        columns = 1 if width < NARROW else min(len(panels), 2)
    if len(panels) == 1 and seen.half[0] == seen.half[1]:
        width = min(width, (SINGLE + DOUBLE) / 2)
    page, every = sheet(
        len(panels),
        seen.half[1] / seen.half[0],
        columns=columns,
        width=width,
        bare=True,
        numbered=isinstance(seen, Gnomonic),
    )
    for axes, panel in zip(every, panels):
        _draw(axes, panel, seen, log=log, width=width / columns)
    return page


def healpix_sky(pixels: np.ndarray) -> Sky:
    """See a NESTED Galactic HEALPix map as values by direction (nearest pixel)."""
    nside = healpy.npix2nside(len(pixels))

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        return pixels[healpy.ang2pix(nside, l, b, lonlat=True, nest=True)]

    return values


def _chosen(present: np.ndarray, wanted: Sequence[float] | None) -> list[int]:
    if wanted is None:
        count = len(present)
        spread = np.linspace(0, count - 1, min(count, _DISTANCES))
        return [int(i) for i in np.unique(spread.round())]
    places = []
    for distance in wanted:
        match = np.nonzero(np.isclose(present, distance))[0]
        if not len(match):
            raise ValueError(
                f"there is no map out to {distance:g} pc: there are those to "
                f"{', '.join(f'{d:g}' for d in present)} pc"
            )
        places.append(int(match[0]))
    return places


def _scale(image: np.ndarray, kind: str, log: bool) -> Scale:
    if kind == "deviation":
        return fixed_difference_scale(image, _SIGMAS)
    if kind in ("value", "error") and log:
        return log_scale(image, spread=kind == "error")
    kinds: dict[str, Callable[[np.ndarray], Scale]] = {
        "value": signed_scale,
        "error": error_scale,
        "ratio": ratio_scale,
        "difference": difference_scale,
    }
    return kinds[kind](image)


def _draw(
    axes: Axes, panel: SkyPanel, projection: Projection, *, log: bool, width: float
) -> None:
    image = _sampled(panel.values, projection, int(width * _DENSITY))
    scale = _scale(image, panel.kind, log)
    if isinstance(scale.norm, LogNorm):
        image = np.where(image <= 0, float(scale.norm.vmin or 1.0) / 10, image)
    half = projection.half
    extent = (-half[0], half[0], -half[1], half[1])
    drawn = axes.imshow(image, origin="lower", extent=extent, **scale.image_options())
    axes.add_patch(_rim(projection, facecolor=UNMAPPED, edgecolor="none", zorder=-1))
    drawn.set_clip_path(_rim(projection, transform=axes.transData))
    rim = _rim(projection, facecolor="none", edgecolor="black", lw=0.7, clip_on=False)
    axes.add_patch(rim)
    draw_graticule(axes, projection)
    axes.set_axis_off()
    axes.set_xlim(-half[0], half[0])
    axes.set_ylim(-half[1], half[1])
    axes.set_aspect("equal")
    axes.set_title(panel.title, fontsize=NORMAL, pad=3.5)
    bar = axes.figure.colorbar(
        drawn,
        cax=below(axes, gap=4.5 if isinstance(projection, Gnomonic) else 1.0),
        orientation="horizontal",
        extend=scale.extend,
        extendfrac=0.03,
    )
    label_bar(bar, scale, panel.label)


def _rim(projection: Projection, **options: Any) -> Patch:
    width, height = projection.half
    if projection.round:
        return Ellipse((0, 0), 2 * width, 2 * height, **options)
    return Rectangle((-width, -height), 2 * width, 2 * height, **options)


def _sampled(values: Sky, projection: Projection, count: int) -> np.ndarray:
    """Sample the sky at the pixels of a panel; NaN beyond the rim."""
    x, y = projection.pixels(count)
    shown = np.isfinite(x)
    image = np.full(x.shape, np.nan)
    image[shown] = values(*projection.unproject(x[shown], y[shown]))
    return image
