"""Density on spheres around the Sun: mean, std, relative error, or a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import healpy
import numpy as np

from pipelines.base.errors import InputError
from pipelines.figures.integrals import relative_error
from pipelines.figures.sky import Sky, SkyPanel
from pipelines.figures.style import density_label, length_text
from pipelines.maps.answers import Answers, MissingError
from pipelines.maps.places import Places

# Panels, with their kinds of colours.
SHOWS = {"value": "value", "std": "error", "relative-error": "ratio", "sample": "value"}


def density_sky(source: Answers, distance: float, show: str, sample: int = 0) -> Sky:
    """Return densities [mag/pc] by direction at a distance [pc], NaN outside the map.

    The value is the mean, which integrates to the extinction. Raises `MissingError` if
    the map lacks the quantity.
    """
    held = source.kinds(integrated=False)
    names = {"value": ["mean"], "std": ["std"], "sample": []}
    names["relative-error"] = ["p16", "p84"] if "p16" in held else ["mean", "std"]
    needed = names[show]
    if missing := set(needed) - set(held):
        raise MissingError(
            f"{source.path} has no {' and '.join(sorted(missing))} of the density: "
            "open a run"
        )
    if show == "sample":
        count = source.sample_count
        if not sample < count:
            raise MissingError(
                f"{source.path} holds {count} samples, and none of number {sample}: "
                "open a run with more"
            )

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        places = _places(l, b, distance)
        if show == "sample":
            return source.samples(places, integrated=False)[:, sample]
        found: Any = source.moments(places, needed, integrated=False)
        return relative_error(found) if len(needed) > 1 else found[needed[0]]

    return values


def seen_sky(source: Answers, distance: float) -> Sky:
    """Return a sky, positive where sight lines cross the cells at a distance [pc].

    It is NaN outside the map.
    """

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        places = _places(l, b, distance)
        inside = source.box.contains(places.positions())
        return np.where(inside, source.support(places), np.nan)

    return values


def density_panels(
    source: Answers,
    distances: Sequence[float],
    shows: Sequence[str] = ("value",),
    *,
    sample: int = 0,
    nside: int = 64,
) -> list[SkyPanel]:
    """Return panels row by row, one row per distance [pc].

    The panels of a row are those that it ``shows``, from `SHOWS`; ``sample`` is the
    number of the posterior sample, ``nside`` the HEALPix resolution of sight lines.

    Raises `InputError` if the map has no values at a distance, or lacks a quantity.
    """
    panels, coarse = [], 16
    # Coarse pixels show a map's reach and its range of values.
    pixels = np.arange(healpy.nside2npix(coarse))
    sphere = healpy.pix2ang(coarse, pixels, nest=True, lonlat=True)
    for distance in distances:
        values = density_sky(source, distance, "value")(*sphere)
        if np.isnan(values).all():
            raise InputError(
                f"{source.path} holds nothing at {distance:g} pc: choose a --distance "
                "inside the map"
            )
        factor, label = density_label(values, "mag pc-1", source.known_band)
        labels = {
            "value": f"mean {label}",
            "std": f"std of the {label}",
            "sample": f"sample {sample} of the {label}",
            "relative-error": "relative error of the density",
        }
        seen = seen_sky(source, distance)
        unseen = (seen(*sphere) <= 0).any()
        for show in shows:
            sky = density_sky(source, distance, show, sample)
            panels.append(
                SkyPanel(
                    values=_scaled(sky, 1.0 if show == "relative-error" else factor),
                    title=f"at {length_text(distance)}",
                    label=labels[show],
                    kind=SHOWS[show],
                    group=f"{distance}" if show in ("value", "sample") else "",
                    seen=_pixelated(seen, nside) if unseen else None,
                )
            )
    return panels


def _places(l: np.ndarray, b: np.ndarray, distance: float) -> Places:  # noqa: E741
    return Places(l=l, b=b, distance=np.full(len(l), distance), shape=l.shape)


def _pixelated(sky: Sky, nside: int) -> Sky:
    """Return the values at the centres of HEALPix pixels."""

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        hit = healpy.ang2pix(nside, l, b, lonlat=True, nest=True)
        pixels, back = np.unique(hit, return_inverse=True)
        return sky(*healpy.pix2ang(nside, pixels, lonlat=True, nest=True))[back]

    return values


def _scaled(sky: Sky, factor: float) -> Sky:
    return lambda lon, lat: factor * sky(lon, lat)
