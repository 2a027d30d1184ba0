"""The density in a plane: its value, its std, and how large the one is in the other."""

from __future__ import annotations

from functools import partial

import numpy as np

from pipelines.figures.box import Panel, Plane, array_axis, draw_panels
from pipelines.figures.integrals import density_name
from pipelines.figures.labels import band_of, density_label
from pipelines.figures.page import DOUBLE, Page
from pipelines.figures.scales import (
    error_scale,
    log_scale,
    ratio_scale,
    scale_where,
    signed_scale,
)
from pipelines.figures.style import signed_text
from pipelines.maps.cube import Cube

_RATIO = "std / density"


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
    named = band_of(cube.meta) if band is None else band
    panels = _panels(cube, truth, axis, at, log=log, band=named)
    note = f"${axis}$ = {signed_text(getattr(cube, axis)[_index(cube, axis, at)])} pc"
    across = min(len(panels), 3 if len(panels) != 4 else 2)
    return draw_panels(panels, [note], width=width, across=across)


def _panels(
    cube: Cube, truth: Cube | None, axis: str, at: float, *, log: bool, band: str
) -> list[Panel]:
    name = density_name(cube)
    value = plane_of(cube, name, axis, at)
    factor, label = density_label(value, cube.unit, band)
    planes = [] if truth is None else [(truth, density_name(truth), "true ")]
    planes.append((cube, name, "median " if name == "p50" else ""))
    images = [plane_of(one, array, axis, at) * factor for one, array, _ in planes]
    seen = None
    if "support" in cube.arrays:
        seen = plane_of(cube, "support", axis, at) > 0
    # A truth's own grid may be another: it is known everywhere.
    own = seen if truth is None else None
    scale = scale_where(log_scale if log else signed_scale, own, *images)
    panels = [
        Panel(
            plane=Plane.of(one, axis),
            image=image,
            scale=scale,
            label=f"{what}{label}",
            seen=seen if one is cube else None,
        )
        for (one, _, what), image in zip(planes, images)
    ]
    if "std" in cube.arrays:
        std = plane_of(cube, "std", axis, at)
        own, label = density_label(std, cube.unit, "", "std of the density")
        make = partial(log_scale, spread=True) if log else error_scale
        spread = scale_where(make, seen, std * own)
        ratio, what = _relative(cube, axis, at)
        plane = panels[-1].plane
        panels += [
            Panel(plane=plane, image=std * own, scale=spread, label=label, seen=seen),
            Panel(
                plane=plane,
                image=ratio,
                scale=ratio_scale(ratio),
                label=what,
                seen=seen,
            ),
        ]
    return panels


def relative_names(cube: Cube) -> tuple[str, str, bool]:
    """Arrays whose ratio tells how large the error is, and whether it is a logarithm.

    Of a log-normal density that is ``ln(p84 / p16) / 2``, the std of the logarithm: std
    over median has a long tail that tells little.
    """
    if {"p16", "p84"} <= set(cube.arrays):
        return "p84", "p16", True
    return "std", "mean", False


def _relative(cube: Cube, axis: str, at: float) -> tuple[np.ndarray, str]:
    """How large the error is in the value, and what that is called."""
    *names, log = relative_names(cube)
    top, bottom = (plane_of(cube, name, axis, at) for name in names)
    known = bottom > 0
    ratio = np.where(known, top / np.where(known, bottom, 1.0), np.nan)
    return (np.log(ratio) / 2, "std of ln(density)") if log else (ratio, _RATIO)


def plane_of(cube: Cube, name: str, axis: str, at: float) -> np.ndarray:
    """One plane of an array, shape (up, across)."""
    taken = cube.arrays[name].take(_index(cube, axis, at), axis=array_axis(axis))
    return np.asarray(taken, dtype=np.float64)


def _index(cube: Cube, axis: str, at: float) -> int:
    centres = getattr(cube, axis)
    half = (centres[1] - centres[0]) / 2
    if not centres[0] - half <= at <= centres[-1] + half:
        raise ValueError(
            f"the map spans {centres[0] - half:g} to {centres[-1] + half:g} pc along "
            f"{axis}: there is no slice at {at:g} pc"
        )
    return int(np.abs(centres - at).argmin())
