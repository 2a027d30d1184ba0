#!/usr/bin/env python3
"""What whitening takes (section 5.2, Tables 1 and S1 to S3).

Features ``k_n`` of 200 random observations in one dimension, for M equidistant inducing
points, four kernels of variance 0.1 and a lengthscale of one spacing, as in the paper,
and of three. Cholesky and PCG (to 1e-10, at most 500 iterations) as there; beside them
this project's torus, which needs no solve but has points beyond the grid, a periodised
kernel and rows ``k_un`` of its own. Times are processor seconds of all threads, in
float64, of the set-up and of ``k_n`` from given ``k_un``; where fewer rows were timed,
200 are in proportion to them. Methods run in turn, so that the ratios of their times
can be compared with the paper's on its V100, on which a dense factor is comparatively
cheap.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from data import grid_of
from engines import embedded
from jaxtyping import Float
from paper_report import Report, Row, cell, ratio, run_script, stopwatch
from torch import Tensor

from dustmap.covariance import inducing_covariance
from dustmap.functionals import PointValues
from dustmap.grid import Grid
from dustmap.kernels import KERNELS, Radial
from dustmap.linalg.cg import ConjugateGradients
from dustmap.whitening import CholeskyWhitening, TorusWhitening, padded_torus

PCG, TORUS, CHOLESKY = "PCG (Toeplitz)", "torus", "Cholesky"
# Of the PCG solve, as in the paper, and of everything else that has a tolerance.
_RTOL = 1e-10
_MOST_STEPS = 500
_JITTER = 1e-6
# Numbers in one chunk of rows: their temporaries take a few times as much.
_CHUNK = 2**22
_ROWS = 200
_VARIANCE = 0.1
_SPACINGS = "lengthscale / spacing"
_SE = "squared-exponential"
_NAMES = {
    "matern12": "Matérn 1/2",
    "matern32": "Matérn 3/2",
    "matern52": "Matérn 5/2",
    _SE: "SE",
}
# Seconds of HIP-GP for M = 10³, 10⁴, 10⁵, 10⁶ and of SVGP for the first two.
_PAPER = {
    "matern12": ("Table S1", (0.0078, 0.0187, 0.3484, 1.4727), (0.0152, 0.1516)),
    "matern32": ("Table S2", (0.0087, 0.0192, 0.3479, 1.4656), (0.0142, 0.1379)),
    "matern52": ("Table 1", (0.0045, 0.0185, 0.3475, 1.4595), (0.0175, 0.1745)),
    _SE: ("Table S3", (0.0112, 0.0199, 0.3683, 2.3433), (0.7090, 0.0992)),
}
SIZES = {
    # Rows of PCG and the torus by M; with the SE kernel of three spacings, with which
    # PCG runs into its limit, fewer or none.
    "rows": (
        {10**3: _ROWS, 10**4: _ROWS, 10**5: 50, 10**6: 10},
        {200: 20, 1_000: 20},
    ),
    "singular_rows": ({10**3: 50, 10**4: 10, 10**5: 1, 10**6: 0}, {200: 5, 1_000: 0}),
    "repeats": ({10**3: 3, 10**4: 1, 10**5: 1, 10**6: 1}, {200: 2, 1_000: 2}),
    # Points up to which Cholesky runs, all rows.
    "most_dense": (10**4, 1_000),
}


@dataclass(slots=True, kw_only=True, eq=False)
class Timed:
    """Processor seconds of the set-up and of some rows; iterations of their solves."""

    rows: int
    setup: float
    seconds: float = 0.0
    iterations: int | None = None
    unconverged: int = 0


def experiment(report: Report, given: SimpleNamespace) -> None:
    """Time every method with every kernel on every grid."""
    title = "Processor seconds of 200 rows with the set-up"
    compare(report, report.collect(title, run(given)))


def run(given: SimpleNamespace) -> Iterator[Row]:
    """Time all methods that there are at a size, as often as is wanted."""
    for size, spacings, family in product(given.rows, (1, 3), _NAMES):
        singular = (family, spacings) == (_SE, 3)
        count = (given.singular_rows if singular else given.rows)[size]
        if not count:
            continue
        grid = grid_of((0.0,), (1.0,), size)
        kernel = KERNELS[family](lengthscale=spacings / size, variance=_VARIANCE)
        generator = torch.Generator().manual_seed(given.seed)
        at = torch.rand(_ROWS, 1, generator=generator, dtype=torch.float64)
        counts = {PCG: count, TORUS: count}
        if size <= given.most_dense:
            counts[CHOLESKY] = _ROWS
        repeats = range(given.repeats[size])
        with torch.no_grad():
            runs = [whiten_rows(counts, kernel, grid, at) for _ in repeats]
        solves = runs[0][PCG]
        yield {
            "kernel": family,
            _SPACINGS: spacings,
            "M": size,
            **{
                method: best_total([timed[method] for timed in runs])
                for method in counts
            },
            "iterations": solves.iterations,
            "missed 1e-10": f"{solves.unconverged} of {solves.rows}",
        }


def best_total(runs: Sequence[Timed]) -> float:
    """Return the least seconds of 200 rows: set-up, and rows in proportion."""
    seconds = min(timed.seconds for timed in runs)
    return min(timed.setup for timed in runs) + seconds * _ROWS / runs[0].rows


def prepare(name: str, kernel: Radial, grid: Grid) -> Any:
    """Set up everything that does not depend on the rows.

    Kernel and points of the result make ``k_un``, its ``features`` make ``k_n`` of it.
    """
    if name == TORUS:
        torus = padded_torus(grid, kernel, _RTOL)
        whitening = TorusWhitening(kernel, torus)
        inverse_root = whitening.coarse.power(-0.5)
        points = Grid(shape=torus.shape, spacing=grid.spacing, origin=grid.origin)
        # k_n = C^{-1/2} k_cn: one product in Fourier space.
        return SimpleNamespace(
            kernel=kernel.periodised(torus.periods, whitening.image_tolerance),
            points=points.points(),
            features=lambda cross: (inverse_root.matvec(cross), None, None),
        )
    if name == CHOLESKY:
        return CholeskyWhitening(kernel, grid.points(), max_jitter=_JITTER)
    solver = ConjugateGradients(rtol=_RTOL, max_steps=_MOST_STEPS)
    return embedded(kernel, grid, solver)


def whiten_rows(
    counts: dict[str, int], kernel: Radial, grid: Grid, at: Float[Tensor, "n d"]
) -> dict[str, Timed]:
    """Whiten by every method its first rows, in turn after each chunk.

    In turn, so that whatever else the machine does slows all of them alike.
    """
    found, prepared = {}, {}
    for name, rows in counts.items():
        with stopwatch(time.process_time) as taken:
            prepared[name] = prepare(name, kernel, grid)
        found[name] = Timed(rows=rows, setup=taken[0])
    size = max(1, _CHUNK // (2 * grid.size))
    starts = range(0, max(counts.values()), size)
    for start, (name, timed) in product(starts, found.items()):
        some = PointValues(at[start : min(start + size, timed.rows)])
        if not len(some):
            continue
        method = prepared[name]
        cross = inducing_covariance(method.kernel, some, method.points)
        with stopwatch(time.process_time) as taken:
            _, _, solution = method.features(cross)
        timed.seconds += taken[0]
        if name == PCG and solution is not None:
            most = int(solution.iterations.max())
            timed.iterations = max(timed.iterations or 0, most)
            timed.unconverged += int((~solution.converged).sum())
    return found


def compare(report: Report, rows: Sequence[Row]) -> None:
    """Compare the tables' ratios, and the torus that the paper has not."""

    def seconds(method: str, name: str, size: int) -> float | None:
        return cell(rows, method, **{"kernel": name, "M": size, _SPACINGS: 1})

    for name, (table, ours, theirs) in _PAPER.items():
        for size, hip, dense in zip((10**3, 10**4), ours, theirs, strict=False):
            what = f"time of Cholesky / PCG, {_NAMES[name]}, M = {size:,}"
            here = ratio(seconds(CHOLESKY, name, size), seconds(PCG, name, size))
            report.compare(what, table, f"{dense / hip:.3g}", here)
    for name, (table, hip, _) in _PAPER.items():
        what = f"time of PCG, M = 10⁶ / M = 10³, {_NAMES[name]}"
        here = ratio(seconds(PCG, name, 10**6), seconds(PCG, name, 10**3))
        report.compare(what, table, f"{hip[-1] / hip[0]:.3g}", here)
    for spacings, name in product((1, 3), _NAMES):
        if (name, spacings) == (_SE, 3):
            continue  # PCG does not converge: not run at this size
        how = f"{spacings} spacing{'s' if spacings > 1 else ''}"
        what = f"time of PCG / torus, {_NAMES[name]}, M = 10⁶, lengthscale {how}"
        case = {"kernel": name, "M": 10**6, _SPACINGS: spacings}
        here = ratio(cell(rows, PCG, **case), cell(rows, TORUS, **case))
        steps = cell(rows, "iterations", **case)
        remark = "" if steps is None else f"{steps} PCG iterations"
        report.compare(what, "no torus there", None, here, remark)


if __name__ == "__main__":
    run_script(__file__, __doc__, experiment, SIZES)
