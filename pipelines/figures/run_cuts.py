"""Cuts through a run: moments and samples of the posterior itself, by direction."""

from __future__ import annotations

from collections.abc import Callable

import healpy
import numpy as np
import torch

from dustmap.functionals import Functionals, PointValues
from pipelines.errors import InputError
from pipelines.figures.cuts import Cut
from pipelines.figures.skypanels import Sky
from pipelines.figures.sources import RunSource, Source
from pipelines.geometry import unit_vectors
from pipelines.observations import rays
from pipelines.run import Run

# Rays that are projected at once: bounds memory.
_ROWS = 8192


def run_sky(source: Source, cut: Cut, nside: int) -> Sky:
    """What a cut shows, on the HEALPix pixels that are asked for."""
    assert isinstance(source, RunSource)
    run = source.run
    count = len(run.posterior.samples)
    if cut.show == "sample" and not 0 <= cut.sample < count:
        raise InputError(
            f"{source.path} has {count} samples: choose one from 0 to {count - 1}, got "
            f"{cut.sample}"
        )

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        hit = healpy.ang2pix(nside, l, b, lonlat=True, nest=True)
        pixels, back = np.unique(hit, return_inverse=True)
        lon, lat = healpy.pix2ang(nside, pixels, lonlat=True, nest=True)
        return _at(run, cut, unit_vectors(lon, lat))[back]

    return values


def _at(run: Run, cut: Cut, towards: np.ndarray) -> np.ndarray:
    """Values in these directions, NaN where the ray has left the box."""
    far = torch.as_tensor(towards * cut.distance)
    inside = run.plan.grid.contains(far)
    full = np.full(len(towards), np.nan)
    if not bool(inside.any()):
        return full
    far = far[inside]
    length = 1.0
    if cut.quantity == "density" and not cut.near:
        seen: Functionals = PointValues(far)
    else:
        seen = rays(run.plan, far, far * (cut.near / cut.distance))
        length = cut.distance - cut.near if cut.quantity == "density" else 1.0
    value, linear = _shown(run, cut, seen)
    full[inside.numpy()] = value.numpy() / (length if linear else 1.0)
    return full


def _shown(run: Run, cut: Cut, seen: Functionals) -> tuple[torch.Tensor, bool]:
    """The numbers, and whether they scale with the unit."""
    if cut.show == "sample":
        sample = run.posterior.samples[cut.sample]
        parts = [
            run.posterior.model.at(part).apply(sample) for _, part in seen.chunks(_ROWS)
        ]
        return torch.cat(parts).to(torch.float64).cpu(), True
    moments = run.posterior.moments(seen, rows=_ROWS)
    positive = moments.log_mean is not None
    chosen: dict[str, Callable[[], torch.Tensor]] = {
        "value": lambda: moments.quantile(0.5) if positive else moments.mean,
        "std": lambda: moments.std,
        "relative-error": lambda: _relative(moments),
    }
    return chosen[cut.show](), cut.show != "relative-error"


def _relative(moments) -> torch.Tensor:
    if moments.log_std is not None:
        return moments.log_std
    known = moments.mean > 0
    return torch.where(known, moments.std / moments.mean, float("nan"))
