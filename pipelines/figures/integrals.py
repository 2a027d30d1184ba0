"""Arrays that figures show of a map: its density, relative error, integrals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from astropy import units as u
from scipy.interpolate import make_interp_spline

from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Ends
from pipelines.figures.box import array_axis
from pipelines.figures.style import extinction_label
from pipelines.maps.answers import MissingError

T = TypeVar("T")
# Panels of an extinction: array, kind of colours, what it is.
_PANELS = {
    "mean": ("mean", "value", "mean extinction"),
    "median": ("p50", "value", "median extinction"),
    "truth": ("density", "value", "extinction"),
    "std": ("std", "error", "std of the extinction"),
}
# A std over the median above which the std tells of a tail.
_TAIL = 0.5


class Shown(NamedTuple):
    """What a panel draws: its kind of `colour_scale`, its image and its label."""

    kind: str
    image: np.ndarray
    label: str


def density_name(names: Collection[str]) -> str:
    """Return the array that is shown as a map's density: its mean, or a truth.

    The mean alone integrates to the extinction of the map: medians of cells, of
    log-normals with long tails, integrate to a fraction of it.
    """
    for name in ("mean", "density"):
        if name in names:
            return name
    raise ValueError(f"the map has arrays {sorted(names)}; expected mean or density")


def extinction_panels(arrays: Mapping[str, np.ndarray], band: str) -> dict[str, Shown]:
    """Collect what can be drawn of an integrated extinction [mag], by panel.

    ``arrays`` are some of ``mean``, ``std`` and quantiles; those without a number are
    left out.
    """
    known = {
        panel: Shown(kind, arrays[name], extinction_label(band, what))
        for panel, (name, kind, what) in _PANELS.items()
        if name in arrays and np.isfinite(arrays[name]).any()
    }
    if "std" in known:
        what = "std of ln(extinction)" if "p16" in arrays else "std / extinction"
        error = relative_error(arrays.__getitem__, arrays)
        known["relative error"] = Shown("ratio", error, what)
    return known


def chosen(
    known: Mapping[str, T], default: Collection[str], panel: str | None
) -> list[T]:
    """Return the panel of this name, or without one those of ``default`` there are.

    Raises
    ------
    MissingError
        If the figure has no such panel.
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
    """NaN where the denominator is not positive."""
    known = bottom > 0
    return np.where(known, top / np.where(known, bottom, 1.0), np.nan)


def relative_error(
    take: Callable[[str], np.ndarray], names: Collection[str]
) -> np.ndarray:
    """Relative error of the arrays ``names``, which ``take`` reads.

    Of a log-normal ``ln(p84 / p16) / 2``, the std of the logarithm (std over median
    has a long tail that tells little); else std over mean.
    """
    if "p16" in names and "p84" in names:
        return np.log(ratio(take("p84"), take("p16"))) / 2
    return ratio(take("std"), take("mean"))


def tells_more(arrays: Mapping[str, np.ndarray], seen: np.ndarray | None) -> bool:
    """Whether a relative error of these arrays says more than their std.

    It does where half of what is ``seen`` has a std above half the median: the std of
    a skew posterior is then that of its tail.
    """
    if not {"p16", "p50", "p84", "std"} <= set(arrays):
        return False
    share = ratio(arrays["std"], arrays["p50"])
    shown = share[seen] if seen is not None and seen.any() else share
    shown = shown[np.isfinite(shown)]
    return bool(shown.size) and float(np.median(shown)) > _TAIL


def integral(cube: Cube, name: str, along: str, ends: Ends | None = None) -> np.ndarray:
    """Integrate an array along an axis between two ends [pc], shape (up, across) [mag].

    The density is linear between the cells' centres; without ``ends`` it is integrated
    from the first centre to the last.
    """
    centres = getattr(cube, along)
    array, axis = cube.arrays[name], array_axis(along)
    linear = make_interp_spline(centres, array, k=1, axis=axis, check_finite=False)
    total = linear.integrate(*(ends or (centres[0], centres[-1])))
    return total * (u.Unit(cube.unit) * u.pc).to(u.mag)


def crossed(cube: Cube, along: str, ends: Ends) -> np.ndarray | None:
    """Whether sight lines pass any cell that the integral holds; ``None``: unknown."""
    if "support" not in cube.arrays:
        return None
    centres, axis = getattr(cube, along), array_axis(along)
    step = centres[1] - centres[0]
    held = np.flatnonzero((centres > ends[0] - step) & (centres < ends[1] + step))
    return cube.arrays["support"].take(held, axis=axis).sum(axis=axis) > 0
