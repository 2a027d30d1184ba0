"""Panels of the sky: a quantity by direction in any projection, with its bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import healpy
import numpy as np

from pipelines.figures.page import (
    DOUBLE,
    FIELD,
    INCH,
    LABEL,
    NARROW,
    SINGLE,
    SKY,
    Page,
    panel_width,
    rectangles,
    wrapped,
)
from pipelines.figures.projections import Gnomonic, Mollweide, Projection
from pipelines.figures.scales import UNMAPPED, add_bar, colour_scale, veil
from pipelines.figures.style import NORMAL

Sky = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Values at Galactic longitude and latitude [deg], NaN where there is no map."""

UNSEEN = "pale, hatched: no sight line reaches that far, only the prior"
# Points across a panel in which its veil is drawn.
_VEIL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyPanel:
    """A quantity on the sky, its title, its label and its kind of `colour_scale`.

    Panels of one ``group`` share their scale, which ``colours`` may set. Where ``seen``
    is given and not positive the panel is pale and hatched.
    """

    values: Sky
    title: str
    label: str
    kind: str = "value"
    group: str = ""
    seen: Sky | None = None
    colours: Mapping[str, Any] = field(default_factory=dict)


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
    projection = Mollweide() if projection is None else projection
    if columns is None:
        columns = 1 if width < NARROW else min(len(panels), 2)
    across, up = projection.half
    if len(panels) == 1 and across == up:
        width = min(width, (SINGLE + DOUBLE) / 2)
    margins = FIELD if isinstance(projection, Gnomonic) else SKY
    wide = panel_width(margins, columns, width) + margins.between - 2.0
    labels = [wrapped(panel.label, wide, NORMAL) for panel in panels]
    extra = LABEL * max(label.count("\n") for label in labels)
    page, places = rectangles(
        len(panels),
        up / across,
        margins._replace(bottom=margins.bottom + extra),
        columns=columns,
        width=width,
        notes=notes,
    )
    count = max(1, int(width / columns / INCH * dpi))
    images = [_sampled(panel.values, projection, count) for panel in panels]
    for place, panel, image, label in zip(places, panels, images, labels):
        alike = [
            other
            for one, other in zip(panels, images)
            if one is panel or (panel.group and one.group == panel.group)
        ]
        axes = projection.add_axes(page, place)
        rim = axes.coords.frame.patch
        rim.set_facecolor(UNMAPPED)
        scale = colour_scale(panel.kind, *alike, log=log, **panel.colours)
        drawn = scale.draw(axes, image, projection.extent)
        drawn.set_clip_path(rim)
        axes.set_title(panel.title, fontsize=NORMAL, pad=3.5)
        away = -5.0 if margins is FIELD else -2.0
        add_bar(drawn, scale, label, away=away, share=0.66)
        if panel.seen is not None:
            shown = _sampled(panel.seen, projection, min(count, _VEIL))
            veil(axes, np.isfinite(shown) & (shown <= 0), projection.extent, rim)
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


def _sampled(values: Sky, projection: Projection, count: int) -> np.ndarray:
    """Sample the sky at the pixels of a panel; NaN beyond the rim."""
    l, b = projection.pixels(count)  # noqa: E741
    image = np.full(l.shape, np.nan)
    shown = np.isfinite(l)
    image[shown] = values(l[shown], b[shown])
    return image
