"""Panels of cuts through a map: one row per distance, alone or beside another map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import healpy
import numpy as np

from pipelines.errors import InputError
from pipelines.figures.cuts import Cut, cut_sky, statistic
from pipelines.figures.labels import density_label, extinction_label
from pipelines.figures.skypanels import Sky, SkyPanel
from pipelines.figures.sources import CubeSource, MissingError, RunSource, Source
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
        unit = _unit(source, rows, distance)
        panels += [_panel(source, rows, show, distance, unit) for show in shows]
    return panels, len(shows)


def compared_panels(
    source: Source, other: Source, rows: Rows, factor: float = 1.0
) -> tuple[list[SkyPanel], int]:
    """Both maps, their difference and that over the first one's std where it is known.

    ``factor`` multiplies the second, to bring it to the first one's band.
    """
    panels = []
    with_std = _has_std(source, rows)
    for distance in rows.distances:
        unit, label = _unit(source, rows, distance)
        cut = rows.cut("value", distance)
        first = cut_sky(source, cut, rows.nside)
        second = _times(
            cut_sky(other, cut, rows.nside),
            factor * _to_native(other, source, rows),
        )
        title = _title(rows, distance)
        group = f"{distance}"
        for sky, name in ((first, source.path.name), (second, other.path.name)):
            panels.append(
                SkyPanel(
                    values=_times(sky, unit),
                    title=f"{name}: {title}",
                    label=label,
                    group=group,
                )
            )
        difference = _minus(first, second)
        panels.append(
            SkyPanel(
                values=_times(difference, unit),
                title="difference",
                label=label.removeprefix(f"{statistic(source, cut)} "),
                kind="difference",
            )
        )
        if with_std:
            std = cut_sky(source, rows.cut("std", distance), rows.nside)
            panels.append(
                SkyPanel(
                    values=_over(difference, std),
                    title="difference over the first one's std",
                    label="difference / $\\sigma$",
                    kind="deviation",
                )
            )
    return panels, 2


def _panel(
    source: Source, rows: Rows, show: str, distance: float, unit: tuple[float, str]
) -> SkyPanel:
    factor, label = unit
    values = cut_sky(source, rows.cut(show, distance), rows.nside)
    if show == "relative-error":
        factor, label = 1.0, f"relative error of the {rows.quantity}"
    elif show != "value":
        plain = label.removeprefix(f"{statistic(source, rows.cut(show, distance))} ")
        many = {"std": "std of the", "sample": f"sample {rows.sample} of the"}
        label = f"{many[show]} {plain}"
    return SkyPanel(
        values=_times(values, factor),
        title=_title(rows, distance),
        label=label,
        kind=_KINDS.get(show, "value"),
        group=f"{distance}" if show in ("value", "sample") else "",
    )


def _title(rows: Rows, distance: float) -> str:
    far = length_text(distance)
    if rows.near:
        return f"from {length_text(rows.near)} to {far}"
    return f"at {far}" if rows.quantity == "density" else f"out to {far}"


def _unit(source: Source, rows: Rows, distance: float) -> tuple[float, str]:
    """Factor and label of a row; says so if the map has nothing there."""
    cut = rows.cut("value", distance)
    sky = cut_sky(source, cut, rows.nside)
    pixels = np.arange(healpy.nside2npix(_COARSE))
    values = sky(*healpy.pix2ang(_COARSE, pixels, nest=True, lonlat=True))
    if np.isnan(values).all():
        raise InputError(
            f"{source.path} holds nothing at {distance:g} pc: choose a --distance "
            "inside it"
        )
    band = source.band if rows.band is None else rows.band
    if rows.quantity == "extinction":
        return 1.0, extinction_label(band, f"{statistic(source, cut)} extinction")
    what = f"{statistic(source, cut)} density".strip()
    return density_label(values, _native(source), band, what)


def _native(source: Source) -> str:
    return source.density.unit if isinstance(source, CubeSource) else "mag pc-1"


def _to_native(other: Source, source: Source, rows: Rows) -> float:
    from astropy import units as u

    if rows.quantity == "extinction":
        return 1.0
    native: Any = u.Unit(_native(other))
    return float(native.to(u.Unit(_native(source))))


def _has_std(source: Source, rows: Rows) -> bool:
    if isinstance(source, RunSource):
        return len(source.run.posterior.samples) > 0
    try:
        cut_sky(source, rows.cut("std", rows.distances[0]), rows.nside)
    except MissingError:
        return False
    return True


def _times(sky: Sky, factor: float) -> Sky:
    return sky if factor == 1.0 else lambda l, b: factor * sky(l, b)  # noqa: E741


def _minus(first: Sky, second: Sky) -> Sky:
    return lambda l, b: first(l, b) - second(l, b)  # noqa: E741


def _over(top: Sky, bottom: Sky) -> Sky:
    def ratio(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        below = bottom(l, b)
        known = below > 0
        return np.where(known, top(l, b) / np.where(known, below, 1.0), np.nan)

    return ratio
