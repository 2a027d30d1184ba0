"""Cuts through a map at a distance: density or extinction, error, samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import healpy
import numpy as np

from pipelines.base.errors import InputError
from pipelines.figures.integrals import relative_error
from pipelines.figures.sky import Sky, SkyPanel
from pipelines.figures.style import density_label, extinction_label, length_text
from pipelines.maps.answers import Answers, MissingError
from pipelines.maps.places import Places

QUANTITIES = ("density", "extinction")
SHOWS = ("value", "std", "relative-error", "sample")
# HEALPix resolution for estimates of a map's reach and range of values.
_COARSE = 16
_KINDS = {"value": "value", "std": "error", "relative-error": "ratio"}


def cut_sky(
    source: Answers, quantity: str, distance: float, show: str, sample: int = 0
) -> Sky:
    """Return values by direction at a distance [pc], NaN outside the map.

    Densities [mag/pc] are local, extinctions [mag] are from the observer. The value of
    a density is its mean, which integrates to the extinction; that of an extinction is
    its median if available.

    Raises `MissingError` if the map lacks the quantity.
    """
    integrated = quantity == "extinction"
    kinds, names = _kinds(source, quantity), ["std"] if show == "std" else []
    if show == "value":
        names = [_value(source, quantity)]
    elif show == "relative-error":
        names = ["p16", "p84"] if "p16" in kinds else ["mean", "std"]
    if missing := set(names) - set(kinds):
        raise MissingError(
            f"{source.path} has no {' and '.join(sorted(missing))} of the {quantity}: "
            "open a run"
        )
    if show == "sample":
        count = 0 if source.fit is None else len(source.fit.posterior.samples)
        if not sample < count:
            raise MissingError(
                f"{source.path} holds {count} samples, and none of number {sample}: "
                "open a run with more"
            )

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        places = _places(l, b, distance)
        if show == "sample":
            return source.samples(places, integrated=integrated)[:, sample]
        found: Any = source.moments(places, names, integrated=integrated)
        return relative_error(found) if len(names) > 1 else found[names[0]]

    return values


def seen_sky(source: Answers, quantity: str, distance: float) -> Sky:
    """Return a sky with positive values on sight lines of stars, NaN outside the map.

    A density counts stars at the distance [pc], an extinction stars up to it.
    """

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        places = _places(l, b, distance)
        if quantity == "density":
            inside = source.box.contains(places.positions())
            return np.where(inside, source.support(places), np.nan)
        beyond = source.last_star(places) - distance
        return np.where(source.reach(places) >= distance, beyond, np.nan)

    return values


def cut_panels(
    source: Answers,
    quantity: str,
    distances: Sequence[float],
    shows: Sequence[str] = (),
    *,
    sample: int = 0,
    nside: int = 64,
) -> tuple[list[SkyPanel], int]:
    """Return panels row by row, one row per distance [pc], and the number in a row.

    Parameters
    ----------
    shows
        Panels of a row from `SHOWS`; by default the value and, for an extinction, the
        std if known: that of a density is of points, not of cells.
    sample
        Number of the posterior sample.
    nside
        HEALPix resolution of all but the density of a stored map: 0.9 degrees suit
        integrals of a cube.

    Raises
    ------
    InputError
        If the map has no values at a distance, or lacks a quantity.
    """
    if not shows:
        joint = quantity == "extinction" and "std" in _kinds(source, quantity)
        shows = ["value", "std"] if joint else ["value"]
    what, panels = "median" if _value(source, quantity) == "p50" else "mean", []
    pixels = np.arange(healpy.nside2npix(_COARSE))
    sphere = healpy.pix2ang(_COARSE, pixels, nest=True, lonlat=True)
    for distance in distances:
        values = cut_sky(source, quantity, distance, "value")(*sphere)
        if np.isnan(values).all():
            raise InputError(
                f"{source.path} holds nothing at {distance:g} pc: choose a --distance "
                "inside the map"
            )
        factor, label = 1.0, extinction_label(source.known_band)
        if quantity == "density":
            factor, label = density_label(values, "mag pc-1", source.known_band)
        labels = {
            "value": f"{what} {label}",
            "std": f"std of the {label}",
            "sample": f"sample {sample} of the {label}",
            "relative-error": f"relative error of the {quantity}",
        }
        seen = seen_sky(source, quantity, distance)
        unseen = (seen(*sphere) <= 0).any()
        for show in shows:
            sky = cut_sky(source, quantity, distance, show, sample)
            if source.fit is not None or quantity == "extinction":
                sky = _pixelated(sky, nside)
            panels.append(
                SkyPanel(
                    values=_scaled(sky, 1.0 if show == "relative-error" else factor),
                    title=f"{'at' if quantity == 'density' else 'out to'} "
                    f"{length_text(distance)}",
                    label=labels[show],
                    kind=_KINDS.get(show, "value"),
                    group=f"{distance}" if show in ("value", "sample") else "",
                    seen=_pixelated(seen, nside) if unseen else None,
                )
            )
    return panels, len(shows)


def _kinds(source: Answers, quantity: str) -> Sequence[str]:
    """Return the moments that a map holds, as many as a Gaussian fit has."""
    if source.fit is not None and not source.fit.plan.is_lognormal:
        return ("mean", "std")
    return source.kinds(integrated=quantity == "extinction")


def _value(source: Answers, quantity: str) -> str:
    kinds = _kinds(source, quantity)
    return "p50" if quantity == "extinction" and "p50" in kinds else "mean"


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
