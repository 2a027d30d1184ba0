"""Three ways from ``k_un`` to features ``k_n`` with ``k_n · k_n' = k_unᵀ K⁻¹ k_un'``.

Each is set up for a kernel and a grid, and then takes rows in chunks; what either takes
is timed. The torus has inducing points beyond the grid and a periodised kernel, and
rows ``k_un`` of its own.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.covariance import inducing_covariance
from dustmap.functionals import Functionals, PointValues
from dustmap.grid import Grid
from dustmap.kernels import Kernel, Radial
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.whitening import (
    CholeskyWhitening,
    ToeplitzWhitening,
    TorusWhitening,
    padded_torus,
)

PCG, TORUS, CHOLESKY = "PCG (Toeplitz)", "torus", "Cholesky"
# Of the PCG solve, as in the paper, and of everything else that has a tolerance.
_RTOL = 1e-10
_MOST_STEPS = 500
_JITTER = 1e-6
# Numbers in one chunk of rows: their temporaries take a few times as much.
_CHUNK = 2**22
# Rows whose inner products are compared with those of PCG.
CHECKED = 4


@contextmanager
def processor_time() -> Iterator[list[float]]:
    """Processor time of the block [s], of all threads, when it has ended.

    Unlike the wall's it does not grow with what else the machine does.
    """
    taken = [0.0]
    started = time.process_time()
    yield taken
    taken[0] = time.process_time() - started


class Prepared(ABC):
    """One method after its set-up."""

    kernel: Kernel
    points: Float[Tensor, "m d"]
    note = ""

    @abstractmethod
    def features(
        self, cross: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b p"], Solution | None]:
        """``k_n`` of every row, and the status of what it took, if it was a solve."""


class _Shared(Prepared):
    """A whitening of the grid's own points with the plain kernel."""

    def __init__(self, whitening: ToeplitzWhitening | CholeskyWhitening) -> None:
        self.whitening = whitening
        self.kernel, self.points = whitening.kernel, whitening.points

    def features(self, cross: Tensor) -> tuple[Tensor, Solution | None]:
        return self.whitening.features(cross)


class _Torus(Prepared):
    """``k_n = C^{-1/2} k_cn``: one product in Fourier space, no solve."""

    def __init__(self, kernel: Radial, grid: Grid) -> None:
        torus = padded_torus(grid, kernel, _RTOL)
        self.whitening = TorusWhitening(kernel, torus)
        self.inverse_root = self.whitening.coarse.power(-0.5)
        self.kernel = self.whitening.periodic
        everywhere = Grid(shape=torus.shape, spacing=grid.spacing, origin=grid.origin)
        self.points = everywhere.points()
        self.note = f"{self.whitening.report.dropped_modes} modes dropped"

    def features(self, cross: Tensor) -> tuple[Tensor, None]:
        return self.inverse_root.matvec(cross), None


def prepare(name: str, kernel: Radial, grid: Grid) -> Prepared:
    """Everything that does not depend on the rows."""
    if name == TORUS:
        return _Torus(kernel, grid)
    if name == CHOLESKY:
        cholesky = CholeskyWhitening(kernel, grid.points(), max_jitter=_JITTER)
        prepared = _Shared(cholesky)
        prepared.note = f"jitter {cholesky.report.jitter:.0e}"
        return prepared
    toeplitz = ToeplitzWhitening(
        kernel,
        grid,
        lengthscales=kernel.lengthscale.expand(grid.dimension).tolist(),
        solver=ConjugateGradients(rtol=_RTOL, max_steps=_MOST_STEPS),
    )
    prepared = _Shared(toeplitz)
    prepared.note = f"{toeplitz.report.negative_modes} modes set to zero"
    return prepared


@dataclass(slots=True, kw_only=True, eq=False)
class Timed:
    """What one method took, and the first rows' inner products.

    Parameters
    ----------
    setup
        Processor seconds of :func:`prepare`; the fastest of all repeats.
    rows
        How many were whitened.
    cross, seconds
        For ``k_un`` and for ``k_n`` of all of them; the fastest of all repeats.
    iterations, residual, unconverged
        Of the solves: the most, the worst, and how many missed the tolerance.
    gram
        ``k_n · k_n'`` of the first rows.
    """

    setup: float = 0.0
    rows: int = 0
    cross: float = 0.0
    seconds: float = 0.0
    iterations: int | None = None
    residual: float | None = None
    unconverged: int = 0
    gram: Float[Tensor, "c c"] = field(default_factory=lambda: torch.zeros(0, 0))
    note: str = ""

    def total(self, count: int) -> float:
        """Seconds for so many rows: set-up, and rows in proportion to those timed."""
        return self.setup + self.seconds * count / self.rows

    def saw(self, solution: Solution) -> None:
        """Add the status of one chunk."""
        most = int(solution.iterations.max())
        self.iterations = max(self.iterations or 0, most)
        self.residual = max(self.residual or 0.0, float(solution.residual.max()))
        self.unconverged += int((~solution.converged).sum())


def whiten_rows(
    names: dict[str, int], kernel: Radial, grid: Grid, at: Float[Tensor, "n d"]
) -> dict[str, Timed]:
    """Every method on its first so many rows, in turn after each chunk.

    In turn, so that whatever else the machine does slows all of them alike.
    """
    found = {name: Timed(rows=rows) for name, rows in names.items()}
    prepared = {}
    for name, timed in found.items():
        with processor_time() as taken:
            prepared[name] = prepare(name, kernel, grid)
        timed.setup = taken[0]
        timed.note = prepared[name].note
    size = max(1, _CHUNK // (2 * grid.size))
    for start in range(0, max(names.values()), size):
        for name, timed in found.items():
            stop = min(start + size, timed.rows)
            if start < stop:
                _whiten(timed, prepared[name], PointValues(at[start:stop]), start)
    return found


def _whiten(timed: Timed, method: Prepared, part: Functionals, start: int) -> None:
    with processor_time() as crossing:
        cross = inducing_covariance(method.kernel, part, method.points)
    with processor_time() as taken:
        features, solution = method.features(cross)
    timed.cross += crossing[0]
    timed.seconds += taken[0]
    if solution is not None:
        timed.saw(solution)
    if start == 0:
        timed.gram = features[:CHECKED] @ features[:CHECKED].mT


def fastest(runs: list[dict[str, Timed]]) -> dict[str, Timed]:
    """The first run's results with each method's least time over all runs."""
    best = runs[0]
    for name, timed in best.items():
        for what in ("setup", "cross", "seconds"):
            setattr(timed, what, min(getattr(run[name], what) for run in runs))
    return best
