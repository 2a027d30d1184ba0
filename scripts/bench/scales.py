#!/usr/bin/env python
"""Scales learnt from mocks of known scales: ratios to the truth, their scatter.

The mocks are made apart from the package: a lognormal field on a periodic NumPy grid of
ten cells to a lengthscale, in an exponential disc, stars evenly in a box of 2.5 by 2.5
by 0.8 kpc.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch

from dustmap.inference.scales.learning import LearntScales, learn_scales
from dustmap.inference.scales.neighbour_likelihood import NeighbourLikelihood
from dustmap.inference.scales.periodic_fields import PeriodicFields
from dustmap.inference.scales.prior_scales import Coordinates, PriorScales
from dustmap.kernels import KERNELS
from dustmap.models.means import ExponentialDisc

HALF = np.array([1250.0, 1250.0, 400.0])
NAMES = ("lengthscale", "variance", "mean", "scale_height")
COLUMNS = ("lengthscale", "std", "mean density", "scale height")
DENSITY, ERROR, TO_A_LENGTHSCALE = 1e-3, 0.03, 10
FAR = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Mock:
    """Ray ends [pc] and extinctions [mag] of stars in a field of known scales."""

    ends: np.ndarray
    extinction: np.ndarray

    @classmethod
    def draw(
        cls,
        seed: int,
        *,
        lengthscale: float,
        std: float,
        scale_height: float,
        stars: int,
        cells: int,
    ) -> Mock:
        """A field of this seed and its stars."""
        rng = np.random.default_rng(seed)
        field = std * unit_field(rng, cells)
        step = lengthscale / TO_A_LENGTHSCALE
        ends = rng.uniform(-1, 1, (stars, 3)) * HALF
        density = DENSITY * np.exp(field - std**2 / 2)
        extinction = np.array(
            [integral(density, step, end, scale_height) for end in ends]
        )
        noise = ERROR * rng.standard_normal(stars)
        return cls(ends=ends, extinction=extinction + noise)


def unit_field(rng: np.random.Generator, cells: int) -> np.ndarray:
    """A periodic field of variance one and covariance ``exp(−r/ℓ)``."""
    lags = np.minimum(np.arange(cells), cells - np.arange(cells)) / TO_A_LENGTHSCALE
    x, y, z = np.meshgrid(lags, lags, lags, indexing="ij")
    covariance = np.exp(-np.sqrt(x**2 + y**2 + z**2))
    spectrum = np.fft.rfftn(covariance).real.clip(0.0)
    white = np.fft.rfftn(rng.standard_normal((cells,) * 3))
    return np.fft.irfftn(white * np.sqrt(spectrum), s=(cells,) * 3, axes=(0, 1, 2))


def integral(
    density: np.ndarray, step: float, end: np.ndarray, scale_height: float
) -> float:
    """The integral [mag] from the origin: nodes every quarter of a cell."""
    distance, width = np.linalg.norm(end), step / 4
    edges = np.append(np.arange(0, distance, width), distance)
    points = ((edges[1:] + edges[:-1]) / 2 / distance)[:, None] * end
    i, j, k = (np.floor(points / step + 0.5).astype(int) % len(density)).T
    values = density[i, j, k] * np.exp(-np.abs(points[:, 2]) / scale_height)
    return float(values @ np.diff(edges))


def learnt(mock: Mock, seed: int, lengthscale: float) -> LearntScales:
    """Learn the scales, from starts off by a factor of 1.5."""
    generator = torch.Generator().manual_seed(seed)
    ends, kernel = torch.from_numpy(mock.ends), KERNELS["matern12"]
    disc = ExponentialDisc(
        value=1.5 * DENSITY, scale_height=200.0, scale_length=FAR, centre_distance=1.0
    )
    start = PriorScales(
        lengthscale=torch.full((3,), 1.5 * lengthscale, dtype=torch.float64),
        std=1.0,
        mean=disc,
    )
    noise = torch.full((len(ends),), ERROR**2, dtype=torch.float64)
    return learn_scales(
        NeighbourLikelihood(ends, noise, kernel=kernel, positive=True),
        torch.from_numpy(mock.extinction),
        Coordinates(start=start, names=NAMES),
        PeriodicFields(kernel, 16, generator),
        generator,
    )


def ratios(scales: PriorScales, arguments: argparse.Namespace, std: float) -> list:
    """Learnt over true scales."""
    mean = scales.mean
    assert isinstance(mean, ExponentialDisc)
    return [
        float(scales.lengthscale[0]) / arguments.lengthscale,
        scales.std / std,
        mean.value / DENSITY,
        mean.scale_height / arguments.scale_height,
    ]


def main() -> None:
    """Print a row for every mock, then mean ratios and their scatter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengthscale", type=float, default=100.0, help="[pc]")
    parser.add_argument("--scale-height", type=float, default=150.0, help="[pc]")
    parser.add_argument("--stds", type=float, nargs="+", default=[0.5, 1.0, 1.5])
    parser.add_argument("--mocks", type=int, default=10, help="of each std")
    parser.add_argument("--stars", type=int, default=4000)
    parser.add_argument("--cells", type=int, default=200, help="of the mock, per axis")
    arguments = parser.parse_args()
    for std in arguments.stds:
        rows = []
        for seed in range(arguments.mocks):
            mock = Mock.draw(
                seed,
                lengthscale=arguments.lengthscale,
                std=std,
                scale_height=arguments.scale_height,
                stars=arguments.stars,
                cells=arguments.cells,
            )
            began = time.process_time()
            found = learnt(mock, 100 + seed, arguments.lengthscale)
            seconds = time.process_time() - began
            row = [ratios(s, arguments, std) for s in (found.approximate, found.scales)]
            rows.append(row)
            numbers = " ".join(f"{x:.3f}" for x in row[1])
            print(
                f"std {std:g}, mock {seed}: {numbers}; error of ln lengthscale "
                f"{found.errors['lengthscale']:.2f}, {found.steps} steps, "
                f"{'converged' if found.converged else 'not converged'}, "
                f"{seconds:.1f} CPU s",
                flush=True,
            )
        logarithms = np.log(np.array(rows))
        for name, part in zip(("likelihood", "simulations"), (0, 1)):
            means = np.exp(logarithms[:, part].mean(axis=0))
            scatter = logarithms[:, part].std(axis=0, ddof=min(1, len(rows) - 1))
            summary = ", ".join(
                f"{column} {m:.3f} ± {s:.3f}"
                for column, m, s in zip(COLUMNS, means, scatter, strict=True)
            )
            print(f"std {std:g}, {name}: {summary}", flush=True)


if __name__ == "__main__":
    main()
