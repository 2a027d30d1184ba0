"""Panels of cuts through a map: one row per distance, alone or beside another map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import healpy
import numpy as np
from astropy import units as u

from pipelines.base.errors import InputError
from pipelines.figures.cuts import Cut, cut_sky, seen_sky
from pipelines.figures.integrals import ratio
from pipelines.figures.skypanels import Sky, SkyPanel
from pipelines.figures.style import density_label, extinction_label, length_text
from pipelines.maps.answers import Answers, MissingError

# Fine enough to know a map's reach and range of values.
_COARSE = 16
_KINDS = {"value": "value", "std": "error", "relative-error": "ratio"}


def cut_panels(
    source: Answers,
    cut: Cut,
    distances: Sequence[float],
    shows: Sequence[str] = (),
) -> tuple[list[SkyPanel], int]:
    """Panels row by row, and how many there are in a row.

    Parameters
    ----------
    cut
        What is shown; its own ``distance`` and ``show`` do not matter.
    distances
        One row each [pc].
    shows
        Panels of a row, as `Cut.show`; without any the value and, where it is known,
        the std of an integral: that of a density is of points, not of cells.

    Raises
    ------
    InputError
        If the map has nothing at a distance, or lacks what was asked for.
    """
    panels = []
    rows = [replace(cut, distance=distance, show="value") for distance in distances]
    if not shows:
        joint = not rows[0].on_sphere and _std(source, rows[0])
        shows = ["value", "std"] if joint else ["value"]
    for row in rows:
        factor, what, label = _labels(source, row)
        labels = {
            "value": f"{what} {label}".strip(),
            "std": f"std of the {label}",
            "sample": f"sample {row.sample} of the {label}",
            "relative-error": f"relative error of the {row.quantity}",
        }
        seen = _seen(source, row)
        panels += [
            SkyPanel(
                values=_scaled(
                    cut_sky(source, replace(row, show=show))[0],
                    1.0 if show == "relative-error" else factor,
                ),
                title=_title(row),
                label=labels[show],
                kind=_KINDS.get(show, "value"),
                group=f"{row.distance}" if show in ("value", "sample") else "",
                seen=seen,
            )
            for show in shows
        ]
    return panels, len(shows)


def compared_panels(
    source: Answers,
    other: Answers,
    cut: Cut,
    distances: Sequence[float],
    factor: float = 1.0,
) -> tuple[list[SkyPanel], int]:
    """Both maps, their difference and that over the first one's std where it is known.

    ``factor`` multiplies the second, to bring it to the first one's band; all else is
    as in `cut_panels`.
    """
    if cut.quantity == "density":
        native: Any = u.Unit(other.unit)
        factor *= float(native.to(u.Unit(source.unit)))
    panels = []
    for distance in distances:
        row = replace(cut, distance=distance, show="value")
        unit, what, label = _labels(source, row)
        first = _scaled(cut_sky(source, row)[0], unit)
        second = _scaled(cut_sky(other, row)[0], unit * factor)
        panels += [
            SkyPanel(
                values=sky,
                title=f"{name}: {_title(row)}",
                label=f"{what} {label}".strip(),
                group=f"{distance}",
            )
            for sky, name in ((first, source.path.name), (second, other.path.name))
        ]
        difference = _joined(np.subtract, first, second)
        panels.append(
            SkyPanel(
                values=difference, title="difference", label=label, kind="difference"
            )
        )
        if not row.on_sphere and (std := _std(source, row)):
            panels.append(
                SkyPanel(
                    values=_joined(ratio, difference, _scaled(std, unit)),
                    title="difference over the first one's std",
                    label="difference / $\\sigma$",
                    kind="deviation",
                )
            )
    return panels, 2


def _labels(source: Answers, cut: Cut) -> tuple[float, str, str]:
    """Factor, statistic and label of a row; an error if the map has nothing there."""
    sky, what = cut_sky(source, cut)
    values = sky(*_everywhere())
    if np.isnan(values).all():
        raise InputError(
            f"{source.path} holds nothing at {cut.distance:g} pc: choose a --distance "
            "inside it"
        )
    if cut.quantity == "extinction":
        return 1.0, what, extinction_label(source.known_band)
    factor, label = density_label(values, source.unit, source.known_band)
    return factor, what, label


def _everywhere() -> tuple[np.ndarray, np.ndarray]:
    """Longitude and latitude of coarse pixels [deg]."""
    pixels = np.arange(healpy.nside2npix(_COARSE))
    return healpy.pix2ang(_COARSE, pixels, nest=True, lonlat=True)


def _seen(source: Answers, cut: Cut) -> Sky | None:
    """Where sight lines pass; ``None`` if that is everywhere, or not known."""
    seen = seen_sky(source, cut)
    return seen if seen is not None and (seen(*_everywhere()) <= 0).any() else None


def _title(cut: Cut) -> str:
    far = length_text(cut.distance)
    if cut.near:
        return f"from {length_text(cut.near)} to {far}"
    return f"at {far}" if cut.quantity == "density" else f"out to {far}"


def _std(source: Answers, cut: Cut) -> Sky | None:
    try:
        return cut_sky(source, replace(cut, show="std"))[0]
    except MissingError:
        return None


def _scaled(sky: Sky, factor: float) -> Sky:
    return lambda lon, lat: factor * sky(lon, lat)


def _joined(operation: Any, first: Sky, second: Sky) -> Sky:
    return lambda lon, lat: operation(first(lon, lat), second(lon, lat))
