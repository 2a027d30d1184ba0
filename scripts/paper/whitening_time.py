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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from paper_report import Comparison, Report, Row, Size, parser, size_of
from torch import Tensor

from dustmap.covariance import inducing_covariance
from dustmap.functionals import PointValues
from dustmap.grid import Grid
from dustmap.kernels import KERNELS, Kernel, Radial
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.whitening import (
    CholeskyWhitening,
    ToeplitzWhitening,
    TorusWhitening,
    padded_torus,
)
from pipelines.base.progress import say

PCG, TORUS, CHOLESKY = "PCG (Toeplitz)", "torus", "Cholesky"
# Of the PCG solve, as in the paper, and of everything else that has a tolerance.
_RTOL = 1e-10
_MOST_STEPS = 500
_JITTER = 1e-6
# Numbers in one chunk of rows: their temporaries take a few times as much.
_CHUNK = 2**22
_ROWS = 200
_VARIANCE = 0.1
_NAMES = {
    "matern12": "Matérn 1/2",
    "matern32": "Matérn 3/2",
    "matern52": "Matérn 5/2",
    "squared-exponential": "SE",
}
# Seconds of HIP-GP for M = 10³, 10⁴, 10⁵, 10⁶ and of SVGP for the first two.
_PAPER = {
    "matern12": ("Table S1", (0.0078, 0.0187, 0.3484, 1.4727), (0.0152, 0.1516)),
    "matern32": ("Table S2", (0.0087, 0.0192, 0.3479, 1.4656), (0.0142, 0.1379)),
    "matern52": ("Table 1", (0.0045, 0.0185, 0.3475, 1.4595), (0.0175, 0.1745)),
    "squared-exponential": (
        "Table S3",
        (0.0112, 0.0199, 0.3683, 2.3433),
        (0.7090, 0.0992),
    ),
}
_SIZES = (10**3, 10**4, 10**5, 10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run.

    ``rows`` of PCG and the torus and ``repeats`` by M; Cholesky runs all rows up to
    ``most_dense`` points. ``singular_rows`` instead of ``rows`` for the SE kernel of
    three spacings, with which PCG runs into its limit (0: not run).
    """

    rows: dict[int, int]
    singular_rows: dict[int, int]
    repeats: dict[int, int]
    most_dense: int


PLANS: dict[Size, Plan] = {
    "quick": Plan(
        rows={200: 20, 1_000: 20},
        singular_rows={200: 5, 1_000: 0},
        repeats={200: 2, 1_000: 2},
        most_dense=1_000,
    ),
    "default": Plan(
        rows=dict(zip(_SIZES, (_ROWS, _ROWS, 50, 10), strict=True)),
        singular_rows=dict(zip(_SIZES, (50, 10, 1, 0), strict=True)),
        repeats=dict(zip(_SIZES, (3, 1, 1, 1), strict=True)),
        most_dense=10**4,
    ),
}


class Prepared(NamedTuple):
    """A method after its set-up: what makes ``k_un`` and what makes ``k_n`` of it."""

    kernel: Kernel
    points: Float[Tensor, "m d"]
    features: Callable[[Tensor], tuple[Tensor, Any, Solution | None]]


@dataclass(slots=True, kw_only=True, eq=False)
class Timed:
    """Processor seconds of the set-up and of some rows; iterations of their solves."""

    rows: int
    setup: float
    seconds: float = 0.0
    iterations: int | None = None
    unconverged: int = 0

    def total(self) -> float:
        """Return the seconds of 200 rows: set-up, and rows in proportion."""
        return self.setup + self.seconds * _ROWS / self.rows


def main() -> None:
    options = parser(__doc__).parse_args()
    report = Report.of("whitening_time", __doc__, options)
    plan = PLANS[size_of(options)]
    rows = []
    for size, usual in plan.rows.items():
        for spacings in (1, 3):
            for name in _NAMES:
                singular = name == "squared-exponential" and spacings == 3
                count = plan.singular_rows[size] if singular else usual
                if count:
                    rows.append(run(name, spacings, size, count, plan, options.seed))
    report.comparisons = comparisons(rows)
    report.tables = {"Processor seconds of 200 rows with the set-up": rows}
    report.write(options.output)


def run(name: str, spacings: int, size: int, count: int, plan: Plan, seed: int) -> Row:
    """Time all methods that the plan has for this size, as often as it says."""
    grid = Grid(shape=(size,), spacing=(1 / (size - 1),), origin=(0.0,))
    kernel = KERNELS[name](lengthscale=spacings / size, variance=_VARIANCE)
    generator = torch.Generator().manual_seed(seed)
    at = torch.rand(_ROWS, 1, generator=generator, dtype=torch.float64)
    counts = {PCG: count, TORUS: count}
    if size <= plan.most_dense:
        counts[CHOLESKY] = _ROWS
    with torch.no_grad():
        runs = [
            whiten_rows(counts, kernel, grid, at) for _ in range(plan.repeats[size])
        ]
    best = {}
    for method, timed in runs[0].items():
        timed.setup = min(found[method].setup for found in runs)
        timed.seconds = min(found[method].seconds for found in runs)
        best[method] = timed.total()
    solves = runs[0][PCG]
    row: Row = {
        "kernel": name,
        "lengthscale / spacing": spacings,
        "M": size,
        **best,
        "iterations": solves.iterations,
        "missed 1e-10": f"{solves.unconverged} of {solves.rows}",
    }
    say(str(row))
    return row


def prepare(name: str, kernel: Radial, grid: Grid) -> Prepared:
    """Set up everything that does not depend on the rows."""
    if name == TORUS:
        torus = padded_torus(grid, kernel, _RTOL)
        whitening = TorusWhitening(kernel, torus)
        inverse_root = whitening.coarse.power(-0.5)
        points = Grid(
            shape=torus.shape, spacing=grid.spacing, origin=grid.origin
        ).points()
        # k_n = C^{-1/2} k_cn: one product in Fourier space.
        return Prepared(
            kernel.periodised(torus.periods, whitening.image_tolerance),
            points,
            lambda cross: (inverse_root.matvec(cross), None, None),
        )
    if name == CHOLESKY:
        whitening = CholeskyWhitening(kernel, grid.points(), max_jitter=_JITTER)
    else:
        whitening = ToeplitzWhitening(
            kernel,
            grid,
            lengthscales=kernel.lengthscale.expand(grid.dimension).tolist(),
            solver=ConjugateGradients(rtol=_RTOL, max_steps=_MOST_STEPS),
        )
    return Prepared(whitening.kernel, whitening.points, whitening.features)


def whiten_rows(
    counts: dict[str, int], kernel: Radial, grid: Grid, at: Float[Tensor, "n d"]
) -> dict[str, Timed]:
    """Whiten by every method its first rows, in turn after each chunk.

    In turn, so that whatever else the machine does slows all of them alike.
    """
    found, prepared = {}, {}
    for name, rows in counts.items():
        started = time.process_time()
        prepared[name] = prepare(name, kernel, grid)
        found[name] = Timed(rows=rows, setup=time.process_time() - started)
    size = max(1, _CHUNK // (2 * grid.size))
    for start in range(0, max(counts.values()), size):
        for name, timed in found.items():
            stop = min(start + size, timed.rows)
            if start >= stop:
                continue
            method = prepared[name]
            cross = inducing_covariance(
                method.kernel, PointValues(at[start:stop]), method.points
            )
            started = time.process_time()
            _, _, solution = method.features(cross)
            timed.seconds += time.process_time() - started
            if name == PCG and solution is not None:
                most = int(solution.iterations.max())
                timed.iterations = max(timed.iterations or 0, most)
                timed.unconverged += int((~solution.converged).sum())
    return found


def comparisons(rows: Sequence[Row]) -> list[Comparison]:
    """Compare the tables' ratios, and the torus that the paper has not."""
    by = {(r["kernel"], r["lengthscale / spacing"], r["M"]): r for r in rows}

    def ratio(above: tuple[str, Row | None], below: tuple[str, Row | None]):
        (a, first), (b, second) = above, below
        if first is None or second is None or a not in first:
            return None
        return first[a] / second[b]

    found = [
        Comparison(
            what=f"time of Cholesky / PCG, {_NAMES[name]}, M = {size:,}",
            source=table,
            paper=f"{svgp / hip:.3g}",
            here=ratio((CHOLESKY, case := by.get((name, 1, size))), (PCG, case)),
        )
        for name, (table, ours, theirs) in _PAPER.items()
        for size, hip, svgp in zip(_SIZES, ours, theirs, strict=False)
    ]
    found += [
        Comparison(
            what=f"time of PCG, M = 10⁶ / M = 10³, {_NAMES[name]}",
            source=table,
            paper=f"{hip[-1] / hip[0]:.3g}",
            here=ratio(
                (PCG, by.get((name, 1, 10**6))), (PCG, by.get((name, 1, 10**3)))
            ),
        )
        for name, (table, hip, _) in _PAPER.items()
    ]
    for spacings in (1, 3):
        for name in _NAMES:
            case = by.get((name, spacings, 10**6))
            if spacings == 3 and name == "squared-exponential":
                continue  # PCG does not converge: not run at this size
            remark = ""
            if case is not None:
                remark = f"{case['iterations']} PCG iterations"
            found.append(
                Comparison(
                    what=f"time of PCG / torus, {_NAMES[name]}, M = 10⁶, lengthscale "
                    f"{spacings} spacing{'s' if spacings > 1 else ''}",
                    source="no torus there",
                    paper=None,
                    here=ratio((PCG, case), (TORUS, case)),
                    remark=remark,
                )
            )
    return found


if __name__ == "__main__":
    main()
