"""The cost of a fit: memory and operations from counts, time from a machine's speed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import scipy.sparse
import torch

from dustmap.grid import Grid
from dustmap.kernels import Radial
from dustmap.linalg.sparse import SparseMatrix
from dustmap.projection.matrix import FEWER
from dustmap.whitening import nested_tori, transformed_points
from dustmap.whitening.modes import LEADING
from pipelines.base.allocation import total_memory
from pipelines.config import FitConfig

# Entries of W per crossed cell, with linear weights and half-cell steps.
_ENTRIES_PER_CELL = 5.8
# Entries of a tree of rays per point of the torus and per star with a distance error:
# 15 and 8 (23 with distance errors) for 960,000 stars and cells of 20 pc.
_TREE_PER_POINT = 16.0
_TREE_PER_STAR = 23.0
# Most stars of the maps from which scales, noise and the residual are learnt.
LEARNERS = 100_000
# Iterations per column to a relative residual of 1e-3, with the Nyström preconditioner,
# on catalogues of a few per cent noise.
_ITERATIONS = 300
# Samples that are fitted together where memory is short.
_FEW = 4
# Draws of the variance below the grid of a Gaussian density.
DRAWS = 16
# Vectors of each of them over points,
_OVER_POINTS = 10
# and over stars.
_OVER_STARS = 21
# For a lognormal fit: iterations of the Gauss-Newton steps to the mode,
_MODE_ITERATIONS = 330
# iterations per sample,
_SAMPLE_ITERATIONS = 60
# and preliminary fits of samples.
_ROUGH_FITS = 8
# Time of such an iteration relative to the estimate from blocks of vectors, with
# tangents and line searches.
_SINGLY = 3.1
# The same for fits of samples, which share passes. Beyond a million points vectors do
# not stay in the cache: iterations of 950,000 stars took 0.8 of single ones.
_TOGETHER = 0.35
_APART = 0.8
_CACHED = 1e6
# With noise shared by neighbours: iterations per sample (measured: 19 to 33),
_SHARED_ITERATIONS = 26
# to the mode with its preconditioner,
_SHARED_MODE = 130
# the time of an iteration relative to independent noise,
_SHARED = 1.5
# and seconds for a star's row of the precision, on two threads.
_PER_ROW = 3e-5
# Beyond this std of the logarithm samples take longer, by about the square of the
# ratio, and need a second round.
_EASY_STD = 1.25
# Python, torch, numba and learning before the fit [bytes].
_PROGRAM = 1.1e9
# Columns, neighbours and places per star [bytes].
_PER_STAR = 400.0
# W of averaged lines and of distance errors over W of plain ones.
_OF_DISTANCES = 1.2
# Time of each measurement of speed [s].
_TESTED = 0.1
# Time that hardly depends on the catalogue [s], on two idle cores: the scales, the
# residual of neighbours, held-out stars, and their baseline by kriging.
SECONDS_BESIDE = {"scales": 7.5, "residual": 6.5, "held-out": 5.0, "baseline": 6.0}
# Vectors of a log-normal fit's preconditioner: least,
_FEWEST_VECTORS = 16
# most,
_MOST_VECTORS = 100
# and per star per point.
_PER_UNKNOWN = 700
# Most if neighbours share noise: a million stars took longer with 12 or 100.
_MOST_SHARED = 32
# Fraction of the memory of a machine, or of a CUDA device, for a fit: the rest is for
# the system, or for torch and cuFFT.
_OF_MACHINE = 0.8
# A star's row of the precision of shared noise [bytes]: 31 entries, and their search.
_PRECISION = 31 * 8.0 + 110.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds per unit of work: an FFT point times its log2, an entry of W, a flop.

    ``streamed`` is a flop in the product of a matrix and a single vector, limited by
    memory bandwidth.
    """

    fft: float
    entry: float
    flop: float
    streamed: float


# The speed of two idle cores, at which `SECONDS_BESIDE` was measured. Without a limit
# of time operations are weighted by it, so that a plan is the same on every machine.
REFERENCE = Speed(fft=2.6e-10, entry=1.6e-10, flop=2.1e-11, streamed=7e-11)


def measure(dtype: torch.dtype, device: torch.device) -> Speed:
    """Time an FFT, a sparse product and a dense product (about half a second).

    Each is the mean over a tenth of a second, after a first run. The mean, not the
    shortest time, includes the load of other programs, which slows the fit too.
    """
    shape, batch, rows, per_row = (64, 64, 32), 8, 20_000, 64
    points = math.prod(shape)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, dtype=dtype, device=device)

    def seconds_of(action: Callable[[], object]) -> float:
        action()
        count, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < _TESTED or not count:
            action()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            count += 1
        return passed / count

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
    return Speed(
        fft=transform / (batch * points * math.log2(points)),
        entry=seconds_of(lambda: matrix.matvec(columns)) / (batch * rows * per_row),
        flop=seconds_of(lambda: columns @ right) / (2 * columns.numel() * per_row),
        streamed=seconds_of(lambda: torch.mv(tall, tall[0])) / (2 * tall.numel()),
    )


def seconds_beside(speed: Speed) -> float:
    """Return the time of a fit beside its solves [s], scaled to the machine's speed."""
    pairs = zip(astuple(speed), astuple(REFERENCE), strict=True)
    slower = math.prod(now / usual for now, usual in pairs) ** 0.25
    return max(slower, 1.0) * sum(SECONDS_BESIDE.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The size of a full-batch fit of ``stars``.

    ``points`` counts those of all tori, ``transformed`` those of all transforms of a
    lognormal field; ``ray_cells`` is the mean number of cells on a sight line, ``std``
    that of the prior (of the logarithm of a lognormal density). ``here`` of all
    ``ranks`` run on this machine; those of a team divide the rows of W. On CUDA each
    rank has its own device, which also holds the transpose of W. ``block`` samples are
    fitted together.
    """

    config: FitConfig
    points: int
    transformed: int
    stars: int
    ray_cells: float
    std: float = 1.0
    ranks: int = 1
    here: int = 1
    block: int = 8

    @classmethod
    def of(
        cls,
        grids: Sequence[Grid],
        kernel: Radial,
        distances: np.ndarray,
        config: FitConfig,
        *,
        ranks: int = 1,
        here: int = 1,
    ) -> Work:
        """Return the work on nested grids, for stars' distances [pc].

        Four samples are fitted together where the memory of eight is too large.
        """
        tori = nested_tori(grids, kernel, config.model.wrap_tolerance)
        bounds, cells = [math.inf, *(grid.reach for grid in grids[1:]), 0.0], 0.0
        for grid, outer, inner in zip(grids, bounds[:-1], bounds[1:], strict=True):
            within = np.minimum(distances, outer) - np.minimum(distances, inner)
            cells += float(within.mean()) / float(np.mean(grid.spacing))
        work = cls(
            config=config,
            points=tori.size,
            transformed=transformed_points(tori, kernel),
            stars=len(distances),
            ray_cells=cells,
            std=float(kernel.variance) ** 0.5,
            ranks=ranks,
            here=here,
        )
        short = work.anywhere > config.budget.bytes
        return replace(work, block=_FEW) if short else work

    @property
    def entries(self) -> float:
        """Entries of W per rank, by rows or by a tree of rays."""
        return self._entries(self.stars)

    def _entries(self, stars: float) -> float:
        stars = stars * self.config.inference.teams / self.ranks
        rows = stars * (self.ray_cells + 1) * _ENTRIES_PER_CELL
        tree = _TREE_PER_POINT * self.points + _TREE_PER_STAR * stars
        return tree if rows > FEWER * tree else rows

    @property
    def rank(self) -> int:
        """Vectors of the preconditioner."""
        return preconditioner_rank(self.config, self.stars, self.points)

    def seconds(self, speed: Speed) -> float:
        """Return the time of the solves and of draws of the variance below the grid.

        For a lognormal density the solves are a map and samples, and before them
        another map with independent noise if neighbours share noise, of `LEARNERS` at
        most.
        """
        config, points = self.config, self.points
        inference, lognormal = config.inference, config.density == "lognormal"
        transforms, vectors, flop = 2 * points, 4 * points, speed.flop
        if lognormal:
            vectors, flop = vectors * LEADING**3, speed.streamed
            transforms = self.transformed
        shared = config.shares_noise

        def once(stars: float, *, shared: bool) -> float:
            rank = preconditioner_rank(config, self.stars, points, shared=shared)
            return (
                transforms * math.log2(points) * speed.fft
                + (2 * self._entries(stars) + 20 * self.transformed) * speed.entry
                + rank * vectors * flop
            )

        samples = inference.samples / inference.teams
        if not lognormal:
            steps = _ITERATIONS * max(0.3, math.log10(inference.tolerance) / -3)
            columns = samples + 1 + self.rank / steps
            residual = points * 2**3
            draw = 2 * residual * math.log2(residual) * speed.fft
            return steps * columns * once(self.stars, shared=False) + DRAWS * draw
        singly = max(1.0, self.std / _EASY_STD) ** 2 * _SINGLY
        together = _TOGETHER if points < _CACHED else _APART
        few = min(self.stars, LEARNERS) if shared else self.stars
        total = _MODE_ITERATIONS * singly * once(few, shared=False)
        if shared:
            each = _SHARED * singly * once(self.stars, shared=True)
            iterations = _SHARED_MODE + samples * _SHARED_ITERATIONS * together
            total += iterations * each + _PER_ROW * self.stars
        elif samples:
            each = _SAMPLE_ITERATIONS * together * singly * once(few, shared=False)
            total += (samples + _ROUGH_FITS / inference.teams) * each
        return total

    def memory(self, *, cuda: bool | None = None) -> dict[str, float]:
        """Return peak memory [bytes] per rank by part, with ``cuda`` or without.

        Teams divide W and later parts.
        """
        config, points = self.config, self.points
        lognormal, samples = config.density == "lognormal", config.inference.samples
        item = 8 if config.inference.dtype == "float64" else 4
        cuda = uses_cuda(config) if cuda is None else cuda
        weights = self.entries * (2 if cuda else 1) * (4 + item)
        # The two halves of a lognormal fit's pairs of samples follow each other.
        together = samples // 2 + 2 if lognormal else max(samples, 1)
        share = LEADING**3 if lognormal else 1.0
        own = self.stars * config.inference.teams / self.ranks
        vectors = _OVER_POINTS * points + _OVER_STARS * own
        parts = {
            "program and libraries": _PROGRAM,
            "catalogue": _PER_STAR * self.stars,
            "projection W": _OF_DISTANCES * weights,
            "grid spectra": (20.0 + 3 * item) * points,
            "preconditioner": 2.0 * self.rank * points * item * share,
            "solver vectors": min(self.block, together) * vectors * item,
            "posterior samples": 2 * (samples + 1) * points * item,
        }
        if config.shares_noise:
            parts["precision of the noise"] = _PRECISION * self.stars
        if not lognormal:
            # On a grid of half the spacing.
            parts["sub-grid variance"] = 2 * weights + 6 * 2**3 * points * item
        return parts

    @property
    def together(self) -> float:
        """Peak memory [bytes] of all processes on a machine, or on one device."""
        sharing = 1 if uses_cuda(self.config) else self.here
        return sum(self.memory().values()) * sharing

    @property
    def anywhere(self) -> float:
        """The larger of `together` with CUDA and without, known without a device."""
        return sum(self.memory(cuda=True).values()) * self.here


def machine_memory(config: FitConfig) -> float:
    """Return the memory for a fit of this machine, or its CUDA device [bytes]."""
    if uses_cuda(config):
        return torch.cuda.get_device_properties().total_memory * _OF_MACHINE
    return total_memory() * _OF_MACHINE


def uses_cuda(config: FitConfig) -> bool:
    """Return true if CUDA is allowed and torch sees a device."""
    return config.inference.device != "cpu" and torch.cuda.is_available()


def preconditioner_rank(
    config: FitConfig, stars: int, points: int, *, shared: bool = False
) -> int:
    """Return the configured rank, or an efficient one; 0 for none.

    With few stars per point of the torus, solves are short and products with the
    preconditioner dominate: 4,000 stars and 600,000 points took 98 s with 100 vectors
    and 60 s with 15, 46,000 stars and 300,000 points 44 s and 58 s.
    """
    inference = config.inference
    if inference.preconditioner == "none":
        return 0
    if inference.preconditioner_rank is not None:
        return inference.preconditioner_rank
    if config.density != "lognormal":
        return _MOST_VECTORS
    found = round(_PER_UNKNOWN * stars / points)
    most = _MOST_SHARED if shared else _MOST_VECTORS
    return min(max(found, _FEWEST_VECTORS), most)
