"""Cuts through a map at a distance: density or extinction, its error, a sample."""

from __future__ import annotations

from dataclasses import dataclass

import healpy
import numpy as np

from pipelines.errors import InputError
from pipelines.export.cube import Cube, SkyMaps
from pipelines.export.integrated import Integrated
from pipelines.figures.integrals import density_name
from pipelines.figures.skypanels import Sky, healpix_sky
from pipelines.figures.slices import relative_names
from pipelines.figures.sources import (
    CubeSource,
    MissingError,
    RunSource,
    SkySource,
    Source,
)
from pipelines.figures.stored_rays import along_rays
from pipelines.truth import truth_extinction

QUANTITIES = ("density", "extinction")
SHOWS = ("value", "std", "relative-error", "sample")
_STATISTICS = {"p50": "median", "mean": "mean", "density": ""}
# Fine enough for what a cube has no integral of: 0.9 degrees.
_NSIDE = 64


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
    """

    quantity: str
    show: str
    distance: float
    near: float = 0.0
    sample: int = 0

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES or self.show not in SHOWS:
            raise ValueError(
                f"expected one of {QUANTITIES} and one of {SHOWS}, got "
                f"{self.quantity!r} and {self.show!r}"
            )
        if not 0 <= self.near < self.distance < np.inf:
            raise InputError(
                "a distance interval begins at zero or later and ends after that "
                f"[pc], got {self.near:g} to {self.distance:g}"
            )


def cut_sky(source: Source, cut: Cut, nside: int | None = None) -> Sky:
    """What a cut shows by direction [mag or mag/pc]; NaN outside the map.

    Raises
    ------
    MissingError
        If the map lacks what the cut is made of.
    """
    if isinstance(source, SkySource):
        return _of_maps(source, cut)
    if isinstance(source, CubeSource):
        return _of_cube(source, cut, nside or _NSIDE)
    from pipelines.figures.run_cuts import run_sky

    return run_sky(source, cut, nside or _NSIDE)


def statistic(source: Source, cut: Cut) -> str:
    """What a cut's value is of the posterior: median, mean, or nothing (a truth)."""
    if isinstance(source, SkySource):
        return "mean"
    if isinstance(source, RunSource):
        return "median" if source.run.posterior.model.positive else "mean"
    assert isinstance(source, CubeSource)
    if cut.quantity == "density" and not cut.near:
        return _STATISTICS[density_name(source.density)]
    if source.integrated is not None and not cut.near:
        return "median" if "p50" in source.integrated.arrays else "mean"
    return "mean" if "mean" in source.density.arrays else ""


def extinction_to(
    maps: SkyMaps, distance: float, values: np.ndarray | None = None
) -> np.ndarray:
    """Interpolate cumulative extinction [mag] to ``distance`` [pc], from zero at 0.

    ``values`` are the mean, or others of its shape.
    """
    values = maps.mean if values is None else values
    last = float(maps.distances[-1])
    if distance > last:
        raise InputError(
            f"the maps end at {last:g} pc: choose a --distance up to that, "
            f"got {distance:g} pc"
        )
    upper = int(np.searchsorted(maps.distances, distance))
    far = maps.distances[upper]
    near, below = 0.0, np.zeros_like(values[0])
    if upper:
        near, below = maps.distances[upper - 1], values[upper - 1]
    weight = (distance - near) / (far - near)
    return values[upper] if weight == 1.0 else below + weight * (values[upper] - below)


def density_at(cube: Cube, distance: float, name: str | None = None) -> Sky:
    """See an array on the sphere of radius ``distance`` [pc] by direction."""
    chosen = density_name(cube) if name is None else name

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        return cube.sample(chosen, distance * healpy.ang2vec(l, b, lonlat=True))

    return values


def _of_maps(source: SkySource, cut: Cut) -> Sky:
    if cut.quantity == "density" or cut.show == "sample":
        raise MissingError(
            f"{source.path} holds extinctions and their std, no {_named(cut)}: name "
            "a cube or a run"
        )
    maps = source.maps
    mean = extinction_to(maps, cut.distance)
    if cut.near and cut.show != "value":
        raise MissingError(_no_joint(source))
    if cut.near:
        return healpix_sky(mean - extinction_to(maps, cut.near))
    if cut.show == "value":
        return healpix_sky(mean)
    std = extinction_to(maps, cut.distance, maps.std)
    return healpix_sky(std if cut.show == "std" else _ratio(std, mean))


def _of_cube(source: CubeSource, cut: Cut, nside: int) -> Sky:
    if cut.show == "sample":
        raise MissingError(f"{source.path} holds no samples: name a run")
    if cut.quantity == "extinction" or cut.near:
        return _integrated(source, cut, nside)
    cube = source.density
    if cut.show == "value":
        return density_at(cube, cut.distance)
    if "std" not in cube.arrays:
        raise MissingError(f"{source.path} has no std")
    if cut.show == "std":
        return density_at(cube, cut.distance, "std")
    top, bottom, log = relative_names(cube)
    upper, lower = (density_at(cube, cut.distance, name) for name in (top, bottom))

    def relative(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        ratio = _ratio(upper(l, b), lower(l, b))
        return np.log(ratio) / 2 if log else ratio

    return relative


def _integrated(source: CubeSource, cut: Cut, nside: int) -> Sky:
    length = cut.distance - cut.near if cut.quantity == "density" else 1.0
    stored = source.integrated
    if stored is not None and not cut.near:
        return _stored(stored, cut, length)
    if cut.show != "value":
        raise MissingError(_no_joint(source))
    cube = source.density
    name = next(n for n in ("mean", "density", "p50") if n in cube.arrays)
    pixels = np.arange(healpy.nside2npix(nside))
    l, b = healpy.pix2ang(nside, pixels, nest=True, lonlat=True)  # noqa: E741
    total = np.zeros(len(pixels))
    for end, sign in ((cut.distance, 1.0), (cut.near, -1.0)):
        if end:
            reach = np.full(len(pixels), end)
            total += sign * truth_extinction(cube, l, b, reach, name=name)
    return healpix_sky(total / length)


def _stored(stored: Integrated, cut: Cut, length: float) -> Sky:
    if cut.distance > stored.distance[-1]:
        raise InputError(
            f"the map knows extinctions out to {stored.distance[-1]:g} pc: choose a "
            f"--distance up to that, got {cut.distance:g} pc"
        )
    at = np.array([cut.distance])
    value = along_rays(stored, "p50" if "p50" in stored.arrays else "mean", at)[0]
    if cut.show == "value":
        return healpix_sky(value / length)
    if cut.show == "std":
        return healpix_sky(along_rays(stored, "std", at)[0] / length)
    if "p84" in stored.arrays:
        high, low = (along_rays(stored, name, at)[0] for name in ("p84", "p16"))
        return healpix_sky(np.log(_ratio(high, low)) / 2)
    return healpix_sky(_ratio(along_rays(stored, "std", at)[0], value))


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """NaN where the lower one is not positive."""
    known = bottom > 0
    return np.where(known, top / np.where(known, bottom, 1.0), np.nan)


def _named(cut: Cut) -> str:
    return "samples" if cut.show == "sample" else cut.quantity


def _no_joint(source: Source) -> str:
    return (
        f"{source.path} has no joint error of what lies between two distances, or of "
        "any integral: name a run"
    )
