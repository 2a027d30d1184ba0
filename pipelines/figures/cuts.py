"""Cuts through a map at a distance: density or extinction, its error, a sample."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import healpy
import numpy as np
import torch

from dustmap.functionals import Functionals, PointValues
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.quantiles import summaries
from pipelines.cubes.cube import Cube, truth_extinction
from pipelines.cubes.sky import SkyMaps
from pipelines.figures.integrals import density_name, relative_error
from pipelines.figures.skypanels import Sky, healpix_sky
from pipelines.maps.answers import Answers, MissingError
from pipelines.maps.sky import last_star
from pipelines.model.observations import rays
from pipelines.run.folder import Run

QUANTITIES = ("density", "extinction")
SHOWS = ("value", "std", "relative-error", "sample")
# Rays that are projected at once: bounds memory.
_ROWS = 8192


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
        """What integrals are divided by [pc]; 1 for an extinction."""
        return self.distance - self.near if self.quantity == "density" else 1.0


def cut_sky(source: Answers, cut: Cut) -> tuple[Sky, str]:
    """Values of a cut by direction, and which statistic of the posterior its value is.

    Values are in mag or in the map's unit of density, NaN outside the map. The
    statistic is ``median``, ``mean`` or, of a truth, empty.

    Raises
    ------
    MissingError
        If the map lacks what the cut is made of.
    """
    if source.fit is not None:
        positive = source.fit.posterior.model.positive and not cut.on_sphere
        values, pure = _of_run(source.fit, cut), cut.show == "relative-error"
        factor = 1.0 if pure else source.factor
        return lambda *at: factor * values(*at), "median" if positive else "mean"
    if cut.show == "sample":
        raise MissingError(f"{source.path} holds no samples: name a run")
    if cut.on_sphere:
        return _of_cube(source, cut)
    maps = source.held_maps()
    # Between two distances a cube itself is finer than what was integrated beforehand.
    if maps is not None and not (cut.near and _cube(source) is not None):
        median = maps.median is not None and not cut.near
        values = healpix_sky(_of_maps(source, maps, cut))
        return values, "median" if median else "mean"
    if cut.show != "value":
        raise _no_joint(source)
    return _integrated(source, cut)


def seen_sky(source: Answers, cut: Cut) -> Sky | None:
    """Positive where sight lines of stars pass: at the distance, or as far as that.

    NaN outside the map; ``None`` where it does not know of stars.
    """
    if source.fit is not None:
        return partial(_seen_by, source.fit, cut)
    cube, maps = _cube(source), source.held_maps()
    if cut.on_sphere and cube is not None and "support" in cube.arrays:
        return lambda *place: cube.sample(
            "support", cut.distance * unit_vectors(*place)
        )
    if cut.on_sphere or maps is None or maps.last_star is None:
        return None
    value = _of_maps(source, maps, cut)
    return healpix_sky(np.where(np.isnan(value), value, maps.last_star - cut.distance))


def _cube(source: Answers) -> Cube | None:
    try:
        return source.cube()
    except MissingError:
        return None


def _seen_by(run: Run, cut: Cut, l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
    """Length of sight lines in a cell, or how much further stars look [pc]."""
    towards = unit_vectors(l, b)
    if cut.on_sphere:
        seen = run.support_at(cut.distance * towards)
    else:
        seen = last_star(run, towards) - cut.distance
    return np.where(run.box.exits(towards) < cut.distance, np.nan, seen)


def _of_cube(source: Answers, cut: Cut) -> tuple[Sky, str]:
    """The density on the sphere, or its error."""
    cube = source.cube()

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        points = cut.distance * unit_vectors(l, b)
        return _shown(cut, lambda name: cube.sample(name, points), cube.arrays)

    if cut.show != "value" and "std" not in cube.arrays:
        raise MissingError(f"{source.path} has no std")
    return values, "mean" if "mean" in cube.arrays else ""


def _of_maps(source: Answers, maps: SkyMaps, cut: Cut) -> np.ndarray:
    """By pixel; between two distances only the mean is known."""
    if cut.distance > maps.distances[-1]:
        raise InputError(
            f"{source.path}: the maps end at {maps.distances[-1]:g} pc: choose a "
            f"--distance up to that, got {cut.distance:g} pc"
        )
    if cut.near and cut.show != "value":
        raise _no_joint(source)
    if cut.near:
        ends = np.array([cut.near, cut.distance])
        near, far = maps.at("mean", ends)
        return (far - near) / cut.length

    def at(name: str) -> np.ndarray:
        return maps.at(name, np.array([cut.distance]))[0]

    return _shown(cut, at, maps.arrays)


def _integrated(source: Answers, cut: Cut) -> tuple[Sky, str]:
    """The integral of the cube's own interpolant."""
    cube = source.cube()
    name = density_name(cube.arrays)
    pixels = np.arange(healpy.nside2npix(cut.nside))
    l, b = healpy.pix2ang(cut.nside, pixels, nest=True, lonlat=True)  # noqa: E741
    total = np.zeros(len(pixels))
    for end, sign in ((cut.distance, 1.0), (cut.near, -1.0)):
        if end:
            reach = np.full(len(pixels), end)
            total += sign * truth_extinction(cube, l, b, reach, name=name)
    return healpix_sky(total / cut.length), "mean" if name == "mean" else ""


def _of_run(run: Run, cut: Cut) -> Sky:
    """Moments or a sample of the posterior itself, on the pixels asked for."""
    count = len(run.posterior.samples)
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
        lon, lat = healpy.pix2ang(cut.nside, pixels, lonlat=True, nest=True)
        return _towards(run, cut, unit_vectors(lon, lat))[back]

    return values


def _towards(run: Run, cut: Cut, directions: np.ndarray) -> np.ndarray:
    """Values in these directions, NaN where the ray has left the box."""
    far = torch.as_tensor(directions * cut.distance)
    inside = run.plan.grid.contains(far)
    full = np.full(len(directions), np.nan)
    if bool(inside.any()):
        far = far[inside]
        seen: Functionals = PointValues(far)
        if not cut.on_sphere:
            seen = rays(run.plan, far, far * (cut.near / cut.distance))
        pure = cut.on_sphere or cut.show == "relative-error"
        full[inside.numpy()] = _moment(run, cut, seen) / (1.0 if pure else cut.length)
    return full


def _moment(run: Run, cut: Cut, seen: Functionals) -> np.ndarray:
    posterior = run.posterior
    if cut.show == "sample":
        sample = posterior.samples[cut.sample]
        chunks = seen.chunks(_ROWS)
        parts = [posterior.model.at(part).apply(sample) for _, part in chunks]
        return torch.cat(parts).to(torch.float64).numpy(force=True)
    arrays = summaries(posterior.moments(seen, rows=_ROWS))
    return _shown(cut, arrays.__getitem__, arrays)


def _shown(
    cut: Cut, take: Callable[[str], np.ndarray], names: Collection[str]
) -> np.ndarray:
    """Value, std or relative error of the arrays ``names``, which ``take`` reads.

    The value of a density is its mean, which integrates to the extinction.
    """
    if cut.show == "relative-error":
        return relative_error(take, names)
    if cut.show == "value" and "p50" in names and not cut.on_sphere:
        return take("p50")
    return take("std" if cut.show == "std" else density_name(names))


def _no_joint(source: Answers) -> MissingError:
    return MissingError(
        f"{source.path} has no joint error of what lies between two distances, or of "
        "any integral: name a run"
    )
