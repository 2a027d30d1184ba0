"""Arrays of a map for figures: density, relative error, integrals, planes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
from astropy import units as u

from pipelines.cubes.cube import AXES, Cube
from pipelines.cubes.sky import Ends
from pipelines.figures.style import extinction_label
from pipelines.maps.answers import MissingError

Item = TypeVar("Item")


class Shown(NamedTuple):
    """The kind of `colour_scale` of a panel, its image and its label."""

    kind: str
    image: np.ndarray
    label: str


def density_name(names: Collection[str]) -> str:
    """Return the array of a map's density for figures: its mean, or a truth.

    Only the mean integrates to the extinction of the map: medians of log-normals with
    long tails integrate to a fraction of it.
    """
    for name in ("mean", "density"):
        if name in names:
            return name
    raise ValueError(f"the map has arrays {sorted(names)}; expected mean or density")


def extinction_panels(arrays: Mapping[str, np.ndarray], band: str) -> dict[str, Shown]:
    """Return images of an integrated extinction [mag] by panel.

    ``arrays`` are some of ``mean``, ``std`` and quantiles; those without finite values
    are skipped.
    """
    known = {
        panel: Shown(kind, arrays[name], extinction_label(band, what))
        for panel, name, kind, what in (
            ("mean", "mean", "value", "mean extinction"),
            ("median", "p50", "value", "median extinction"),
            ("truth", "density", "value", "extinction"),
            ("std", "std", "error", "std of the extinction"),
        )
        if name in arrays and np.isfinite(arrays[name]).any()
    }
    if "std" in known:
        what = "std of ln(extinction)" if "p16" in arrays else "std / extinction"
        known["relative error"] = Shown("ratio", relative_error(arrays), what)
    return known


def chosen(
    known: Mapping[str, Item], default: Collection[str], panel: str | None
) -> list[Item]:
    """Return the panel of this name, or by default the available ones of ``default``.

    Raises `MissingError` if the figure has no such panel.
    """
    if panel is None:
        return [known[name] for name in default if name in known]
    if (name := panel.replace("-", " ")) not in known:
        raise MissingError(
            f"there is no panel {panel!r} of this figure: choose --panel from "
            f"{', '.join(known)}"
        )
    return [known[name]]


def ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """Divide; NaN where the denominator is not positive."""
    known = bottom > 0
    return np.where(known, top / np.where(known, bottom, 1.0), np.nan)


def relative_error(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the relative error from arrays of statistics.

    It is ``ln(p84 / p16) / 2``, the std of the logarithm, for a log-normal (the tail
    dominates std over median); else std over mean.
    """
    if "p16" in arrays and "p84" in arrays:
        return np.log(ratio(arrays["p84"], arrays["p16"])) / 2
    return ratio(arrays["std"], arrays["mean"])


def prefers_relative_error(
    arrays: Mapping[str, np.ndarray], seen: np.ndarray | None
) -> bool:
    """Return true if a relative error is more informative than the std.

    That holds if half the ``seen`` cells have a std above half the median: the tail of
    a skew posterior then dominates its std.
    """
    if not {"p16", "p50", "p84", "std"} <= set(arrays):
        return False
    share = ratio(arrays["std"], arrays["p50"])
    shown = share[seen] if seen is not None and seen.any() else share
    shown = shown[np.isfinite(shown)]
    return bool(shown.size) and float(np.median(shown)) > 0.5


def array_axis(along: str) -> int:
    """Return which axis of a cube's arrays lies along x, y or z."""
    return "zyx".index(along)


def crossed(cube: Cube, along: str, ends: Ends) -> np.ndarray | None:
    """Return a mask of integrals with sight lines; ``None`` if unknown."""
    if "support" not in cube.arrays:
        return None
    centres, axis = getattr(cube, along), array_axis(along)
    step = centres[1] - centres[0]
    held = np.flatnonzero((centres > ends[0] - step) & (centres < ends[1] + step))
    return cube.arrays["support"].take(held, axis=axis).sum(axis=axis) > 0


def nearest(cube: Cube, axis: str, at: float) -> int:
    """Return the index of the cells nearest to ``axis = at`` [pc].

    Raises `ValueError` if ``at`` lies outside the cube.
    """
    centres = getattr(cube, axis)
    half = (centres[1] - centres[0]) / 2
    if not centres[0] - half <= at <= centres[-1] + half:
        raise ValueError(
            f"the map spans {centres[0] - half:g} to {centres[-1] + half:g} pc along "
            f"{axis}: there is no slice at {at:g} pc, choose one within"
        )
    return int(np.abs(centres - at).argmin())


def plane_of(cube: Cube, name: str, axis: str, at: float) -> np.ndarray:
    """Return the cells nearest to ``axis = at`` [pc], shape (up, across)."""
    plane = cube.arrays[name].take(nearest(cube, axis, at), axis=array_axis(axis))
    return np.asarray(plane, dtype=np.float64)


def plane_seen(cube: Cube, axis: str, at: float) -> np.ndarray | None:
    """Return a mask of a plane's cells with sight lines; ``None`` if unknown."""
    known = "support" in cube.arrays
    return plane_of(cube, "support", axis, at) > 0 if known else None


def finest_at(cube: Cube, axis: str, at: float) -> Cube:
    """Return three planes around ``axis = at``, in the finest cells of any level there.

    A cube of one level is returned unchanged. Beyond a finer level, coarser ones are
    interpolated. Levels with more than 1,500 cells across are too fine for a figure.
    """
    widest = max(np.ptp(a) for a in (cube.x, cube.y, cube.z))
    known = [
        level
        for level in cube.levels
        if getattr(level, axis)[0] <= at <= getattr(level, axis)[-1]
        and widest <= 1500 * min(level.spacing)
    ]
    if len(known) < 2:
        return cube
    axes = {}
    for name, step in zip(AXES, known[-1].spacing, strict=True):
        centres = getattr(cube, name)
        axes[name] = np.arange(centres[0], centres[-1] + 1e-6 * step, step)
        if name == axis:
            middle = round((at - centres[0]) / step)
            around = np.clip(middle, 1, len(axes[name]) - 2) + np.arange(-1, 2)
            axes[name] = axes[name][around]
    planes = replace(cube, **axes, arrays={}, finer=())
    arrays = {name: cube.sample(name, planes.points) for name in cube.arrays}
    return replace(planes, arrays=arrays)


def shared_range(cube: Cube, other: Cube, axis: str) -> Ends:
    """Return the ends of the first one's cells that `regridded` fills, centres [pc].

    Raises `ValueError` if there are fewer than two.
    """
    centres, known = getattr(cube, axis), _averaged(other, cube, axis)[1]
    within = centres[(centres >= known[0]) & (centres <= known[-1])]
    if len(within) < 2:
        others = getattr(other, axis)
        raise ValueError(
            f"the maps have {len(within)} planes of cells in common: one spans "
            f"{centres[0]:g} to {centres[-1]:g} pc in {axis}, the other {others[0]:g} "
            f"to {others[-1]:g} pc"
        )
    return float(within[0]), float(within[-1])


def regridded(other: Cube, cube: Cube) -> Cube:
    """Return the density of another cube at the cells of a first.

    Values are trilinear between cell centres and NaN beyond, in the first one's unit.
    Finer cells of the other are first averaged over cells of the first, so that
    unresolved structure makes no difference.
    """
    values = np.asarray(other.arrays[density_name(other.arrays)], dtype=np.float64)
    axes = {}
    for axis in AXES:
        count, axes[axis] = _averaged(other, cube, axis)
        values = np.lib.stride_tricks.sliding_window_view(
            values, count, axis=array_axis(axis)
        ).mean(axis=-1)
    means = Cube(**axes, arrays={"density": values}, unit=other.unit)
    found = means.sample("density", cube.points)
    found *= u.Unit(other.unit).to(u.Unit(cube.unit))
    return replace(cube, arrays={"density": found}, meta=other.meta)


def _averaged(other: Cube, cube: Cube, axis: str) -> tuple[int, np.ndarray]:
    """Return the number of the other's cells per cell of the first, and centres."""
    centres, coarse = getattr(other, axis), getattr(cube, axis)
    step = centres[1] - centres[0]
    count = min(max(1, round((coarse[1] - coarse[0]) / step)), len(centres) - 1)
    return count, np.lib.stride_tricks.sliding_window_view(centres, count).mean(axis=-1)
