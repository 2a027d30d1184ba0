"""The stars of a mock galaxy: selection and measurements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import laplace

from pipelines.base.errors import InputError
from pipelines.base.progress import Progress
from pipelines.config import SimulateConfig
from pipelines.config.simulation import Galaxy
from pipelines.cubes.cube import Cube, truth_extinction
from pipelines.simulate.dust import CENTRE_DISTANCE
from pipelines.simulate.turbulence import Rng

_BATCH = 200_000
# Most successive batches without a visible star.
_BARREN = 200

Sample = dict[str, np.ndarray]
"""True ``position`` [pc] ``(N, 3)``, ``distance`` [pc] and ``extinction`` (A_V) [mag];
apparent ``magnitude``, dust included [mag]; ``parallax`` as observed [mas]."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Counts of stars drawn in the box, and of losses by reason.

    The catalogue holds the drawn stars minus all others; ``surplus`` counts visible
    stars beyond its size.
    """

    drawn: int
    too_faint: int
    poor_parallax: int
    dimmed: int
    surplus: int

    def __str__(self) -> str:
        return (
            f"not seen of {self.drawn} drawn: {self.too_faint} too faint, "
            f"{self.poor_parallax} with a poor parallax, {self.dimmed} behind dust; "
            f"{self.surplus} seen beyond the number of stars"
        )


def draw_sample(
    config: SimulateConfig, galaxy: Galaxy, cube: Cube, rng: Rng
) -> tuple[Sample, Losses]:
    """Draw stars from their disc until enough are visible through the dust.

    A star is lost if it is too faint at its distance or behind dust, or if its observed
    parallax has a low signal-to-noise.

    Raises `InputError` if hardly any star is bright enough.
    """
    batches: list[Sample] = []
    counts = np.zeros(4, dtype=int)
    found = barren = 0
    with Progress(description="stars", total=config.stars, unit="seen") as progress:
        while found < config.stars:
            batch, lost = _draw_batch(config, galaxy, cube, rng)
            batches.append(batch)
            counts += lost
            seen = len(batch["distance"])
            progress.update(min(seen, config.stars - found), drawn=int(counts[0]))
            found += seen
            barren = 0 if seen else barren + 1
            if barren == _BARREN:
                raise InputError(
                    f"only {found} of {config.stars} stars are seen among "
                    f"{counts[0]} drawn: lower errors.parallax or dust.density, or "
                    "raise magnitude_limit in Python"
                )
    columns = {n: np.concatenate([batch[n] for batch in batches]) for n in batches[0]}
    sample = {name: values[: config.stars] for name, values in columns.items()}
    return sample, Losses(*map(int, counts), surplus=found - config.stars)


def measure(
    config: SimulateConfig, galaxy: Galaxy, cube: Cube, sample: Sample, rng: Rng
) -> dict[str, np.ndarray]:
    """Observe ``sample``, and return columns of the catalogue by name.

    The extinction's error is log-normal around its median and grows with apparent
    magnitude; an outlier's extinction scatters by 20 times its stated error. The
    distance is the inverse of the observed parallax, with an error to first order;
    without parallax errors the catalogue has no ``distance_error``.
    """
    errors, magnitude = config.errors, sample["magnitude"]
    count = len(magnitude)
    fainter = magnitude - np.median(magnitude)
    sigma = errors.extinction * 10 ** (galaxy.growth * fainter)
    sigma = sigma * np.exp(galaxy.scatter * rng.standard_normal(count))
    outlier = rng.random(count) < errors.outliers
    noise = sigma * rng.standard_normal(count)
    noise = noise * np.where(outlier, 20.0, 1.0)
    longitude, latitude = _directions(sample["position"])
    columns = {
        "source_id": np.arange(1, count + 1),
        "l": longitude % 360,
        "b": latitude,
        "distance": 1000 / sample["parallax"],
        "extinction": sample["extinction"] + noise,
        "extinction_error": sigma,
        "extinction_true": sample["extinction"],
        "density_true": cube.sample("density", sample["position"]),
        "distance_true": sample["distance"],
        "magnitude": magnitude,
        "outlier": outlier,
    }
    if errors.parallax:
        columns["distance_error"] = 1000 * errors.parallax / sample["parallax"] ** 2
    return columns


def _draw_batch(
    config: SimulateConfig, galaxy: Galaxy, cube: Cube, rng: Rng
) -> tuple[Sample, list[int]]:
    """Draw a batch; return visible stars, and counts of drawn and lost ones.

    The counts are: drawn, too faint, of poor parallax, and dimmed.
    """
    errors, position = config.errors, _draw_positions(config, galaxy, rng)
    distance = np.linalg.norm(position, axis=1)
    drawn = len(distance)
    # Absolute magnitudes M from -1 to 7, with dN/dM ∝ 10^(0.2 M).
    brightest, span = -1.0, 8.0
    rate = 0.2 * np.log(10) * span
    growth = np.log1p(rng.random(drawn) * np.expm1(rate))
    magnitude = brightest + span * growth / rate
    stars = {
        "position": position,
        "distance": distance,
        "magnitude": magnitude + 5 * np.log10(distance / 10),
        "parallax": 1000 / distance + errors.parallax * rng.standard_normal(drawn),
    }
    counts = [drawn]

    def keep(stars: Sample, seen: np.ndarray) -> Sample:
        counts.append(int((~seen).sum()))
        return {name: values[seen] for name, values in stars.items()}

    stars = keep(stars, stars["magnitude"] < galaxy.magnitude_limit)
    parallax = stars["parallax"]
    least = galaxy.parallax_over_error * errors.parallax
    stars = keep(stars, (parallax > 0) & (parallax >= least))
    directions = _directions(stars["position"])
    extinction = truth_extinction(cube, *directions, stars["distance"])
    stars["extinction"] = extinction
    stars["magnitude"] = stars["magnitude"] + galaxy.dimming * extinction
    return keep(stars, stars["magnitude"] < galaxy.magnitude_limit), counts


def _directions(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Galactic longitude and latitude [deg]."""
    x, y, z = position.T
    return np.degrees(np.arctan2(y, x)), np.degrees(np.arctan2(z, np.hypot(x, y)))


def _draw_positions(config: SimulateConfig, galaxy: Galaxy, rng: Rng) -> np.ndarray:
    """Draw from the stars' exponential disc in the box, shape ``(n, 3)`` [pc].

    With completeness to a distance d only, a share min(1, (d/r)³) of the disc's stars
    is observed: proposals are then isotropic, with distances from r² min(1, (d/r)³).
    """
    truth, dust = config.truth, config.dust
    halves = np.array([truth.half_x, truth.half_y, truth.half_z])
    complete = galaxy.complete_within

    def radial_share(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the disc's density relative to the box's innermost point."""
        innermost = max(CENTRE_DISTANCE - truth.half_x, 0.0)
        radius = np.hypot(CENTRE_DISTANCE - x, y)
        return np.exp(-(radius - innermost) / galaxy.star_scale_length)

    if complete is None:
        x = rng.uniform(-truth.half_x, truth.half_x, _BATCH)
        y = rng.uniform(-truth.half_y, truth.half_y, _BATCH)
        accepted = rng.random(_BATCH) < radial_share(x, y)
        vertical = laplace(loc=-dust.sun_height, scale=galaxy.star_scale_height)
        low, high = vertical.cdf([-truth.half_z, truth.half_z])
        z = vertical.ppf(low + (high - low) * rng.random(_BATCH))
        return np.stack((x, y, z), axis=1)[accepted]
    # The cumulative density of distances, in units of d³: (r/d)³ / 3, and beyond d
    # 1/3 + ln(r/d).
    furthest = float(np.linalg.norm(halves))
    u = rng.random(_BATCH) * (1 / 3 + np.log(max(furthest / complete, 1.0)))
    distance = complete * np.where(u < 1 / 3, np.cbrt(3 * u), np.exp(u - 1 / 3))
    heading = rng.standard_normal((_BATCH, 3))
    heading /= np.linalg.norm(heading, axis=1, keepdims=True)
    position = distance[:, None] * heading
    position = position[(np.abs(position) <= halves).all(axis=1)]
    x, y, z = position.T
    disc = np.exp(-np.abs(z + dust.sun_height) / galaxy.star_scale_height)
    return position[rng.random(len(position)) < disc * radial_share(x, y)]
