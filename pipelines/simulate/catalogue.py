"""The stars of a mock galaxy: who is seen, and what is measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.progress import Progress
from pipelines.config import SimulateConfig
from pipelines.maps.cube import Cube
from pipelines.maps.truth import truth_density, truth_extinction

_BATCH = 200_000
_BARREN = 200
"""Batches without a single star after which the galaxy counts as dark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Stars as they are: one row each.

    ``positions`` [pc] of shape ``(N, 3)``; ``distance`` [pc]; apparent ``magnitude``,
    dust included, and ``extinction`` (A_V) [mag]; ``parallax`` as observed [mas].
    """

    positions: np.ndarray
    distance: np.ndarray
    magnitude: np.ndarray
    extinction: np.ndarray
    parallax: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """How many stars were drawn in the box, and why some are not in the catalogue.

    The drawn less all others are the catalogue; ``surplus`` were seen after it was
    full.
    """

    drawn: int
    too_faint: int
    dimmed: int
    poor_parallax: int
    surplus: int


def draw_sample(
    config: SimulateConfig, cube: Cube, rng: np.random.Generator
) -> tuple[Sample, Losses]:
    """Draw stars from their disc until enough of them are seen through the dust.

    A star is lost if it is too faint at its distance, if the dust dims it beyond the
    limit, or if its observed parallax has too little signal.

    Raises
    ------
    InputError
        If next to no star is bright enough to be seen.
    """
    batches: list[Sample] = []
    losses = np.zeros(4, dtype=int)
    found = barren = 0
    with Progress(description="stars", total=config.stars, unit="seen") as progress:
        while found < config.stars:
            batch, lost = _draw_batch(config, cube, rng)
            batches.append(batch)
            losses += lost
            seen = len(batch.distance)
            progress.update(min(seen, config.stars - found), drawn=int(losses[0]))
            found += seen
            barren = 0 if seen else barren + 1
            if barren == _BARREN:
                raise InputError(
                    f"only {found} of {config.stars} stars are seen among "
                    f"{losses[0]} drawn: raise tracers.magnitude_limit, or lower "
                    "errors.parallax or dust.density"
                )
    columns = {
        name: np.concatenate([getattr(batch, name) for batch in batches])[
            : config.stars
        ]
        for name in Sample.__slots__
    }
    drawn, too_faint, dimmed, poor = map(int, losses)
    return Sample(**columns), Losses(
        drawn=drawn,
        too_faint=too_faint,
        dimmed=dimmed,
        poor_parallax=poor,
        surplus=found - config.stars,
    )


def measure(
    config: SimulateConfig, cube: Cube, sample: Sample, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Observe ``sample``: columns of the catalogue, by name.

    The extinction's error is log-normal around its median and grows with apparent
    magnitude; an outlier's extinction scatters by a multiple of its stated error.
    The distance is the inverse of the observed parallax and its error is propagated
    to first order; without parallax errors there is no ``distance_error``.
    """
    errors = config.errors
    count = len(sample.distance)
    faintness = sample.magnitude - np.median(sample.magnitude)
    sigma = errors.extinction * 10 ** (errors.growth * faintness)
    sigma = sigma * np.exp(errors.scatter * rng.standard_normal(count))
    outlier = rng.random(count) < errors.outliers
    noise = sigma * rng.standard_normal(count)
    x, y, z = sample.positions.T
    columns = {
        "source_id": np.arange(1, count + 1),
        "l": np.degrees(np.arctan2(y, x)) % 360,
        "b": np.degrees(np.arctan2(z, np.hypot(x, y))),
        "distance": 1000 / sample.parallax,
        "extinction": sample.extinction
        + noise * np.where(outlier, errors.outlier_scale, 1.0),
        "extinction_error": sigma,
        "extinction_true": sample.extinction,
        "density_true": truth_density(cube, sample.positions),
        "distance_true": sample.distance,
        "magnitude": sample.magnitude,
        "outlier": outlier,
    }
    if errors.parallax:
        columns["distance_error"] = 1000 * errors.parallax / sample.parallax**2
    return columns


def _draw_batch(
    config: SimulateConfig, cube: Cube, rng: np.random.Generator
) -> tuple[Sample, np.ndarray]:
    """Return the stars seen among a batch: and (drawn, too faint, dimmed, poor)."""
    tracers, errors = config.tracers, config.errors
    positions = _draw_positions(config, rng)
    distance = np.linalg.norm(positions, axis=1)
    drawn = len(distance)
    magnitude = _draw_absolute_magnitudes(config, drawn, rng)
    magnitude += 5 * np.log10(distance / 10)
    parallax = 1000 / distance + errors.parallax * rng.standard_normal(drawn)

    def keep(seen: np.ndarray) -> int:
        nonlocal positions, distance, magnitude, parallax
        positions, distance = positions[seen], distance[seen]
        magnitude, parallax = magnitude[seen], parallax[seen]
        return int((~seen).sum())

    too_faint = keep(magnitude < tracers.magnitude_limit)
    signal = (parallax > 0) & (parallax >= errors.parallax_over_error * errors.parallax)
    poor = keep(signal)
    x, y, z = positions.T
    extinction = truth_extinction(
        cube,
        np.degrees(np.arctan2(y, x)),
        np.degrees(np.arctan2(z, np.hypot(x, y))),
        distance,
    )
    magnitude += tracers.dimming * extinction
    seen = magnitude < tracers.magnitude_limit
    extinction = extinction[seen]
    dimmed = keep(seen)
    sample = Sample(
        positions=positions,
        distance=distance,
        magnitude=magnitude,
        extinction=extinction,
        parallax=parallax,
    )
    return sample, np.array([drawn, too_faint, dimmed, poor])


def _draw_positions(config: SimulateConfig, rng: np.random.Generator) -> np.ndarray:
    """Draw from the stars' exponential disc in the box, shape ``(n, 3)`` [pc]."""
    truth, tracers, dust = config.truth, config.tracers, config.dust
    x = rng.uniform(-truth.half_x, truth.half_x, _BATCH)
    y = rng.uniform(-truth.half_y, truth.half_y, _BATCH)
    radius = np.hypot(dust.centre_distance - x, y)
    # The innermost point of the box has the most stars.
    innermost = max(dust.centre_distance - truth.half_x, 0.0)
    chance = np.exp(-(radius - innermost) / tracers.scale_length)
    accepted = rng.random(_BATCH) < chance
    z = _draw_heights(truth.half_z, dust.sun_height, tracers.scale_height, rng)
    return np.stack((x, y, z), axis=1)[accepted]


def _draw_heights(
    half: float, sun_height: float, scale: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw z [pc] in ±half from exp(-|z + sun_height| / scale) by inversion."""

    def cumulative(z: np.ndarray | float) -> np.ndarray:
        u = (np.asarray(z) + sun_height) / scale
        return np.where(
            u < 0, 0.5 * np.exp(np.minimum(u, 0)), 1 - 0.5 * np.exp(-np.maximum(u, 0))
        )

    low, high = cumulative(-half), cumulative(half)
    p = low + (high - low) * rng.random(_BATCH)
    u = np.where(p < 0.5, np.log(2 * p), -np.log(2 * (1 - p)))
    return scale * u - sun_height


def _draw_absolute_magnitudes(
    config: SimulateConfig, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw from dN/dM ∝ 10^(slope M) between the brightest and the faintest [mag]."""
    bright, faint = config.tracers.brightest, config.tracers.faintest
    p = rng.random(count)
    rate = config.tracers.luminosity_slope * np.log(10) * (faint - bright)
    if rate == 0:
        return bright + (faint - bright) * p
    return bright + (faint - bright) * np.log1p(p * np.expm1(rate)) / rate
