"""Cumulative extinction over the whole sky, beside its std."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.cubes.sky import SkyMaps, sky_outside
from pipelines.figures.integrals import chosen, extinction_panels
from pipelines.figures.page import DOUBLE, Page
from pipelines.figures.skypanels import (
    UNSEEN,
    Sky,
    SkyPanel,
    healpix_sky,
    sky_panels,
)
from pipelines.figures.style import band_of, length_text

_DISTANCES = 3


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
        As in `pipelines.figures.planes.face_on`, for each distance.
    dpi
        How finely the sky is sampled.

    Raises
    ------
    ValueError
        If the maps have no such distance.
    MissingError
        If there is no such panel.
    """
    named = band_of(skymaps.meta)
    default = ("mean" if skymaps.median is None else "median", "std")
    indices, panels = _chosen(skymaps.distances, distances), []
    for index in indices:
        arrays = {name: array[index] for name, array in skymaps.arrays.items()}
        shown = chosen(extinction_panels(arrays, named), default, panel)
        panels += [
            SkyPanel(
                values=healpix_sky(image, smooth=True),
                title=f"out to {length_text(float(skymaps.distances[index]))}",
                label=label,
                kind=kind,
                seen=_seen(skymaps, index),
                colours=colours if number == 0 else {},
            )
            for number, (kind, image, label) in enumerate(shown)
        ]
    notes = []
    outside = sky_outside(skymaps.mean[indices], skymaps.distances[indices])
    if outside:
        notes.append(f"grey: outside the map, {', '.join(outside)}")
    if any(panel.seen is not None for panel in panels):
        notes.append(UNSEEN)
    return sky_panels(panels, width=width, log=log, dpi=dpi, notes=notes)


def _seen(skymaps: SkyMaps, index: int) -> Sky | None:
    """How much further than a distance stars look [pc]; ``None`` if they all do."""
    known = np.isfinite(skymaps.mean[index])
    if skymaps.last_star is None:
        return None
    beyond = skymaps.last_star - skymaps.distances[index]
    if (beyond[known] > 0).all():
        return None
    return healpix_sky(np.where(known, beyond, np.nan))


def _chosen(present: np.ndarray, wanted: Sequence[float] | None) -> list[int]:
    """Indices of the wanted distances among those present."""
    if wanted is None:
        count = len(present)
        spread = np.linspace(0, count - 1, min(count, _DISTANCES))
        return [int(i) for i in np.unique(spread.round())]
    near = np.isclose(present, np.asarray(wanted)[:, None])
    if absent := [d for d, found in zip(wanted, near) if not found.any()]:
        raise ValueError(
            f"there is no map out to {absent[0]:g} pc: there are those to "
            f"{', '.join(f'{d:g}' for d in present)} pc"
        )
    return near.argmax(axis=1).tolist()
