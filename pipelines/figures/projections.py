"""From directions to places on paper and back; Galactic longitude grows to the left."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from astropy.wcs import WCS


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A map of the sky around ``l``, ``b`` [deg], places in units of the panel.

    Calabretta & Greisen 2002 (A&A 395, 1077) by astropy's `WCS`.
    """

    l: float = 0.0  # noqa: E741
    b: float = 0.0

    # The name in the standard; how many of its degrees are one unit; and whether the
    # rim is an ellipse, or else the panel's own edge.
    code = ""
    degrees = math.degrees(1.0)
    round = True

    @property
    def half(self) -> tuple[float, float]:
        """Half the panel's width and height."""
        return 1.0, 1.0

    def project(self, l: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # noqa: E741
        """Place of a direction; NaN where it is not shown."""
        x, y = self._wcs().wcs_world2pix(l, b, 0)
        return x, y

    def unproject(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Direction of a place; NaN beyond the rim."""
        l, b = self._wcs().wcs_pix2world(x, y, 0)  # noqa: E741
        return l, b

    def pixels(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Centres of ``count`` pixels across the panel, and as many as that gives up.

        Places that the rim cuts are moved onto it, to be clipped there.
        """
        width, height = self.half
        rows = round(count * height / width)
        across = ((np.arange(count) + 0.5) / count * 2 - 1) * width
        up = ((np.arange(rows) + 0.5) / rows * 2 - 1) * height
        x, y = np.meshgrid(across, up)
        if not self.round:
            return x, y
        radius = np.hypot(x / width, y / height)
        shrink = np.minimum(1.0, (1 - 1e-9) / np.maximum(radius, 1e-9))
        shrink = np.where(radius < 1 + 4.0 / count, shrink, np.nan)
        return x * shrink, y * shrink

    def _wcs(self) -> WCS:
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


@dataclass(frozen=True, kw_only=True)
class Gnomonic(Projection):
    """A field of view on its tangent plane, ``field`` [deg] across, below 180.

    Great circles are straight lines; a place is in units of the tangent of the angle
    from the centre.
    """

    field: float = 30.0

    code = "TAN"
    round = False

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
