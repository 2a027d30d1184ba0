"""The cost of a fit: memory by shapes, work as a number of products, and their limits.

A product is that of the posterior's precision and a vector. Its work is a sum of
counted operations, in units of what two idle cores, the reference, did in a second. It
chooses a grid, which is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from dustmap.grid import Grid
from dustmap.kernels import Radial
from dustmap.projection.matrix import FEWER, MANY_ROWS
from dustmap.whitening import nested_tori, transformed_points
from dustmap.whitening.modes import LEADING
from pipelines.base.allocation import total_memory
from pipelines.config import FitConfig

# Most stars of the maps from which scales, noise and the residual are learnt.
LEARNERS = 100_000
# Entries of W per crossed cell, with linear weights and half-cell steps.
_ENTRIES_PER_CELL = 5.8
# Entries of a tree of rays per point of the torus and per star with a distance error:
# 15 and 8 (23 with distance errors) for 960,000 stars and cells of 20 pc.
_TREE_PER_POINT = 16.0
_TREE_PER_STAR = 23.0
# Its nodes per point, 1.6 for 200,000 of these stars: eight entries each or, without
# CUDA, a cell and three fractions.
_NODES_PER_POINT = 1.75
# Entries of a star's row of the precision of shared noise.
_NEIGHBOURS = 31
# Work of a Fourier transform and its inverse, per point and log2 of their number,
_TRANSFORM = 2.6e-10
# and of a number of a matrix or vector.
_NUMBER = 1.6e-10
# Numbers of a product's vectors per transformed point.
_PER_POINT = 20
# Products per column of a Gaussian density to a relative residual of 1e-3, with the
# Nyström preconditioner, on catalogues of a few per cent noise.
_PER_COLUMN = 270
# Products of a lognormal fit, with tangents and line searches, which make each 1.5
# times as long: to the mode (measured for 640 to 53,000 stars: 190 to 300),
_TO_MODE = 450
# per sample with noise shared by neighbours (46 to 59),
_PER_SHARED_SAMPLE = 70
# and with independent noise (102, of 1.4 times the time on millions of points), by the
# square of the ratio more beyond this std of the logarithm.
_PER_SAMPLE = 200
_EASY_STD = 1.25
# Program and libraries, and learning before the fit [bytes].
_PROGRAM = 1.1e9
# Columns, neighbours and places per star [bytes].
_PER_STAR = 400.0
# W of averaged lines and of distance errors over W of plain ones.
_OF_DISTANCES = 1.2
# Vectors of a sample over points,
_OVER_POINTS = 10
# and over stars.
_OVER_STARS = 21
# Samples that are fitted together, where memory allows.
_BLOCK = 8
# Fraction of the memory for what grows with the stars.
_STARS_IN_MEMORY = 0.7
# Fraction of the memory of a machine, or of a CUDA device, for a fit: the rest is for
# the system, or for torch and cuFFT.
_OF_MACHINE = 0.8
# Vectors of a log-normal fit's preconditioner: least,
_FEWEST_VECTORS = 16
# most,
_MOST_VECTORS = 100
# and per star per point.
_PER_UNKNOWN = 700
# Most if neighbours share noise: a million stars took longer with 12 or 100.
_MOST_SHARED = 32
# Samples of the second map. Where stars are sparse its mode lies far below the mean
# density: with the mode's in the covariance errors of 800 stars were 2.5% larger.
SECOND_SAMPLES = 8
# Most work of a fit, and more of it for every million stars.
_WORK = 300.0
_WORK_PER_MILLION = 300.0
# Fraction of it for the solves.
_SOLVES = 0.7


class Machine(NamedTuple):
    """The processes of a fit: ``here`` of all ``ranks`` run on this machine."""

    ranks: int = 1
    here: int = 1


REFERENCE = Machine()


def fit_work(stars: int) -> float:
    """Return the most work of a fit to so many stars."""
    return _WORK + _WORK_PER_MILLION * stars / 1e6


def solve_work(stars: int) -> float:
    """Return the part of it for the solves."""
    return _SOLVES * fit_work(stars)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The size of a full-batch fit of ``stars``.

    ``points`` counts those of all tori, ``transformed`` those of all transforms of a
    lognormal field; ``ray_cells`` is the mean number of cells on a sight line, ``std``
    that of the prior (of the logarithm of a lognormal density). The ranks of a team
    divide the rows of W. On CUDA each rank has its own device, which also holds the
    transpose of W. ``block`` samples are fitted together.
    """

    config: FitConfig
    points: int
    transformed: int
    stars: int
    ray_cells: float
    std: float = 1.0
    machine: Machine = REFERENCE
    block: int = _BLOCK

    @classmethod
    def of(
        cls,
        grids: Sequence[Grid],
        kernel: Radial,
        distances: np.ndarray,
        config: FitConfig,
        machine: Machine = REFERENCE,
    ) -> Work:
        """Return the work on nested grids, for stars' distances [pc].

        Four samples are fitted together where the memory of eight is too large with
        CUDA, and fewer where it is without.
        """
        tori = nested_tori(grids, kernel, config.model.wrap_tolerance)
        bounds = [math.inf, *(grid.reach for grid in grids[1:]), 0.0]
        lengths = -np.diff([np.minimum(distances, bound).mean() for bound in bounds])
        steps = [np.mean(grid.spacing) for grid in grids]
        work = cls(
            config=config,
            points=tori.size,
            transformed=transformed_points(tori, kernel),
            stars=len(distances),
            ray_cells=float((lengths / steps).sum()),
            std=float(kernel.variance) ** 0.5,
            machine=machine,
        )
        for cuda, least in ((True, 4), (False, 1)):
            while work.block > least and work.total(cuda) > config.budget.bytes:
                work = replace(work, block=work.block // 2)
        return work

    @property
    def rows(self) -> float:
        """Stars of a rank: its rows of W."""
        return self.stars * self.config.inference.teams / self.machine.ranks

    @property
    def entries(self) -> float:
        """Entries of W per rank, by rows or by a tree of rays."""
        return self._weights[0]

    @property
    def _weights(self) -> tuple[float, float]:
        """Entries of W per rank, and those of nodes in a tree."""
        per_star = (self.ray_cells + 1) * self.rows
        rows, nodes = _ENTRIES_PER_CELL * per_star, _NODES_PER_POINT * self.points
        tree = _TREE_PER_POINT * self.points + _TREE_PER_STAR * self.rows
        if rows > FEWER * tree:
            return tree, 8 * nodes
        # Sparse stars share few rays: up to some two nodes for each cell of a row. The
        # number is right to 30% for 10⁵ and 8·10⁵ stars and cells of 5 and 6 pc.
        nodes *= 2 * per_star / (nodes + 2 * per_star)
        tree = _TREE_PER_POINT / _NODES_PER_POINT * nodes + _TREE_PER_STAR * self.rows
        return (tree, 8 * nodes) if rows > max(tree, MANY_ROWS) else (rows, 0.0)

    @property
    def preconditioner(self) -> float:
        """Numbers of the preconditioner: the long modes of a lognormal density."""
        rank = preconditioner_rank(self.config, self.stars, self.points)
        share = LEADING**3 if self.config.density == "lognormal" else 1.0
        return rank * share * self.points

    def product(self) -> float:
        """Return the work of a product."""
        numbers = 2 * self.entries + _PER_POINT * self.transformed + self.preconditioner
        if self.config.shares_noise:
            numbers += 2 * _NEIGHBOURS * self.stars
        transform = self.transformed * math.log2(self.points)
        return _TRANSFORM * transform + _NUMBER * numbers

    def solves(self) -> float:
        """Return the work of the maps' solves.

        If neighbours share noise, two maps of `LEARNERS` at most precede the last one.
        """
        inference, each = self.config.inference, self.product()
        samples = inference.samples / inference.teams
        if self.config.density != "lognormal":
            digits = max(0.3, -math.log10(inference.tolerance) / 3)
            return digits * _PER_COLUMN * (samples + 1) * each
        if not self.config.shares_noise:
            each *= max(1.0, self.std / _EASY_STD) ** 2
            return (_TO_MODE + _PER_SAMPLE * samples) * each
        few = replace(self, stars=min(self.stars, LEARNERS)).product()
        first, second = _TO_MODE * few, _PER_SHARED_SAMPLE * SECOND_SAMPLES * few
        return first + second + _PER_SHARED_SAMPLE * samples * each

    def memory(self, *, cuda: bool | None = None) -> dict[str, float]:
        """Return peak memory [bytes] per rank by part, with ``cuda`` or without."""
        cuda = uses_cuda(self.config) if cuda is None else cuda
        config, points = self.config, self.points
        lognormal, samples = config.density == "lognormal", config.inference.samples
        item = 8 if config.inference.dtype == "float64" else 4
        entries, nodes = self._weights
        weights = entries * (2 if cuda else 1) * (4 + item)
        held = weights if cuda else weights - nodes * (4 + item - (4 + 3 * item) / 8)
        if config.shares_noise:
            samples = max(samples, SECOND_SAMPLES)
        # The two halves of a lognormal fit's pairs of samples follow each other.
        together = samples // 2 + 2 if lognormal else max(samples, 1)
        vectors = _OVER_POINTS * points + _OVER_STARS * self.rows
        parts = {
            "program and libraries": _PROGRAM,
            "catalogue": _PER_STAR * self.stars,
            "projection W": _OF_DISTANCES * held,
            "grid spectra": (20.0 + 3 * item) * points,
            "preconditioner": 2.0 * self.preconditioner * item,
            # Then samples are copied together.
            "solver vectors": max(min(self.block, together) * vectors, samples * points)
            * item,
            "posterior samples": (samples + 1) * points * item,
        }
        if config.shares_noise:
            # Their search takes 110 bytes.
            parts["precision of the noise"] = (_NEIGHBOURS * 8.0 + 110) * self.stars
        if not lognormal:
            # On a grid of half the spacing.
            parts["sub-grid variance"] = 2 * weights + 6 * 2**3 * points * item
        return parts

    def total(self, cuda: bool) -> float:
        """Return peak memory [bytes] of all processes on a machine."""
        return sum(self.memory(cuda=cuda).values()) * self.machine.here

    @property
    def together(self) -> float:
        """Peak memory [bytes] of all processes on a machine, or on one device."""
        cuda = uses_cuda(self.config)
        return self.total(cuda) / (self.machine.here if cuda else 1)

    @property
    def anywhere(self) -> float:
        """The larger of `together` with CUDA and without, known without a device."""
        return self.total(cuda=True)


def most_stars(config: FitConfig, machine: Machine = REFERENCE) -> int:
    """Return the most stars that a fit sees one by one; of more, means of bins.

    They take 70% of the memory that further programs leave, by `Work.memory`; grids and
    one program take the rest. Processes on this machine divide rows, and each holds the
    catalogue and the precision of shared noise.
    """
    item = 8 if config.inference.dtype == "float64" else 4
    whole = _PER_STAR
    if config.shares_noise:
        whole += _NEIGHBOURS * 8.0 + 110
    rows = _OF_DISTANCES * _TREE_PER_STAR * (4 + item) + _OVER_STARS * _BLOCK * item
    each = machine.here * (whole + rows * config.inference.teams / machine.ranks)
    room = config.budget.bytes - (machine.here - 1) * _PROGRAM
    # No budget is too small for the learners: it then allows no grid.
    return max(LEARNERS, round(_STARS_IN_MEMORY * room / each))


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
