"""The sky in any projection; cumulative extinction beside its std."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import healpy
import numpy as np
from astropy import units as u
from astropy.visualization.wcsaxes import WCSAxes
from astropy.visualization.wcsaxes.frame import EllipticalFrame, RectangularFrame
from astropy.wcs import WCS

from pipelines.cubes.sky import SkyMaps, sky_outside
from pipelines.figures.integrals import chosen, extinction_panels
from pipelines.figures.scales import UNMAPPED, add_bar, colour_scale, veil
from pipelines.figures.style import (
    DOUBLE,
    INCH,
    NARROW,
    NORMAL,
    SINGLE,
    SMALL,
    Margins,
    Page,
    band_of,
    length_text,
    outline,
    rectangles,
)

Sky = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Values at Galactic longitude and latitude [deg], NaN where there is no map."""

UNSEEN = "pale, hatched: no sight line reaches that far, only the prior"
# The whole sky with a bar below it, and a field with numbers at its edges.
_SKY = Margins(left=7.0, right=7.0, between=12.0, top=5.0, bottom=13.0)
_FIELD = Margins(left=9.0, right=4.0, between=11.0, top=5.0, bottom=15.5)
# Points across a panel in which its veil is drawn.
_VEIL = 500
# Distances that are drawn unless some are chosen, at most.
_DISTANCES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A map of the sky around ``l``, ``b`` [deg]; longitude grows to the left.

    Calabretta & Greisen 2002 (A&A 395, 1077) by astropy's `WCS`.

    Parameters
    ----------
    code
        Its name there: ``MOL``, ``SIN`` or ``TAN``.
    half
        Half the panel's width and height.
    degrees
        Degrees in a unit of these.
    """

    code: str
    l: float = 0.0  # noqa: E741
    b: float = 0.0
    half: tuple[float, float] = (1.0, 1.0)
    degrees: float = math.degrees(1.0)

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of the panel."""
        width, height = self.half
        return -width, width, -height, height

    @property
    def wcs(self) -> WCS:
        """Its world coordinates: places in the panel are pixels, from 0."""
        wcs = WCS(naxis=2)
        wcs.wcs.ctype = [f"GLON-{self.code}", f"GLAT-{self.code}"]
        wcs.wcs.crval = [self.l, self.b]
        wcs.wcs.crpix = [1.0, 1.0]
        wcs.wcs.cdelt = [-self.degrees, self.degrees]
        return wcs

    def sample(self, values: Sky, count: int) -> np.ndarray:
        """Sample the sky at ``count`` pixels across the panel; NaN beyond the rim."""
        width, height = self.half
        rows = round(count * height / width)
        across = ((np.arange(count) + 0.5) / count * 2 - 1) * width
        up = ((np.arange(rows) + 0.5) / rows * 2 - 1) * height
        l, b = self.wcs.wcs_pix2world(*np.meshgrid(across, up), 0)  # noqa: E741
        image = np.full(l.shape, np.nan)
        shown = np.isfinite(l)
        image[shown] = values(l[shown], b[shown])
        return image

    def add_axes(self, page: Page, place: tuple[float, ...]) -> WCSAxes:
        """Add axes at a place of a page, with meridians and parallels numbered."""
        frame = RectangularFrame if self.code == "TAN" else EllipticalFrame
        axes = WCSAxes(page, place, wcs=self.wcs, frame_class=frame)
        page.add_axes(axes)
        axes.set_xlim(self.extent[:2])
        axes.set_ylim(self.extent[2:])
        axes.coords.frame.set_linewidth(0.7)
        axes.coords.grid(color="black", linewidth=0.3, alpha=0.45)
        for coordinate in axes.coords:
            coordinate.set_auto_axislabel(False)
            coordinate.set_ticks_visible(False)
            coordinate.set_ticklabel(size=SMALL - 1, pad=2)
            if self.code == "TAN":
                coordinate.set_ticks(number=5)
                coordinate.set_format_unit(u.deg, decimal=True, show_decimal_unit=True)
            else:
                coordinate.set_ticklabel(path_effects=outline(1.5))
                coordinate.set_major_formatter("d")
        if self.code != "TAN":
            # Meridians are numbered on the horizontal middle.
            longitude, latitude = axes.coords
            longitude.set_ticks((120, 60, 0, 300, 240) * u.deg)
            latitude.set_ticks((-60, -30, 0, 30, 60) * u.deg)
            longitude.set_ticklabel_position("h")
            latitude.set_ticklabel_position("v" if self.code == "SIN" else "c")
        return axes


# The whole sky, equal areas: an ellipse of half-axes 2 and 1 around l = 0.
MOLLWEIDE = Projection(code="MOL", half=(2.0, 1.0), degrees=math.degrees(2**0.5))


def orthographic(l: float, b: float) -> Projection:  # noqa: E741
    """Return half of the sky as a globe, seen from inside: a disc of radius 1."""
    return Projection(code="SIN", l=l, b=b)


def gnomonic(l: float, b: float, field: float = 30.0) -> Projection:  # noqa: E741
    """Return a field of view on its tangent plane, ``field`` [deg] across, below 180.

    Great circles are straight lines; a place is in units of the tangent of the angle
    from the centre.
    """
    if not 0 < field < 180:
        raise ValueError(
            f"a field on a tangent plane is above 0 and below 180 deg across, got "
            f"{field:g}: take an orthographic or a Mollweide projection"
        )
    size = math.tan(math.radians(field / 2))
    return Projection(code="TAN", l=l, b=b, half=(size, size))


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
    projection: Projection = MOLLWEIDE,
    columns: int | None = None,
    width: float = DOUBLE,
    log: bool = False,
    dpi: float = 300.0,
    notes: Sequence[str] = (),
) -> Page:
    """Draw quantities on the sky side by side, with ``notes`` above them all.

    ``columns`` are two if the page is wide enough; ``log`` takes logarithmic colours
    for values and errors; ``dpi`` is how finely the sky is sampled, to the inch of the
    page.
    """
    if columns is None:
        columns = 1 if width < NARROW else min(len(panels), 2)
    across, up = projection.half
    if len(panels) == 1 and across == up:
        width = min(width, (SINGLE + DOUBLE) / 2)
    margins, away = (_FIELD, -5.0) if projection.code == "TAN" else (_SKY, -2.0)
    texts = [panel.label for panel in panels]
    labels, extra = margins.wrapped(texts, columns, width, NORMAL)
    page, places = rectangles(
        len(panels),
        up / across,
        margins._replace(bottom=margins.bottom + extra),
        columns=columns,
        width=width,
        notes=notes,
    )
    count = max(1, int(width / columns / INCH * dpi))
    images = [projection.sample(panel.values, count) for panel in panels]
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
        add_bar(drawn, scale, label, away=away, share=0.66)
        if panel.seen is not None:
            shown = projection.sample(panel.seen, min(count, _VEIL))
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


def sky(
    skymaps: SkyMaps,
    *,
    distances: Sequence[float] | None = None,
    width: float = DOUBLE,
    log: bool = False,
    dpi: float = 300.0,
    panel: str | None = None,
    **colours: Any,
) -> Page:
    """Draw the cumulative extinction and, beside it, its std, out to some distances.

    The value is the median where the maps have it, else the mean. Pale and hatched is
    where the last star stands nearer than the distance, if the maps know of it.

    Parameters
    ----------
    distances
        Those of the maps to draw [pc]; at most three of them if ``None``, with the
        last.
    width, log, panel, colours
        As in `pipelines.figures.box.face_on`, for each distance.
    dpi
        How finely the sky is sampled.

    Raises
    ------
    ValueError
        If the maps have no such distance.
    MissingError
        If there is no such panel.
    """
    present = skymaps.distances
    if distances is None:
        spread = np.linspace(0, len(present) - 1, min(len(present), _DISTANCES))
        indices = np.unique(spread.round()).astype(int)
    else:
        near = np.isclose(present, np.asarray(distances)[:, None])
        if absent := [d for d, found in zip(distances, near) if not found.any()]:
            raise ValueError(
                f"there is no map out to {absent[0]:g} pc: there are those to "
                f"{', '.join(f'{d:g}' for d in present)} pc"
            )
        indices = near.argmax(axis=1)
    default = ("mean" if skymaps.median is None else "median", "std")
    panels = []
    for index in indices:
        arrays = {name: array[index] for name, array in skymaps.arrays.items()}
        shown = extinction_panels(arrays, band_of(skymaps.meta))
        seen, known = None, np.isfinite(skymaps.mean[index])
        if skymaps.last_star is not None:
            # How much further than the distance stars look [pc].
            beyond = np.where(known, skymaps.last_star - present[index], np.nan)
            if not (beyond[known] > 0).all():
                seen = healpix_sky(beyond)
        panels += [
            SkyPanel(
                values=healpix_sky(image, smooth=True),
                title=f"out to {length_text(float(present[index]))}",
                label=label,
                kind=kind,
                seen=seen,
                colours=colours if number == 0 else {},
            )
            for number, (kind, image, label) in enumerate(chosen(shown, default, panel))
        ]
    notes = []
    if outside := sky_outside(skymaps.mean[indices], present[indices]):
        notes.append(f"grey: outside the map, {', '.join(outside)}")
    if any(panel.seen is not None for panel in panels):
        notes.append(UNSEEN)
    return sky_panels(panels, width=width, log=log, dpi=dpi, notes=notes)
