"""Panels of cuts through a map: one row per distance, alone or beside another map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import healpy
import numpy as np
from astropy import units as u

from pipelines.base.errors import InputError
from pipelines.figures.cuts import Cut, cut_sky, ratio, statistic
from pipelines.figures.labels import density_label, extinction_label
from pipelines.figures.skypanels import Sky, SkyPanel
from pipelines.figures.sources import MissingError, Source
from pipelines.figures.style import length_text

# Fine enough to know a map's reach and range of values.
_COARSE = 16
_KINDS = {"value": "value", "std": "error", "relative-error": "ratio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What the rows of a figure show.

    Parameters
    ----------
    quantity
        ``density`` or ``extinction``.
    distances
        One row each [pc].
    near
        The other end of the interval; zero is the observer.
    shows
        Panels of a row, as `Cut.show`; without any, the value and, where it is known,
        its std.
    sample
        Number of the posterior sample.
    band
        Name of the extinction; that of the map if ``None``.
    nside
        HEALPix resolution of what is not interpolated between cells.
    """

    quantity: str
    distances: Sequence[float]
    near: float = 0.0
    shows: Sequence[str] = ()
    sample: int = 0
    band: str | None = None
    nside: int | None = None

    def cut(self, show: str, distance: float) -> Cut:
        """One panel's."""
        return Cut(
            quantity=self.quantity,
            show=show,
            distance=distance,
            near=self.near,
            sample=self.sample,
        )

    def sky(self, source: Source, show: str, distance: float) -> Sky:
        """One panel's values in the unit of the map."""
        return cut_sky(source, self.cut(show, distance), self.nside)

    def title(self, distance: float) -> str:
        """What a row is called."""
        far = length_text(distance)
        if self.near:
            return f"from {length_text(self.near)} to {far}"
        return f"at {far}" if self.quantity == "density" else f"out to {far}"


def cut_panels(source: Source, rows: Rows) -> tuple[list[SkyPanel], int]:
    """Panels row by row, and how many there are in a row.

    Raises
    ------
    InputError
        If the map has nothing at a distance, or lacks what was asked for.
    """
    shows = list(rows.shows) or ["value"]
    if not rows.shows and _has_std(source, rows):
        shows.append("std")
    panels = []
    for distance in rows.distances:
        factor, what, label = _unit(source, rows, distance)
        labels = {
            "value": f"{what} {label}".strip(),
            "std": f"std of the {label}",
            "sample": f"sample {rows.sample} of the {label}",
            "relative-error": f"relative error of the {rows.quantity}",
        }
        panels += [
            SkyPanel(
                values=_times(
                    rows.sky(source, show, distance),
                    1.0 if show == "relative-error" else factor,
                ),
                title=rows.title(distance),
                label=labels[show],
                kind=_KINDS.get(show, "value"),
                group=f"{distance}" if show in ("value", "sample") else "",
            )
            for show in shows
        ]
    return panels, len(shows)


def compared_panels(
    source: Source, other: Source, rows: Rows, factor: float = 1.0
) -> tuple[list[SkyPanel], int]:
    """Both maps, their difference and that over the first one's std where it is known.

    ``factor`` multiplies the second, to bring it to the first one's band.
    """
    if rows.quantity == "density":
        native: Any = u.Unit(other.unit)
        factor *= float(native.to(u.Unit(source.unit)))
    panels = []
    for distance in rows.distances:
        unit, what, label = _unit(source, rows, distance)
        first = rows.sky(source, "value", distance)
        second = _times(rows.sky(other, "value", distance), factor)
        panels += [
            SkyPanel(
                values=_times(sky, unit),
                title=f"{name}: {rows.title(distance)}",
                label=f"{what} {label}".strip(),
                group=f"{distance}",
            )
            for sky, name in ((first, source.path.name), (second, other.path.name))
        ]
        panels.append(
            SkyPanel(
                values=_difference(first, second, unit),
                title="difference",
                label=label,
                kind="difference",
            )
        )
        if _has_std(source, rows):
            std = rows.sky(source, "std", distance)
            panels.append(
                SkyPanel(
                    values=_deviation(first, second, std),
                    title="difference over the first one's std",
                    label="difference / $\\sigma$",
                    kind="deviation",
                )
            )
    return panels, 2


def _unit(source: Source, rows: Rows, distance: float) -> tuple[float, str, str]:
    """Factor, statistic and label of a row; says so if the map has nothing there."""
    pixels = np.arange(healpy.nside2npix(_COARSE))
    sky = rows.sky(source, "value", distance)
    values = sky(*healpy.pix2ang(_COARSE, pixels, nest=True, lonlat=True))
    if np.isnan(values).all():
        raise InputError(
            f"{source.path} holds nothing at {distance:g} pc: choose a --distance "
            "inside it"
        )
    band = source.band if rows.band is None else rows.band
    what = statistic(source, rows.cut("value", distance))
    if rows.quantity == "extinction":
        return 1.0, what, extinction_label(band)
    factor, label = density_label(values, source.unit, band)
    return factor, what, label


def _has_std(source: Source, rows: Rows) -> bool:
    try:
        return source.has_std and bool(rows.sky(source, "std", rows.distances[0]))
    except MissingError:
        return False


def _times(sky: Sky, factor: float) -> Sky:
    return lambda lon, lat: factor * sky(lon, lat)


def _difference(first: Sky, second: Sky, factor: float) -> Sky:
    return lambda lon, lat: factor * (first(lon, lat) - second(lon, lat))


def _deviation(first: Sky, second: Sky, std: Sky) -> Sky:
    return lambda lon, lat: ratio(first(lon, lat) - second(lon, lat), std(lon, lat))
