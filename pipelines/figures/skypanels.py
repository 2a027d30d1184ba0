"""Panels of the sky: a quantity by direction in any projection, with its bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import healpy
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, Patch, Rectangle

from pipelines.figures.box import label_bar, veil
from pipelines.figures.graticule import draw_graticule
from pipelines.figures.page import (
    DOUBLE,
    NARROW,
    SINGLE,
    Page,
    below,
    sheet,
)
from pipelines.figures.projections import Gnomonic, Mollweide, Projection
from pipelines.figures.scales import (
    UNMAPPED,
    Scale,
    difference_scale,
    error_scale,
    log_scale,
    ratio_scale,
    signed_scale,
)
from pipelines.figures.style import NORMAL

Sky = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Values at Galactic longitude and latitude [deg], NaN where there is no map."""

_INCH = 25.4
_SIGMAS = 3.0
# Points across a panel in which its veil is drawn.
_VEIL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyPanel:
    """A quantity on the sky, its title, its label and its kind of colours.

    ``kind`` is ``value``, ``error``, ``ratio``, ``difference`` or ``deviation`` (a
    difference in standard deviations). Panels of one ``group`` share their scale. Where
    ``seen`` is given and not positive the panel is pale and hatched.
    """

    values: Sky
    title: str
    label: str
    kind: str = "value"
    group: str = ""
    seen: Sky | None = None


def sky_panels(
    panels: Sequence[SkyPanel],
    *,
    projection: Projection | None = None,
    columns: int | None = None,
    width: float = DOUBLE,
    log: bool = False,
    dpi: float = 300.0,
    notes: Sequence[str] = (),
) -> Page:
    """Draw quantities on the sky side by side, with ``notes`` above them all.

    ``projection`` is Mollweide's of the whole sky if ``None``; ``columns`` two if the
    page is wide enough; ``log`` takes logarithmic colours for values and errors;
    ``dpi`` is how finely the sky is sampled, to the inch of the page.
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
        notes=notes,
    )
    count = max(1, int(width / columns / _INCH * dpi))
    images = [_sampled(panel.values, seen, count) for panel in panels]
    for axes, panel, image in zip(every, panels, images):
        alike = [
            other
            for one, other in zip(panels, images)
            if panel.group and one.group == panel.group
        ]
        scale = _scale(alike or [image], panel.kind, log)
        _draw(axes, panel, seen, image, scale)
        if panel.seen is not None:
            _veil(axes, panel.seen, seen, count)
    return page


def healpix_sky(pixels: np.ndarray, *, smooth: bool = False) -> Sky:
    """See a NESTED Galactic HEALPix map as values by direction.

    That of the nearest pixel, or if ``smooth`` bilinear between pixels, but for
    those beside a pixel without value.
    """
    nside = healpy.npix2nside(len(pixels))

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        nearest = pixels[healpy.ang2pix(nside, l, b, lonlat=True, nest=True)]
        if not smooth:
            return nearest
        between = healpy.get_interp_val(pixels, l, b, nest=True, lonlat=True)
        known = np.isfinite(nearest) & np.isfinite(between)
        return np.where(known, between, nearest)

    return values


def _scale(images: list[np.ndarray], kind: str, log: bool) -> Scale:
    if kind in ("value", "error") and log:
        return log_scale(*images, spread=kind == "error")
    if kind == "value":
        return signed_scale(*images)
    if kind == "difference":
        return difference_scale(*images)
    if kind == "deviation":
        return difference_scale(images[0], reach=_SIGMAS)
    return {"error": error_scale, "ratio": ratio_scale}[kind](images[0])


def _draw(
    axes: Axes,
    panel: SkyPanel,
    projection: Projection,
    image: np.ndarray,
    scale: Scale,
) -> None:
    half = projection.half
    drawn = scale.draw(axes, image, (-half[0], half[0], -half[1], half[1]))
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


def _veil(axes: Axes, seen: Sky, projection: Projection, count: int) -> None:
    """Pale and hatch the sky where stars do not look."""
    shown = _sampled(seen, projection, min(count, _VEIL))
    half = projection.half
    rim = _rim(projection, transform=axes.transData)
    hidden = np.isfinite(shown) & (shown <= 0)
    if hidden.any():
        veil(axes, hidden, (-half[0], half[0], -half[1], half[1]), clip=rim)


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
