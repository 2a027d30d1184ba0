"""The density in a plane: its value, its std, and its relative error."""

from __future__ import annotations

import numpy as np

from pipelines.figures.box import Panel, Plane, draw_panels, nearest, plane_of
from pipelines.figures.integrals import density_name, relative_error
from pipelines.figures.labels import band_of, density_label
from pipelines.figures.page import DOUBLE, Page
from pipelines.figures.scales import colour_scale
from pipelines.figures.style import signed_text
from pipelines.maps.cube import Cube


def density_slice(
    cube: Cube,
    truth: Cube | None = None,
    *,
    axis: str = "z",
    at: float = 0.0,
    width: float = DOUBLE,
    log: bool = False,
    band: str | None = None,
) -> Page:
    """Draw the density in the plane of cells nearest to ``axis = at``.

    Truth (if given), map, std and relative error. The map is the median where the cube
    has it, else the mean. Truth and map have one colour scale. Pale and hatched is what
    no sight line passes through: there the map is its prior, and does not set colours.

    Parameters
    ----------
    axis, at
        ``x``, ``y`` or ``z``, and where on it [pc].
    width
        Of the page [mm].
    log
        Logarithmic colours for density and std.
    band
        Name of the extinction; that of the provenance if ``None``.

    Raises
    ------
    ValueError
        If ``at`` lies outside the cube.
    """

    def take(name: str) -> np.ndarray:
        return plane_of(cube, name, axis, at)

    name, plane = density_name(cube), Plane(cube=cube, along=axis)
    seen = take("support") > 0 if "support" in cube.arrays else None
    named = band_of(cube.meta) if band is None else band
    factor, label = density_label(take(name), cube.unit, named)
    maps = [(cube, name, "median " if name == "p50" else "")]
    if truth is not None:
        maps.insert(0, (truth, density_name(truth), "true "))
    images = [plane_of(one, array, axis, at) * factor for one, array, _ in maps]
    # A truth's own grid may be another: it is known everywhere.
    shown = seen if truth is None else None
    scale = colour_scale("value", *images, seen=shown, log=log)
    panels = [
        Panel(
            plane=Plane(cube=one, along=axis),
            image=image,
            scale=scale,
            label=f"{what}{label}",
            seen=seen if one is cube else None,
        )
        for (one, _, what), image in zip(maps, images)
    ]
    if "std" in cube.arrays:
        factor, spread = density_label(take("std"), cube.unit, "", "std of the density")
        relative = "std of ln(density)" if "p16" in cube.arrays else "std / density"
        for kind, image, label in (
            ("error", take("std") * factor, spread),
            ("ratio", relative_error(take, cube.arrays), relative),
        ):
            limits = seen if kind == "error" else None
            scale = colour_scale(kind, image, seen=limits, log=log)
            panels.append(
                Panel(plane=plane, image=image, scale=scale, label=label, seen=seen)
            )
    place = getattr(cube, axis)[nearest(cube, axis, at)]
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    notes = [f"${axis}$ = {signed_text(place)} pc"]
    return draw_panels(panels, notes, width=width, columns=columns)
