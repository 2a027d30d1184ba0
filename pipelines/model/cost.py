"""What a fit costs on this machine: memory from counts, time from a short test."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import psutil
import scipy.sparse
import torch

from dustmap.grid import Grid
from dustmap.kernels import Radial
from dustmap.linalg.sparse import SparseMatrix
from dustmap.models.lognormal import LEADING
from dustmap.whitening import nested_tori, transformed_points
from pipelines.config import FitConfig

# Entries of W per cell that a ray crosses, with linear weights and half-cell steps:
# measured 5.6 to 5.8 on isotropic stars. Cubic weights touch about 4 times as many.
_ENTRIES_PER_CELL = {"linear": 5.8, "cubic": 24.0}
# Iterations a column takes before its relative residual is 1e-3, with the Nyström
# preconditioner, on catalogues of a few per cent noise.
_ITERATIONS = 300
# Of a lognormal fit: iterations of the Gauss-Newton steps to the mode and of the fit of
# a sample (measured: 265 to 368, and 55 to 68); fits of samples before all are fitted.
_MODE_ITERATIONS, _SAMPLE_ITERATIONS, _ROUGH_FITS = 330, 60, 8
# What such an iteration takes of the time foreseen from blocks of vectors, with its
# part of tangents and line searches. Fits of 43,000, 3,440 and 116,000 stars (one grid,
# one grid and a std of 1.68, three nested grids), with the machine's speed measured
# anew, give 25, 27 to 29 and 139 to 143 s; they had taken 21, 30 and 147 s.
_SINGLY = 3.1
# What an iteration takes of that in fits of samples, many of which share its passes:
# inference of 48,000 to 125,000 stars took 28 to 66 s where 37 to 54 s are foreseen.
_TOGETHER = 0.35
# With noise that neighbours share: iterations of a sample (measured: 19 to 33), to the
# mode with its preconditioner, what an iteration takes beside one with
# independent noise, and seconds for a star's row of the precision, on two threads.
_SHARED_ITERATIONS, _SHARED_MODE, _SHARED, _PER_ROW = 26, 130, 1.5, 1.2e-4
# Beyond this std of the logarithm samples take longer, and a second round: by about the
# square of the ratio (foreseen without it at 2.05: 130 s, taken more than 400 s).
_EASY_STD = 1.25
# Python, torch, numba, and the search and learning of scales before the fit [bytes]; a
# star's columns, neighbours and places [bytes]: from peaks of 1.27 GiB for 94,161
# stars and 1.90 GiB for 501,000; W of averaged sight lines and of distance errors,
# relative to that of plain ones.
_PROGRAM, _PER_STAR, _OF_DISTANCES = 1.1e9, 750.0, 1.2
# For how long each speed is measured [s].
_TESTED = 0.1
# What takes about as long for any catalogue [s], on two idle cores: the scales from
# 4,000 stars, what neighbours share, held-out stars, and kriging of them without a
# map. Measured for 6,000 and 57,000 stars: 6 and 9, 4 and 7, 4 and 6, 5 and 9.
_BESIDE = {"scales": 7.5, "residual": 6.5, "tests": 5.0, "baselines": 6.0}
# Vectors of a log-normal fit's preconditioner, and how many for every star per point.
_FEWEST_VECTORS, _MOST_VECTORS, _PER_UNKNOWN = 16, 100, 700
# Fraction of a CUDA device's memory for a fit: the rest is torch's and cuFFT's.
_OF_DEVICE = 0.8
# What the precision of noise that neighbours share holds of a star [bytes]: 31 entries,
# with the weights and the neighbours that they are made of.
_PRECISION = 31 * 12.0 + 30 * 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds per unit of work: an FFT point times its log2, an entry of W, a flop.

    ``streamed`` is a flop in the product of a matrix and a single vector, which waits
    for the matrix to come from memory.
    """

    fft: float
    entry: float
    flop: float
    streamed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The size of a fit: points of the torus, stars, mean ray length in cells.

    ``transformed`` are the points of all transforms of a lognormal field, one after
    another: those of the torus, if ``None``; of nested ones more. Of ``ranks``
    processes ``here`` are on this machine. They make ``teams`` that share out the
    samples; those of a team share out the stars' rows of W. ``on_cuda`` each has a
    device of its own, which keeps the transpose of W as well. ``std`` is the prior's,
    of the logarithm of a lognormal density; its noise may be ``correlated``.
    """

    torus_points: int
    stars: int
    ray_cells: float
    transformed: int | None = None
    refinement: int = 1
    residual_refinement: int = 2
    residual_count: int = 16
    samples: int = 32
    block: int = 8
    rank: int = 100
    itemsize: int = 4
    interpolation: str = "linear"
    tolerance: float = 1e-3
    lognormal: bool = False
    correlated: bool = False
    std: float = 1.0
    ranks: int = 1
    here: int = 1
    teams: int = 1
    on_cuda: bool = False

    def shared_out(self, ranks: int, here: int) -> Work:
        """The same by so many processes."""
        return replace(self, ranks=ranks, here=here)

    @property
    def entries(self) -> float:
        """Entries of W, of all ranks."""
        cells = self.ray_cells * self.refinement
        return self.stars * (cells + 1) * _ENTRIES_PER_CELL[self.interpolation]

    @property
    def sharing(self) -> float:
        """Processes that share out the rows of W."""
        return self.ranks / self.teams


def measure(dtype: torch.dtype, device: torch.device) -> Speed:
    """Time an FFT, a sparse product and a dense product (about half a second)."""
    shape, batch, rows, per_row = (64, 64, 32), 8, 20_000, 64
    points = math.prod(shape)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, dtype=dtype, device=device)

    def seconds_of(action: Callable[[], object]) -> float:
        return _seconds(action, device)

    places = torch.randint(points, (rows, per_row)).sort(dim=1).values.numpy()
    starts = np.arange(0, rows * per_row + 1, per_row)
    entries = (np.ones(places.size), places.ravel(), starts)
    matrix = SparseMatrix(
        scipy.sparse.csr_matrix(entries, shape=(rows, points)),
        dtype=dtype,
        device=device,
    )
    field, columns = normal(batch, *shape), normal(batch, points)
    right = normal(points, per_row)
    # Larger than the processor's caches.
    tall = normal(64, 4 * points)
    transform = seconds_of(
        lambda: torch.fft.irfftn(
            torch.fft.rfftn(field, dim=(1, 2, 3)), s=shape, dim=(1, 2, 3)
        )
    )
    sparse = seconds_of(lambda: matrix.matvec(columns))
    dense = seconds_of(lambda: columns @ right)
    return Speed(
        fft=transform / (batch * points * math.log2(points)),
        entry=sparse / (batch * rows * per_row),
        flop=dense / (2 * columns.numel() * per_row),
        streamed=seconds_of(lambda: torch.mv(tall, tall[0])) / (2 * tall.numel()),
    )


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    """The mean of runs for a tenth of a second, after a first one.

    Not the shortest: what else the machine does slows the fit, too.
    """
    action()
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < _TESTED or not count:
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        count += 1
    return passed / count


# The speed at which these were measured.
_USUAL = Speed(fft=2.6e-10, entry=1.6e-10, flop=2.1e-11, streamed=7e-11)


def beside(speed: Speed) -> dict[str, float]:
    """What a fit takes beside its solves [s], longer where the machine is slower."""
    pairs = zip(astuple(speed), astuple(_USUAL), strict=True)
    slower = math.prod(now / usual for now, usual in pairs) ** 0.25
    return {part: max(slower, 1.0) * usual for part, usual in _BESIDE.items()}


def seconds(work: Work, speed: Speed) -> float:
    """Time of the solves and of the draws behind the sub-grid variance."""
    return sum(parts(work, speed).values())


def parts(work: Work, speed: Speed) -> dict[str, float]:
    """That time [s] by part: a ``first map`` with independent noise, ``map``, samples.

    A Gaussian density has its ``samples`` alone.
    """
    points = work.torus_points
    fine = points * work.refinement**3
    flop = speed.streamed if work.lognormal else speed.flop
    transformed = work.transformed or points
    transforms, vectors = 2 * fine, 4 * work.rank * points
    if work.lognormal:
        vectors *= LEADING**3
        if work.refinement == 1:
            transforms = transformed
    column = (
        transforms * math.log2(fine) * speed.fft
        + 2 * work.entries / work.sharing * speed.entry
        + vectors * flop
        + 20 * transformed * speed.entry
    )
    if not work.lognormal:
        steps = _ITERATIONS * max(0.3, math.log10(work.tolerance) / -3)
        columns = work.samples / work.teams + 1 + work.rank / steps
        residual = points * work.residual_refinement**3
        draw = 2 * residual * math.log2(residual) * speed.fft
        return {"samples": steps * columns * column + work.residual_count * draw}
    once = max(1.0, work.std / _EASY_STD) ** 2 * _SINGLY * column
    mode = _MODE_ITERATIONS * once
    if work.correlated:
        each = _SHARED * _SHARED_ITERATIONS * _TOGETHER * once
        rows = _PER_ROW * work.stars
        found = {"first map": mode, "map": _SHARED * _SHARED_MODE * once + rows}
        sampled = work.samples / work.teams * each
    else:
        each = _SAMPLE_ITERATIONS * _TOGETHER * once / work.teams
        found = {"map": mode}
        sampled = (work.samples + _ROUGH_FITS) * each if work.samples else 0.0
    return {**found, "samples": sampled / 2, "refined samples": sampled / 2}


def memory(work: Work) -> dict[str, float]:
    """Bytes at the peak of the fit, by part, of every rank.

    W and what follows it are shared out; vectors over stars and grid are not.
    """
    item, points = work.itemsize, work.torus_points
    fine = points * work.refinement**3
    weights = work.entries / work.sharing * (2 if work.on_cuda else 1) * (4 + item)
    # Of the pairs of a lognormal fit's samples one half after the other.
    together = work.samples // 2 + 2 if work.lognormal else max(work.samples, 1)
    columns = min(work.block, together)
    share = LEADING**3 if work.lognormal else 1.0
    parts = {
        "program and libraries": _PROGRAM,
        "catalogue": _PER_STAR * work.stars,
        "projection W": _OF_DISTANCES * weights,
        "grid spectra": 20.0 * points + 3 * fine * item,
        "preconditioner": 2.0 * work.rank * points * item * share,
        "solver vectors": columns * (7 * points + 3 * fine) * item,
        "posterior samples": 2 * (work.samples + 1) * points * item,
    }
    if work.correlated:
        parts["precision of the noise"] = _PRECISION * work.stars
    if not work.lognormal:
        residual = points * work.residual_refinement**3
        ratio = work.residual_refinement / work.refinement
        parts["sub-grid variance"] = weights * ratio + 6 * residual * item
    return parts


def foreseen(work: Work) -> float:
    """Bytes at the peak of the fit, by all processes of a machine or on one device."""
    sharing = 1 if work.on_cuda else work.here
    return sum(memory(work).values()) * sharing


def available_memory(*, on_cuda: bool = False) -> float:
    """Total memory of the machine, or of the CUDA device [bytes]."""
    if on_cuda:
        return float(torch.cuda.get_device_properties().total_memory)
    return float(psutil.virtual_memory().total)


def memory_limit(config: FitConfig) -> float:
    """Bytes a fit may use: half of the machine's, or most of a CUDA device's."""
    if config.budget.memory_gib is not None:
        return config.budget.memory_gib * 2**30
    if uses_cuda(config):
        return available_memory(on_cuda=True) * _OF_DEVICE
    return available_memory() / 2


def uses_cuda(config: FitConfig) -> bool:
    """Whether a fit computes on CUDA: where it may, and torch sees a device."""
    return config.inference.device != "cpu" and torch.cuda.is_available()


def preconditioner_rank(config: FitConfig, stars: int, points: int) -> int:
    """That asked for, or what pays; 0 for none.

    Where stars are few per point of the torus solves are short and the products with a
    preconditioner cost most: 4,000 stars and 600,000 points took 98 s with 100 vectors
    and 60 s with 15, 46,000 stars and 300,000 points 44 s and 58 s.
    """
    inference = config.inference
    if inference.preconditioner == "none":
        return 0
    if inference.preconditioner_rank is not None:
        return inference.preconditioner_rank
    if config.density != "lognormal":
        return _MOST_VECTORS
    return min(
        max(round(_PER_UNKNOWN * stars / points), _FEWEST_VECTORS), _MOST_VECTORS
    )


def work_of(
    grids: Sequence[Grid],
    kernel: Radial,
    distances: np.ndarray,
    config: FitConfig,
    *,
    std: float = 1.0,
) -> Work:
    """The size of the full-batch fit on these nested grids."""
    tori = nested_tori(grids, kernel, config.model.wrap_tolerance)
    points = tori.size
    refinement = config.model.refinement
    return Work(
        torus_points=points,
        transformed=transformed_points(tori, kernel),
        stars=len(distances),
        ray_cells=_ray_cells(grids, distances),
        refinement=refinement,
        residual_refinement=residual_refinement(refinement),
        samples=config.inference.samples,
        rank=preconditioner_rank(config, len(distances), points),
        itemsize=8 if config.inference.dtype == "float64" else 4,
        interpolation=config.model.interpolation,
        tolerance=config.inference.tolerance,
        lognormal=config.density == "lognormal",
        correlated=config.shares_noise,
        std=std,
        teams=config.inference.teams,
        on_cuda=uses_cuda(config),
    )


def _ray_cells(grids: Sequence[Grid], distances: np.ndarray) -> float:
    """Cells that a sight line crosses, on average: of every level within its box."""
    bounds = [math.inf, *(grid.reach for grid in grids[1:]), 0.0]
    total = 0.0
    for grid, outer, inner in zip(grids, bounds[:-1], bounds[1:], strict=True):
        within = np.minimum(distances, outer) - np.minimum(distances, inner)
        total += float(within.mean()) / float(np.mean(grid.spacing))
    return total


def residual_refinement(refinement: int) -> int:
    """On which refinement the sub-grid residual is drawn."""
    return 2 if refinement == 1 else refinement
