"""Cuts through a map at a distance: density or extinction, its error, a sample."""

from __future__ import annotations

from dataclasses import dataclass

import healpy
import numpy as np
import torch

from dustmap.functionals import Functionals, PointValues
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.figures.integrals import density_name
from pipelines.figures.skypanels import Sky, healpix_sky
from pipelines.figures.slices import relative_names
from pipelines.figures.sources import (
    CubeSource,
    MissingError,
    Rays,
    RunSource,
    Source,
)
from pipelines.maps.cube import Cube
from pipelines.maps.truth import truth_extinction
from pipelines.model.observations import rays

QUANTITIES = ("density", "extinction")
SHOWS = ("value", "std", "relative-error", "sample")
_STATISTICS = {"p50": "median", "mean": "mean", "density": ""}
# Fine enough for what a cube has no integral of: 0.9 degrees.
_NSIDE = 64
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

    @property
    def on_sphere(self) -> bool:
        """Whether it is the density at the distance itself."""
        return self.quantity == "density" and not self.near

    @property
    def length(self) -> float:
        """What integrals are divided by [pc]: 1 where they are shown themselves."""
        return self.distance - self.near if self.quantity == "density" else 1.0


def cut_sky(source: Source, cut: Cut, nside: int | None = None) -> Sky:
    """What a cut shows by direction [mag or mag/pc]; NaN outside the map.

    Raises
    ------
    MissingError
        If the map lacks what the cut is made of.
    """
    nside = nside or _NSIDE
    if isinstance(source, RunSource):
        return _of_run(source, cut, nside)
    if cut.show == "sample":
        raise MissingError(f"{source.path} holds no samples: name a run")
    if cut.on_sphere:
        return _of_cube(source, cut)
    known = _rays_of(source, cut)
    if known is not None:
        return healpix_sky(_of_rays(source, known, cut))
    if cut.show != "value":
        raise _no_joint(source)
    return healpix_sky(_integrated(source.cube(), cut, nside))


def statistic(source: Source, cut: Cut) -> str:
    """What a cut's value is of the posterior: median, mean, or nothing (a truth)."""
    if isinstance(source, RunSource):
        return "median" if source.run.posterior.model.positive else "mean"
    if cut.on_sphere:
        return _STATISTICS[density_name(source.cube())]
    known = _rays_of(source, cut)
    if known is not None:
        return "median" if known.quantiles and not cut.near else "mean"
    return "mean" if "mean" in source.cube().arrays else ""


def _rays_of(source: Source, cut: Cut) -> Rays | None:
    """What was integrated beforehand; between two distances a cube itself is finer."""
    return None if cut.near and isinstance(source, CubeSource) else source.rays


def density_at(cube: Cube, distance: float, name: str | None = None) -> Sky:
    """See an array on the sphere of radius ``distance`` [pc] by direction."""
    chosen = density_name(cube) if name is None else name
    return lambda lon, lat: cube.sample(chosen, distance * unit_vectors(lon, lat))


def ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """NaN where the lower one is not positive."""
    known = bottom > 0
    return np.where(known, top / np.where(known, bottom, 1.0), np.nan)


def _of_cube(source: Source, cut: Cut) -> Sky:
    cube = source.cube()
    if cut.show == "value":
        return density_at(cube, cut.distance)
    if "std" not in cube.arrays:
        raise MissingError(f"{source.path} has no std")
    if cut.show == "std":
        return density_at(cube, cut.distance, "std")
    top, bottom, log = relative_names(cube)
    upper, lower = (density_at(cube, cut.distance, name) for name in (top, bottom))
    if log:
        return lambda lon, lat: np.log(ratio(upper(lon, lat), lower(lon, lat))) / 2
    return lambda lon, lat: ratio(upper(lon, lat), lower(lon, lat))


def _of_rays(source: Source, known: Rays, cut: Cut) -> np.ndarray:
    """By pixel; between two distances the mean alone can be told."""
    if cut.distance > known.distance[-1]:
        raise InputError(
            f"{source.path}: the maps end at {known.distance[-1]:g} pc: choose a "
            f"--distance up to that, got {cut.distance:g} pc"
        )
    if cut.near:
        if cut.show != "value":
            raise _no_joint(source)
        near, far = known.at("mean", np.array([cut.near, cut.distance]))
        return (far - near) / cut.length

    def at(name: str) -> np.ndarray:
        return known.at(name, np.array([cut.distance]))[0]

    if cut.show == "std":
        return at("std")
    if cut.show == "value":
        return at("p50" if known.quantiles else "mean")
    if known.quantiles:
        return np.log(ratio(at("p84"), at("p16"))) / 2
    return ratio(at("std"), at("mean"))


def _integrated(cube: Cube, cut: Cut, nside: int) -> np.ndarray:
    """By pixel, the integral of the cube's own interpolant."""
    name = next(n for n in ("mean", "density", "p50") if n in cube.arrays)
    pixels = np.arange(healpy.nside2npix(nside))
    l, b = healpy.pix2ang(nside, pixels, nest=True, lonlat=True)  # noqa: E741
    total = np.zeros(len(pixels))
    for end, sign in ((cut.distance, 1.0), (cut.near, -1.0)):
        if end:
            reach = np.full(len(pixels), end)
            total += sign * truth_extinction(cube, l, b, reach, name=name)
    return total / cut.length


def _of_run(source: RunSource, cut: Cut, nside: int) -> Sky:
    """Moments or a sample of the posterior itself, on the pixels asked for."""
    count = len(source.run.posterior.samples)
    if cut.show == "sample" and not 0 <= cut.sample < count:
        raise InputError(
            f"{source.path} has {count} samples: choose one from 0 to {count - 1}, got "
            f"{cut.sample}"
        )

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        hit = healpy.ang2pix(nside, l, b, lonlat=True, nest=True)
        pixels, back = np.unique(hit, return_inverse=True)
        lon, lat = healpy.pix2ang(nside, pixels, lonlat=True, nest=True)
        return _towards(source, cut, unit_vectors(lon, lat))[back]

    return values


def _towards(source: RunSource, cut: Cut, directions: np.ndarray) -> np.ndarray:
    """Values in these directions, NaN where the ray has left the box."""
    plan = source.run.plan
    far = torch.as_tensor(directions * cut.distance)
    inside = plan.grid.contains(far)
    full = np.full(len(directions), np.nan)
    if bool(inside.any()):
        far = far[inside]
        seen: Functionals = PointValues(far)
        if not cut.on_sphere:
            seen = rays(plan, far, far * (cut.near / cut.distance))
        full[inside.numpy()] = _moment(source, cut, seen).numpy()
    return full


def _moment(source: RunSource, cut: Cut, seen: Functionals) -> torch.Tensor:
    posterior = source.run.posterior
    length = 1.0 if cut.on_sphere else cut.length
    if cut.show == "sample":
        sample = posterior.samples[cut.sample]
        chunks = seen.chunks(_ROWS)
        parts = [posterior.model.at(part).apply(sample) for _, part in chunks]
        return torch.cat(parts).to(torch.float64).cpu() / length
    moments = posterior.moments(seen, rows=_ROWS)
    if cut.show == "std":
        return moments.std / length
    if cut.show == "value":
        positive = moments.log_mean is not None
        return (moments.quantile(0.5) if positive else moments.mean) / length
    if moments.log_std is not None:
        return moments.log_std
    known = moments.mean > 0
    return torch.where(known, moments.std / moments.mean, float("nan"))


def _no_joint(source: Source) -> MissingError:
    return MissingError(
        f"{source.path} has no joint error of what lies between two distances, or of "
        "any integral: name a run"
    )
