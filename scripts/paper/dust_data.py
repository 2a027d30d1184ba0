"""Stars behind dust: the paper's simulation in a small box, and a simulated galaxy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ananke_data import Observed, Sample, read_sample, split
from dense_covariance import symmetric_covariance
from dense_evidence import best_scales
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.gp.inducing import clustered_subset
from dustmap.grid import Grid
from dustmap.kernels import Matern32
from pipelines.config import SimulateConfig
from pipelines.config.simulation import ErrorConfig, TruthConfig
from pipelines.simulate import simulate

ANANKE, GALAXY = "Ananke, 4,000 stars", "simulated galaxy"
# Half the boxes [kpc]: that of the sample, and the paper's.
_ANANKE_REACH = (0.25, 0.25, 0.05)
_GALAXY_REACH = (2.0, 2.0, 1.0)
_ERROR = 0.02
_PARSECS = 1_000.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sky:
    """Stars to train and to test on, with their noisy extinctions.

    Parameters
    ----------
    reach
        Half the box [kpc], with the observer in the middle.
    """

    name: str
    train: Sample
    seen: Observed
    test: Sample
    held: Observed
    reach: tuple[float, float, float]

    @property
    def positions(self) -> Float[Tensor, "n 3"]:
        """Of the stars to train on [kpc]."""
        return torch.as_tensor(self.train.positions)

    @property
    def values(self) -> Float[Tensor, " n"]:
        """Their extinctions [mag]."""
        return torch.as_tensor(self.seen.values)

    @property
    def variance(self) -> Float[Tensor, " n"]:
        """Of the noise [mag²]."""
        return torch.as_tensor(self.seen.sigma**2)

    def grid(self, shape: tuple[int, int, int]) -> Grid:
        """Inducing points that fill the box."""
        return Grid(
            shape=shape,
            spacing=tuple(
                2 * w / (n - 1) for w, n in zip(self.reach, shape, strict=True)
            ),
            origin=tuple(-width for width in self.reach),
        )

    def shortened(self, train: int, test: int) -> Sky:
        """At most so many stars; all are in random order."""
        few, fewer = (
            np.arange(len(self.train))[:train],
            np.arange(len(self.test))[:test],
        )
        return Sky(
            name=self.name,
            train=self.train[few],
            seen=_part(self.seen, few),
            test=self.test[fewer],
            held=_part(self.held, fewer),
            reach=self.reach,
        )


def _part(observed: Observed, rows: np.ndarray) -> Observed:
    return Observed(values=observed.values[rows], sigma=observed.sigma[rows])


def ananke(folder: Path, train: int, test: int, seed: int) -> Sky:
    """The paper's sample with one fixed split; its noise by the seed.

    Raises
    ------
    InputError
        If the file is missing or no such table, or has too few stars.
    """
    sample = read_sample(folder)
    learnt, tested = split(sample, train, test, np.random.default_rng(0))
    generator = np.random.default_rng([1, seed])
    return Sky(
        name=ANANKE,
        train=learnt,
        seen=Observed.draw(learnt, generator),
        test=tested,
        held=Observed.draw(tested, generator),
        reach=_ANANKE_REACH,
    )


def galaxy_config(stars: int, seed: int, spacing: float) -> SimulateConfig:
    """A galaxy in the paper's box with its dust every ``spacing`` [pc]."""
    return SimulateConfig(
        stars=stars,
        seed=seed,
        truth=TruthConfig(
            half_x=_PARSECS * _GALAXY_REACH[0],
            half_y=_PARSECS * _GALAXY_REACH[1],
            half_z=_PARSECS * _GALAXY_REACH[2],
            spacing=spacing,
        ),
        errors=ErrorConfig(parallax=0.0, extinction=_ERROR),
    )


def galaxy(train: int, test: int, seed: int, *, spacing: float) -> Sky:
    """Log-normal dust in the paper's box; stars of known distances, noise 0.02 mag."""
    stars = simulate(galaxy_config(train + test, seed, spacing)).stars
    distance = np.asarray(stars.distance) / _PARSECS
    longitude, latitude = np.radians(stars.l), np.radians(stars.b)
    flat = distance * np.cos(latitude)
    places = [
        flat * np.cos(longitude),
        flat * np.sin(longitude),
        distance * np.sin(latitude),
    ]
    sample = Sample(
        positions=np.stack(places, axis=1),
        extinction=np.asarray(stars.extra["extinction_true"], np.float64),
        density=_PARSECS * np.asarray(stars.extra["density_true"], np.float64),
    )
    observed = Observed(
        values=np.asarray(stars.extinction, np.float64),
        sigma=np.asarray(stars.extinction_error, np.float64),
    )
    order = np.random.default_rng([2, seed]).permutation(train + test)
    first, last = order[:train], order[train:]
    return Sky(
        name=GALAXY,
        train=sample[first],
        seen=_part(observed, first),
        test=sample[last],
        held=_part(observed, last),
        reach=_GALAXY_REACH,
    )


def choose_kernel(sky: Sky, count: int, nodes: int) -> Matern32:
    """Lengthscale and variance of the largest evidence of some stars, zero mean."""
    generator = torch.Generator().manual_seed(0)
    rows = clustered_subset(sky.positions, count, 8, generator)
    rays = LineIntegrals(sky.positions[rows], GaussLegendre(count=nodes))
    longest = min(2 * sky.reach[0], 1.2)
    best = best_scales(
        lambda s: symmetric_covariance(Matern32(lengthscale=s), rays).numpy(),
        [float(s) for s in np.geomspace(0.05 * longest, 0.5 * longest, 7)],
        sky.seen.values[rows],
        sky.seen.sigma[rows] ** 2,
        common_noise=0.0,
    )
    return Matern32(lengthscale=best.lengthscale, variance=best.variance)
