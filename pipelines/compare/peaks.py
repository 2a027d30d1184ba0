"""Density along bundles of rays, sample by sample, and where it is largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from astropy import units as u
from astropy.coordinates import SkyCoord

from dustmap.functionals import PointValues
from pipelines.base.geometry import unit_vectors
from pipelines.run.folder import Run

# Rings of a disc: share of its radius, and directions on it.
_RINGS = ((0.0, 1), (0.5, 6), (1.0, 12))
_PER_CELL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Density along one line, averaged over a disc on the sky, as far as stars see.

    ``distance`` [pc], shape ``(e,)``, ends with the farthest that a sight line crosses;
    ``samples`` [mag/pc], shape ``(s, e)``; ``reach`` [pc] is where the box ends.
    """

    distance: np.ndarray
    samples: np.ndarray
    reach: float

    @property
    def median(self) -> np.ndarray:
        """Median over the samples [mag/pc], shape ``(e,)``."""
        return np.median(self.samples, axis=0)

    @property
    def informed(self) -> float:
        """The farthest distance that a sight line crosses [pc]; 0 if none."""
        return float(self.distance.max(initial=0.0))


def disc(l: float, b: float, radius: float) -> np.ndarray:  # noqa: E741
    """Unit vectors within ``radius`` [deg] of a direction [deg], shape ``(19, 3)``."""
    away = radius * np.concatenate([np.full(n, share) for share, n in _RINGS])
    angle = np.concatenate([360 * np.arange(n) / n for _, n in _RINGS])
    centre: Any = SkyCoord(l, b, unit="deg", frame="galactic")
    rays = centre.directional_offset_by((90 - angle) * u.deg, away * u.deg)
    return unit_vectors(rays.l.deg, rays.b.deg)


def profiles(
    run: Run,
    l: np.ndarray,  # noqa: E741
    b: np.ndarray,
    *,
    radius: float,
) -> list[Profile]:
    """Density along lines [deg], averaged over discs of ``radius`` [deg].

    At distances half a cell apart, within the box along the centre's ray. A posterior
    without samples has its mean for the only one.
    """
    step = run.plan.step_at(0.0) / _PER_CELL
    discs = [disc(*place, radius) for place in zip(l, b, strict=True)]
    ends = [float(run.box.exits(rays[0])) for rays in discs]
    lengths = [np.arange(1, int(end / step) + 1) * step for end in ends]
    points = [d[:, None, None] * rays for d, rays in zip(lengths, discs, strict=True)]
    cuts = np.cumsum([part.size // 3 for part in points])[:-1]
    values = _densities(run, np.concatenate([part.reshape(-1, 3) for part in points]))
    found = []
    for distance, part, drawn, end in zip(
        lengths, points, np.split(values, cuts, axis=1), ends, strict=True
    ):
        seen = np.any(run.support_at(part) > 0, axis=1)
        known = distance <= distance[seen].max(initial=0.0)
        samples = np.nanmean(drawn.reshape(-1, *part.shape[:2]), axis=2)[:, known]
        found.append(Profile(distance=distance[known], samples=samples, reach=end))
    return found


def _densities(run: Run, points: np.ndarray) -> np.ndarray:
    """Density of every sample [mag/pc] at points [pc]; NaN outside the box."""
    places = torch.as_tensor(points)
    inside = run.plan.grid.contains(places)
    found, _ = run.posterior.sampled(PointValues(places[inside]))
    values = np.full((len(found), len(points)), np.nan)
    values[:, inside.numpy()] = found.numpy()
    return values


def largest_peak(distance: np.ndarray, density: np.ndarray) -> float:
    """Distance of the largest local maximum; NaN if the density has none inside.

    An end of the line is no peak: the density may go on rising beyond it.
    """
    peaks = local_peaks(density)
    if not len(peaks):
        return float("nan")
    return float(distance[peaks[np.argmax(density[peaks])]])


def local_peaks(density: np.ndarray) -> np.ndarray:
    """Indices of the local maxima, the ends left out."""
    middle = density[1:-1]
    return np.flatnonzero((middle > density[:-2]) & (middle >= density[2:])) + 1
