"""Projections of the sky, and axes with their graticule; longitude grows leftwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from astropy import units as u
from astropy.visualization.wcsaxes import WCSAxes
from astropy.visualization.wcsaxes.frame import EllipticalFrame, RectangularFrame
from astropy.wcs import WCS

from pipelines.figures.page import Page
from pipelines.figures.style import SMALL, outline

_MERIDIANS = (120, 60, 0, 300, 240)


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A map of the sky around ``l``, ``b`` [deg], places in units of the panel.

    Calabretta & Greisen 2002 (A&A 395, 1077) by astropy's `WCS`.
    """

    l: float = 0.0  # noqa: E741
    b: float = 0.0

    # The name in the standard; how many of its degrees are one unit; the rim; and where
    # latitudes are numbered: the rim, the central meridian or the left edge.
    code = ""
    degrees = math.degrees(1.0)
    frame = EllipticalFrame
    numbered = "c"

    @property
    def half(self) -> tuple[float, float]:
        """Half the panel's width and height."""
        return 1.0, 1.0

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of the panel."""
        width, height = self.half
        return -width, width, -height, height

    def pixels(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Directions of ``count`` pixels across the panel; NaN beyond the rim."""
        width, height = self.half
        rows = round(count * height / width)
        across = ((np.arange(count) + 0.5) / count * 2 - 1) * width
        up = ((np.arange(rows) + 0.5) / rows * 2 - 1) * height
        l, b = self.wcs.wcs_pix2world(*np.meshgrid(across, up), 0)  # noqa: E741
        return l, b

    def add_axes(self, page: Page, place: tuple[float, ...]) -> WCSAxes:
        """Axes at a place of a page, with meridians and parallels numbered."""
        axes = WCSAxes(page, place, wcs=self.wcs, frame_class=self.frame)
        page.add_axes(axes)
        axes.set_xlim(self.extent[:2])
        axes.set_ylim(self.extent[2:])
        axes.coords.frame.set_linewidth(0.7)
        axes.coords.grid(color="black", linewidth=0.3, alpha=0.45)
        for coordinate in axes.coords:
            coordinate.set_auto_axislabel(False)
            coordinate.set_ticks_visible(False)
            coordinate.set_ticklabel(size=SMALL - 1, pad=2)
        self._number(*axes.coords)
        return axes

    def _number(self, longitude: Any, latitude: Any) -> None:
        """Number the parallels, and the meridians on the horizontal middle."""
        longitude.set_ticks(_MERIDIANS * u.deg)
        latitude.set_ticks((-60, -30, 0, 30, 60) * u.deg)
        longitude.set_ticklabel_position("h")
        latitude.set_ticklabel_position(self.numbered)
        for coordinate in (longitude, latitude):
            coordinate.set_ticklabel(path_effects=outline(1.5))
            coordinate.set_major_formatter("d")

    @property
    def wcs(self) -> WCS:
        """Its world coordinates: places in the panel are pixels, from 0."""
        wcs = WCS(naxis=2)
        wcs.wcs.ctype = [f"GLON-{self.code}", f"GLAT-{self.code}"]
        wcs.wcs.crval = [self.l, self.b]
        wcs.wcs.crpix = [1.0, 1.0]
        wcs.wcs.cdelt = [-self.degrees, self.degrees]
        return wcs


class Mollweide(Projection):
    """The whole sky, equal areas: an ellipse of half-axes 2 and 1 around l = 0."""

    code = "MOL"
    degrees = math.degrees(math.sqrt(2.0))

    @property
    def half(self) -> tuple[float, float]:
        return 2.0, 1.0


class Orthographic(Projection):
    """Half of the sky as a globe, seen from inside: a disc of radius 1."""

    code = "SIN"
    numbered = "v"


@dataclass(frozen=True, kw_only=True)
class Gnomonic(Projection):
    """A field of view on its tangent plane, ``field`` [deg] across, below 180.

    Great circles are straight lines; a place is in units of the tangent of the angle
    from the centre.
    """

    field: float = 30.0

    code = "TAN"
    frame = RectangularFrame

    def __post_init__(self) -> None:
        if not 0 < self.field < 180:
            raise ValueError(
                f"a field on a tangent plane is above 0 and below 180 deg across, got "
                f"{self.field:g}: take an orthographic or a Mollweide projection"
            )

    @property
    def half(self) -> tuple[float, float]:
        size = math.tan(math.radians(self.field / 2))
        return size, size

    def _number(self, longitude: Any, latitude: Any) -> None:
        for coordinate in (longitude, latitude):
            coordinate.set_ticks(number=5)
            coordinate.set_format_unit(u.deg, decimal=True, show_decimal_unit=True)
