"""The sky in Mollweide's projection; cumulative extinction beside its std."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import healpy
import numpy as np
from matplotlib.figure import Figure

from pipelines.cubes.sky import SkyMaps, sky_outside
from pipelines.figures import style
from pipelines.figures.integrals import chosen, extinction_panels
from pipelines.figures.scales import UNMAPPED, add_bar, colour_scale, veil

Sky = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function of Galactic longitude and latitude [deg]; NaN outside the map."""

# Share of the mean extinction that is the prior's, beyond the last star, where a sky
# map is hatched: about as much as relative errors of the map's own.
SHARE = 0.1
# Least part of the map's directions that it still holds at the last distance drawn.
_LEFT = 0.05
_UNSEEN = "no sight line reaches that far, only the prior"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyPanel:
    """A quantity on the sky, its title, its label and its kind of `colour_scale`.

    Panels of one ``group`` share their scale, which ``colours`` may set. Directions
    with non-positive ``seen`` are pale and hatched.
    """

    values: Sky
    title: str
    label: str
    kind: str = "value"
    group: str = ""
    seen: Sky | None = None
    colours: Mapping[str, Any] = field(default_factory=dict)


@style.styled
def sky_panels(
    panels: Sequence[SkyPanel],
    *,
    columns: int = 2,
    notes: Sequence[str] = (),
    unseen: str = _UNSEEN,
) -> Figure:
    """Draw quantities on the sky side by side, with ``notes`` above.

    Galactic longitude is zero in the middle and grows to the left. ``unseen`` explains
    the hatching.
    """
    columns = min(len(panels), columns)
    if any(panel.seen is not None for panel in panels):
        notes = [*notes, f"pale, hatched: {unseen}"]
    kind = {"aspect": 0.5, "notes": notes, "projection": "mollweide"}
    figure, every = style.page(len(panels), columns, **kind)
    # Edges of cells of half a degree, to the right of and above the centre.
    right, up = np.linspace(-180, 180, 721), np.linspace(-90, 90, 361)
    mesh = np.meshgrid(-(right[1:] + right[:-1]) / 2 % 360, (up[1:] + up[:-1]) / 2)
    l, b = (angle.reshape(-1) for angle in mesh)  # noqa: E741
    images = [panel.values(l, b).reshape(mesh[0].shape) for panel in panels]
    for axes, panel, image in zip(every, panels, images):
        alike = [
            other
            for one, other in zip(panels, images)
            if one is panel or (panel.group and one.group == panel.group)
        ]
        scale = colour_scale(panel.kind, *alike, **panel.colours)
        edges = np.radians(right), np.radians(up)
        look = {**scale.look, "rasterized": True, "zorder": 0}
        drawn = axes.pcolormesh(*edges, scale.shown(image), **look)
        axes.set_facecolor(UNMAPPED)
        axes.grid(color="black", linewidth=0.3, alpha=0.45)
        axes.set_longitude_grid_ends(90)
        around, across = np.arange(120, -121, -60), np.arange(-60, 61, 30)
        names = [f"{degrees % 360}°" for degrees in around]
        edge = {"fontsize": style.SMALL - 1, "path_effects": style.outline(1.5)}
        axes.set_xticks(np.radians(-around), names, **edge)
        axes.set_yticks(np.radians(across), [f"{b}°" for b in across], **edge)
        axes.set_title(panel.title, pad=3.5)
        label = style.wrapped(panel.label, style.PAGE / columns)
        add_bar(axes, drawn, scale, label, below=True, share=0.66)
        if panel.seen is not None:
            shown = panel.seen(l, b).reshape(image.shape)
            veil(axes, np.isfinite(shown) & (shown <= 0), *edges)
    return figure


def healpix_sky(pixels: np.ndarray) -> Sky:
    """Return a NESTED Galactic HEALPix map as a function of direction.

    It is bilinear between pixels; beside NaN pixels it is the nearest pixel's value.
    """
    nside = healpy.npix2nside(len(pixels))

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        nearest = pixels[healpy.ang2pix(nside, l, b, lonlat=True, nest=True)]
        between = healpy.get_interp_val(pixels, l, b, nest=True, lonlat=True)
        return np.where(np.isfinite(nearest) & np.isfinite(between), between, nearest)

    return values


def sky(
    skymaps: SkyMaps,
    *,
    distances: Sequence[float] | None = None,
    panel: str | None = None,
    **colours: Any,
) -> Figure:
    """Draw the cumulative extinction and its std, out to some distances.

    The value is the median if available, else the mean. Directions in which the prior
    has much of the mean are pale and hatched; of maps that end with their box those
    with the last star nearer than the distance, if the maps hold it.

    ``distances`` [pc] are those to draw, by default at most three, including the last
    that is not all but grey; ``panel`` and ``colours`` are as in
    `pipelines.figures.box.face_on`, for each one.

    Raises `ValueError` if the maps have no such distance; `MissingError` if there is no
    such panel.
    """
    present = skymaps.distances
    if distances is None:
        held = np.isfinite(skymaps.mean).sum(axis=1)
        last = int(np.flatnonzero(held >= _LEFT * held[0])[-1])
        spread = np.linspace(0, last, min(last + 1, 3))
        indices = np.unique(spread.round()).astype(int)
    else:
        near = np.isclose(present, np.asarray(distances)[:, None])
        if absent := [d for d, found in zip(distances, near) if not found.any()]:
            raise ValueError(
                f"there is no map out to {absent[0]:g} pc: choose from "
                f"{', '.join(f'{d:g}' for d in present)} pc"
            )
        indices = near.argmax(axis=1)
    default = ("mean" if skymaps.median is None else "median", "std")
    panels = []
    for index in indices:
        arrays = {name: array[index] for name, array in skymaps.arrays.items()}
        shown = extinction_panels(arrays, style.band_of(skymaps.meta))
        margin = np.ones(skymaps.mean.shape[1])
        if skymaps.prior_share is not None:
            margin = SHARE - skymaps.prior_share[index]
        elif skymaps.last_star is not None:
            margin = skymaps.last_star - present[index]
        margin = np.where(np.isfinite(skymaps.mean[index]), margin, np.nan)
        panels += [
            SkyPanel(
                values=healpix_sky(image),
                title=f"out to {style.length_text(float(present[index]))}",
                label=label,
                kind=kind,
                seen=healpix_sky(margin) if (margin <= 0).any() else None,
                colours=colours if number == 0 else {},
            )
            for number, (kind, image, label) in enumerate(chosen(shown, default, panel))
        ]
    outside = sky_outside(skymaps.mean[indices], present[indices])
    notes = [f"grey: outside the map, {', '.join(outside)}"] if outside else []
    unseen = _UNSEEN
    if skymaps.prior_share is not None:
        assert skymaps.beyond_box is not None
        unseen = f"over {SHARE:.0%} of the mean is the prior's, beyond the last star"
        part = np.where(skymaps.beyond_box, np.nan, 0.0)[indices]
        if continued := sky_outside(part, present[indices]):
            said = ", ".join(continued)
            notes.append(f"outside the box, {said}: the prior's smooth disc goes on")
    return sky_panels(panels, notes=notes, unseen=unseen)
