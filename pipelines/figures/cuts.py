"""Cuts through a map at a distance: density or extinction, its error, a sample.

Panels stand row by row, one row per distance, alone or beside those of another map.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import healpy
import numpy as np
import torch
from astropy import units as u

from dustmap.functionals import Functionals, PointValues
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.quantiles import summaries
from pipelines.cubes.cube import Cube, truth_extinction
from pipelines.figures.integrals import density_name, ratio, relative_error
from pipelines.figures.sky import Sky, SkyPanel, healpix_sky
from pipelines.figures.style import density_label, extinction_label, length_text
from pipelines.maps.answers import Answers, MissingError
from pipelines.maps.places import Places
from pipelines.model.observations import rays
from pipelines.run.folder import Run

QUANTITIES = ("density", "extinction")
SHOWS = ("value", "std", "relative-error", "sample")
# Rays that are projected at once: bounds memory.
_ROWS = 8192
# HEALPix resolution that is fine enough to know a map's reach and range of values.
_COARSE = 16
_KINDS = {"value": "value", "std": "error", "relative-error": "ratio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is shown of a map.

    Parameters
    ----------
    quantity
        ``density``, or ``extinction`` from the observer.
    show
        ``value``, ``std``, ``relative-error`` or ``sample``.
    distance
        How far out [pc].
    near
        Another end instead of the observer [pc]: the extinction between the two, or
        the mean density. Zero is none.
    sample
        Number of the posterior sample.
    nside
        HEALPix resolution of what is not interpolated between cells; 0.9 degrees suit
        integrals of a cube.
    """

    quantity: str
    show: str = "value"
    distance: float
    near: float = 0.0
    sample: int = 0
    nside: int = 64

    def __post_init__(self) -> None:
        if not 0 <= self.near < self.distance < np.inf:
            raise InputError(
                "a distance interval begins at zero or later and ends after that "
                f"[pc], got {self.near:g} to {self.distance:g}"
            )

    @property
    def on_sphere(self) -> bool:
        """Whether it is the density at the distance itself."""
        return self.quantity == "density" and not self.near

    @property
    def length(self) -> float:
        """Length [pc] by which an integral is divided for a mean density; else 1."""
        pure = self.quantity == "extinction" or self.show == "relative-error"
        return 1.0 if pure or self.on_sphere else self.distance - self.near


def cut_sky(source: Answers, cut: Cut) -> tuple[Sky, str]:
    """Return values of a cut by direction, and the statistic that its value is.

    Values are in mag or in the map's unit of density, NaN outside the map. The
    statistic is ``median``, ``mean`` or, of a truth, empty.

    Raises
    ------
    MissingError
        If the map lacks what the cut is made of.
    """
    if source.fit is not None:
        positive = source.fit.posterior.model.positive and not cut.on_sphere
        factor = 1.0 if cut.show == "relative-error" else source.factor
        values = _scaled(_of_run(source.fit, cut), factor)
        return values, "median" if positive else "mean"
    if cut.show == "sample":
        raise MissingError(f"{source.path} holds no samples: name a run")
    if cut.on_sphere:
        cube = source.cube()
        if cut.show != "value" and "std" not in cube.arrays:
            raise MissingError(f"{source.path} has no std")

        def on_sphere(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
            points = cut.distance * unit_vectors(l, b)
            return _shown(cut, lambda name: cube.sample(name, points), cube.arrays)

        return on_sphere, "mean" if "mean" in cube.arrays else ""
    maps = source.held_maps()
    # Between two distances a cube itself is finer than what was integrated beforehand.
    if maps is not None and not (cut.near and _cube(source) is not None):
        if cut.distance > maps.distances[-1]:
            raise InputError(
                f"{source.path}: the maps end at {maps.distances[-1]:g} pc: choose a "
                f"--distance up to that, got {cut.distance:g} pc"
            )
        ends = np.array([cut.near, cut.distance])
        if not cut.near:
            values = _shown(cut, lambda name: maps.at(name, ends[1:])[0], maps.arrays)
            return healpix_sky(values), "mean" if maps.median is None else "median"
        if cut.show == "value":
            near, far = maps.at("mean", ends)
            return healpix_sky((far - near) / cut.length), "mean"
    if cut.show != "value":
        raise MissingError(
            f"{source.path} has no joint error of what lies between two distances, or "
            "of any integral: name a run"
        )
    cube = source.cube()
    name = density_name(cube.arrays)
    l, b = _pixels(cut.nside)  # noqa: E741
    total = np.zeros(len(l))
    for end, sign in ((cut.distance, 1.0), (cut.near, -1.0)):
        if end:
            reach = np.full(len(l), end)
            total += sign * truth_extinction(cube, l, b, reach, name=name)
    return healpix_sky(total / cut.length), "mean" if name == "mean" else ""


def seen_sky(source: Answers, cut: Cut) -> Sky | None:
    """Return a sky that is positive where sight lines of stars pass.

    Those at the distance, or as far as that; NaN outside the map; ``None`` where it
    does not know of stars.
    """
    if source.fit is not None:

        def of_run(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
            ends = np.full(len(l), cut.distance)
            places = Places(l=l, b=b, distance=ends, shape=l.shape)
            outside = source.reach(places) < ends
            if cut.on_sphere:
                return np.where(outside, np.nan, source.support(places))
            return np.where(outside, np.nan, source.last_star(places) - ends)

        return of_run
    cube, maps = _cube(source), source.held_maps()
    if cut.on_sphere and cube is not None and "support" in cube.arrays:
        return lambda *at: cube.sample("support", cut.distance * unit_vectors(*at))
    if cut.on_sphere or maps is None or maps.last_star is None:
        return None
    known = np.isfinite(maps.at("mean", np.array([cut.near, cut.distance])))
    beyond = maps.last_star - cut.distance
    return healpix_sky(np.where(known.all(axis=0), beyond, np.nan))


def _cube(source: Answers) -> Cube | None:
    try:
        return source.cube()
    except MissingError:
        return None


def _pixels(nside: int) -> tuple[np.ndarray, np.ndarray]:
    """Return longitude and latitude of all pixels [deg]."""
    pixels = np.arange(healpy.nside2npix(nside))
    return healpy.pix2ang(nside, pixels, nest=True, lonlat=True)


def _of_run(run: Run, cut: Cut) -> Sky:
    """Return moments or a sample of the posterior itself, pixel by pixel."""
    posterior, count = run.posterior, len(run.posterior.samples)
    if not count and cut.show != "value":
        raise MissingError(f"{run.path} has no posterior samples: show the value alone")
    if cut.show == "sample" and not 0 <= cut.sample < count:
        raise InputError(
            f"{run.path} has {count} samples: choose one from 0 to {count - 1}, got "
            f"{cut.sample}"
        )

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        hit = healpy.ang2pix(cut.nside, l, b, lonlat=True, nest=True)
        pixels, back = np.unique(hit, return_inverse=True)
        centres = healpy.pix2ang(cut.nside, pixels, lonlat=True, nest=True)
        far = torch.as_tensor(unit_vectors(*centres) * cut.distance)
        inside = run.plan.grid.contains(far)
        full, far = np.full(len(far), np.nan), far[inside]
        if len(far):
            seen: Functionals = PointValues(far)
            if not cut.on_sphere:
                seen = rays(run.plan, far, far * (cut.near / cut.distance))
            if cut.show == "sample":
                sample = posterior.samples[cut.sample]
                parts = [part for _, part in seen.chunks(_ROWS)]
                drawn = [posterior.model.at(part).apply(sample) for part in parts]
                found = torch.cat(drawn).to(torch.float64).numpy(force=True)
            else:
                arrays = summaries(posterior.moments(seen, rows=_ROWS))
                found = _shown(cut, arrays.__getitem__, arrays)
            full[inside.numpy()] = found / cut.length
        return full[back]

    return values


def _shown(
    cut: Cut, take: Callable[[str], np.ndarray], names: Collection[str]
) -> np.ndarray:
    """Return value, std or relative error from the arrays ``names``, read by ``take``.

    The value of a density is its mean, which integrates to the extinction.
    """
    if cut.show == "relative-error":
        return relative_error(take, names)
    if cut.show == "value" and "p50" in names and not cut.on_sphere:
        return take("p50")
    return take("std" if cut.show == "std" else density_name(names))


def cut_panels(
    source: Answers,
    cut: Cut,
    distances: Sequence[float],
    shows: Sequence[str] = (),
) -> tuple[list[SkyPanel], int]:
    """Return panels row by row, and the number in a row.

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
        _, factor, what, label = _value(source, row)
        labels = {
            "value": what,
            "std": f"std of the {label}",
            "sample": f"sample {row.sample} of the {label}",
            "relative-error": f"relative error of the {row.quantity}",
        }
        seen = seen_sky(source, row)
        if seen is not None and not (seen(*_pixels(_COARSE)) <= 0).any():
            seen = None
        for show in shows:
            values, _ = cut_sky(source, replace(row, show=show))
            panels.append(
                SkyPanel(
                    values=_scaled(values, 1.0 if show == "relative-error" else factor),
                    title=_title(row),
                    label=labels[show],
                    kind=_KINDS.get(show, "value"),
                    group=f"{row.distance}" if show in ("value", "sample") else "",
                    seen=seen,
                )
            )
    return panels, len(shows)


def compared_panels(
    source: Answers,
    other: Answers,
    cut: Cut,
    distances: Sequence[float],
    factor: float = 1.0,
) -> tuple[list[SkyPanel], int]:
    """Return both maps, their difference, and that over the first one's std if known.

    ``factor`` multiplies the second, to bring it to the first one's band; all else is
    as in `cut_panels`.
    """
    if cut.quantity == "density":
        native: Any = u.Unit(other.unit)
        factor *= float(native.to(u.Unit(source.unit)))
    panels = []
    for distance in distances:
        row = replace(cut, distance=distance, show="value")
        values, unit, what, label = _value(source, row)
        first = _scaled(values, unit)
        second = _scaled(cut_sky(other, row)[0], unit * factor)
        for sky, name in ((first, source.path.name), (second, other.path.name)):
            title = f"{name}: {_title(row)}"
            panels.append(
                SkyPanel(values=sky, title=title, label=what, group=f"{distance}")
            )
        apart = _joined(np.subtract, first, second)
        kind = "difference"
        panels.append(SkyPanel(values=apart, title=kind, label=label, kind=kind))
        if not row.on_sphere and (std := _std(source, row)):
            panels.append(
                SkyPanel(
                    values=_joined(ratio, apart, _scaled(std, unit)),
                    title="difference over the first one's std",
                    label="difference / $\\sigma$",
                    kind="deviation",
                )
            )
    return panels, 2


def _value(source: Answers, cut: Cut) -> tuple[Sky, float, str, str]:
    """Return the values of a row, the factor to what is shown, and two labels.

    The first label names the statistic. An error if the map has nothing there.
    """
    sky, what = cut_sky(source, cut)
    values, factor, label = sky(*_pixels(_COARSE)), 1.0, ""
    if np.isnan(values).all():
        raise InputError(
            f"{source.path} holds nothing at {cut.distance:g} pc: choose a --distance "
            "inside it"
        )
    if cut.quantity == "extinction":
        label = extinction_label(source.known_band)
    else:
        factor, label = density_label(values, source.unit, source.known_band)
    return sky, factor, f"{what} {label}".strip(), label


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
