#!/usr/bin/env python
"""Seconds and memory of the residual that neighbouring stars share, by stars.

Stars are even in a box of 2.5 by 2.5 by 0.8 kpc around the observer. Residuals are
waves over the sky, in proportion to the distance, with 0.02 mag of noise, and 1% of
them outliers; the mean map is a random cube of 50 pc. Every one of 32 samples has the
residuals. Learning includes the weights of outliers; predictions are to as many places
as there are stars.
"""

from __future__ import annotations

import time

import numpy as np
import psutil
import torch
from report import Report, Row, parser

from dustmap.grid import Grid
from dustmap.residual.field import rays_to
from dustmap.residual.field_learning import learn_residual
from dustmap.residual.rays import DensityCube

HALF, STEP = np.array([1250.0, 1250.0, 400.0]), 50.0
NOISE, OUTLIERS, SAMPLES, HELD = 0.02, 0.01, 32, 3000


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--stars", type=int, nargs="+", default=[10_000, 100_000])
    given = options.parse_args()
    report = Report.of("residual", __doc__, given)
    counts = [2000] if given.quick else given.stars
    rows = [one_size(count, given.seed) for count in counts]
    report.tables = {"Stars": rows}
    report.write(given.output)


def one_size(count: int, seed: int) -> Row:
    """Learn from so many stars, and predict as many places."""
    rng = np.random.default_rng(seed)
    values = densities(rng)
    grid = Grid(shape=tuple(values.shape), origin=tuple(-HALF), spacing=(STEP,) * 3)
    cube = DensityCube(values=values.reshape(-1), grids=(grid,))
    ends = torch.from_numpy(rng.uniform(-1, 1, (2 * count, 3)) * HALF)
    # What the cube misses: waves that neighbouring rays share.
    waves = torch.sin(ends / ends.norm(dim=1, keepdim=True) * 40).sum(1)
    mean = 5e-4 * ends.norm(dim=1)
    noise = torch.from_numpy(rng.standard_normal(count)) * NOISE
    noise[: int(OUTLIERS * count)] *= 50
    residual = (0.1 * mean * waves)[:count] + noise
    order = torch.from_numpy(rng.permutation(count))
    rays = rays_to(ends[:count], mean[:count], 0.0)[order]
    residuals = residual[order].expand(SAMPLES, -1).contiguous()
    held = torch.arange(count - min(HELD, count // 5), count)
    variance = torch.full((count,), NOISE**2, dtype=torch.float64)
    start = time.perf_counter(), time.process_time()
    field = learn_residual(rays, residuals, variance, held, cube=cube)
    learnt = time.perf_counter(), time.process_time()
    corrected = mean[count:].expand(SAMPLES, -1)
    for part in torch.arange(count).split(65_536):
        field.correct(ends[count:][part], corrected[:, part])
    done = time.perf_counter(), time.process_time()
    return {
        "stars": count,
        "learning [s]": learnt[0] - start[0],
        "learning, CPU [s]": learnt[1] - start[1],
        "predicting [s]": done[0] - learnt[0],
        "predicting, CPU [s]": done[1] - learnt[1],
        "memory [GiB]": psutil.Process().memory_info().rss / 2**30,
    }


def densities(rng: np.random.Generator) -> torch.Tensor:
    """Densities [mag/pc] at the points of the box."""
    shape = [int(2 * half / STEP) + 1 for half in HALF]
    return torch.from_numpy(5e-4 * np.exp(0.5 * rng.standard_normal(shape)))


if __name__ == "__main__":
    main()
