"""The spacing of grids, from stars, lengthscale, memory and work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dustmap.grid import Grid
from dustmap.kernels import Radial
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.config import FitConfig
from pipelines.config.base import MOST_POINTS
from pipelines.model import cost
from pipelines.model.engine import ENGINES

# Most grid points per star,
_POINTS_PER_STAR = 1_000
# and a floor for few stars.
_LEAST_POINTS = 20_000
# The same if neighbouring stars share a residual, per star of the maps that learn it.
# On three times as many points errors of 48,000 to 10⁷ stars were 2% to 3% larger.
_SHARED_PER_STAR = 8
_LEAST_SHARED = 500_000
_MOST_SHARED = 800_000
# Most stars whose work limits the grid: more of them never make cells coarser.
_COUNTED = 30_000
# Mean separation of stars, in cells, up to which a finer grid extends: with stars 5.8
# pc apart near the Sun, cells of 8 instead of 11.5 pc reduced errors there by 4%.
_CELLS_PER_STAR = 1.25
# Smallest reach of a finer grid, in its cells, that justifies its padding.
_LEAST_REACH = 8.0
_MOST_LEVELS = 12
# Ratio of successive trial spacings,
_STEP = 2**0.125
# and their number over a factor of two.
_STEPS = 9
# Ratio of outer to inner radius of shells for star counts,
_SHELL = 1.1
# and the fewest stars in one.
_FEWEST_IN_SHELL = 50


def choose_grids(
    box: Box,
    kernel: Radial,
    distances: np.ndarray,
    config: FitConfig,
    machine: cost.Machine,
) -> tuple[tuple[Grid, ...], str]:
    """Return configured grids, or the finest useful ones in the budget, and why.

    If their number is free, finer ones near the observer may double the spacing of the
    coarsest if the geometric mean of the stars' cells becomes smaller. Several
    processes may together have a finer grid than one.

    Raises `InputError` if no grid fits the limits of memory and work.
    """
    separation = StarSeparation.of(distances)

    def grids_of(spacing: float, levels: int | None) -> tuple[Grid, ...]:
        grid = make_grid(box, (spacing,) * 3, config)
        return nested_grids(grid, separation, config, levels)

    if config.box.spacing is not None or config.box.shape is not None:
        grid = make_grid(box, config.box.spacing or (1.0,) * 3, config)
        cells = np.subtract(box.upper, box.lower) / grid.spacing
        few = config.box.shape is None and cells.max() < 2 - 1e-9
        # Sizes of transforms of more points take minutes to find.
        if few or grid.size > MOST_POINTS:
            sides = " x ".join(f"{b - a:.4g}" for a, b in zip(box.lower, box.upper))
            raise InputError(
                f"box.spacing and box.shape give {' x '.join(map(str, grid.shape))} "
                f"points in a box of ({sides} pc): expected two cells or more along "
                f"its longest side, and at most {MOST_POINTS:.0e} points"
            )
        return nested_grids(grid, separation, config, config.levels), "as configured"
    stars, memory = len(distances), config.budget.bytes
    solves = cost.solve_work(stars)
    allowed_work = (
        f"the work of {cost.fit_work(stars) / 60:.3g} minutes on two reference cores"
    )
    enough = max(_LEAST_POINTS, _POINTS_PER_STAR * stars)
    if config.shares_noise:
        enough = min(max(_LEAST_SHARED, _SHARED_PER_STAR * stars), _MOST_SHARED)

    def excess(grids: tuple[Grid, ...]) -> str:
        """Name the limit that these grids exceed; empty if none."""
        size = sum(grid.size for grid in grids)
        if size > MOST_POINTS:
            return f"{MOST_POINTS:.0e} points"
        if size > enough:
            return f"{enough:,} points, which are enough for {stars:,} stars"
        work = cost.Work.of(grids, kernel, distances, config, machine)
        if work.anywhere > memory:
            return f"budget.memory_gib = {memory / 2**30:.3g}"
        fits = replace(work, stars=min(stars, _COUNTED)).solves() <= solves
        return "" if fits else allowed_work

    extent = np.subtract(box.upper, box.lower)
    levels = 1 if config.levels is None else config.levels
    times, least = ENGINES[config.inference.engine].spacing_limits(
        extent, stars, solves, config
    )
    spacing = float(kernel.lengthscale.min()) / times
    why = f"the lengthscale over {times:g}"
    while over := excess(grids_of(spacing, levels)):
        if spacing > extent.max() / 4:
            raise InputError(
                f"no grid for {stars} stars is within {over}: raise "
                "budget.memory_gib, lower inference.samples, or give box.spacing"
            )
        spacing, why = spacing * _STEP, f"the finest within {over}"
    # Of two digits: with the steps alone cells of one sky were 23, 24 or 25 pc by the
    # lengthscale, and errors with 25 pc 1% larger.
    while why.startswith("the finest"):
        finer = round_spacing(spacing) - 10.0 ** (math.floor(math.log10(spacing)) - 1)
        if over := excess(grids_of(finer, levels)):
            spacing, why = round_spacing(spacing), f"the finest within {over}"
            break
        spacing = finer
    if least > spacing:
        spacing, why = least, "the finest for which all rows fit the budget"
    best = grids_of(round_spacing(spacing), levels)
    if config.levels is None:
        tried = (spacing * _STEP**step for step in range(_STEPS))
        nested = (grids_of(round_spacing(coarser), None) for coarser in tried)
        # Finer cells in the whole box would over-resolve the lengthscale.
        inside = (g for g in nested if len(g) > 1 and g[1].upper != g[0].upper)
        allowed = [best, *(grids for grids in inside if not excess(grids))]
        best = min(allowed, key=lambda grids: mean_log_cell(grids, distances))
        if len(best) > 1:
            why += "; nested grids where they make the stars' cells smaller on average"
    return best, why


def make_grid(box: Box, spacing: tuple[float, ...], config: FitConfig) -> Grid:
    """Return a grid over the box; sides not configured are multiples of the spacing."""
    shape = config.box.shape
    if shape is not None:
        steps = np.subtract(box.upper, box.lower) / (np.array(shape) - 1)
        return Grid(shape=shape, spacing=tuple(steps.tolist()), origin=box.lower)
    origin, counts = [], []
    for axis, name in enumerate("xyz"):
        h, low, high = spacing[axis], box.lower[axis], box.upper[axis]
        if getattr(config.box, name) is None:
            low = -math.ceil(-low / h - 1e-9) * h
        origin.append(low)
        counts.append(max(math.ceil((high - low) / h - 1e-9), 1) + 1)
    return Grid(shape=tuple(counts), spacing=tuple(spacing), origin=tuple(origin))


def mean_log_cell(grids: Sequence[Grid], distances: np.ndarray) -> float:
    """Return the mean over stars of the logarithm of their cell size [ln pc]."""
    cells = np.full(len(distances), max(grids[0].spacing))
    for grid in grids[1:]:
        cells[distances <= grid.reach] = max(grid.spacing)
    return float(np.log(cells).mean())


def round_spacing(spacing: float) -> float:
    """Round up to two significant digits."""
    power = 10.0 ** (math.floor(math.log10(spacing)) - 1)
    return math.ceil(spacing / power - 1e-9) * power


def nested_grids(
    coarsest: Grid, separation: StarSeparation, config: FitConfig, levels: int | None
) -> tuple[Grid, ...]:
    """Return the grid and, inside it, finer ones with half the spacing of the last.

    There are ``levels`` in all; by default the density of stars sets the number.
    """
    least = config.box.finest or 0.0
    spacings = [max(coarsest.spacing) / 2**level for level in range(1, _MOST_LEVELS)]
    spacings = [spacing for spacing in spacings if spacing >= least]
    dense = [separation.reach(_CELLS_PER_STAR * h) for h in spacings]
    enough = [far >= _LEAST_REACH * h for far, h in zip(dense, spacings, strict=True)]
    count = max((n for n, fits in enumerate(enough, start=1) if fits), default=0)
    if levels is not None:
        count = levels - 1
        if count > len(spacings):
            raise InputError(
                f"box.levels = {levels} and box.finest = {least:g} contradict each "
                f"other: the spacing would be {max(coarsest.spacing) / 2**count:.3g} pc"
            )
    grids = [coarsest]
    for spacing, far in list(zip(spacings, dense, strict=True))[:count]:
        grids.append(_around(grids[-1], max(far, _LEAST_REACH * spacing)))
    return tuple(grids)


@dataclass(frozen=True, slots=True)
class StarSeparation:
    """Mean separations of stars [pc] in rising order, and how far out each is found."""

    separation: np.ndarray
    farthest: np.ndarray

    @classmethod
    def of(cls, distances: np.ndarray) -> StarSeparation:
        """Count the stars in the shell below every star's distance [pc]."""
        far = np.sort(distances).astype(np.float64)
        near = far / _SHELL
        count = np.arange(1, len(far) + 1) - np.searchsorted(far, near)
        volume = 4 / 3 * math.pi * (far**3 - near**3)
        enough = count >= _FEWEST_IN_SHELL
        separation = np.cbrt(volume[enough] / count[enough])
        order = separation.argsort()
        return cls(separation[order], np.maximum.accumulate(far[enough][order]))

    def reach(self, separation: float) -> float:
        """Return the largest distance [pc] with a mean separation of at most this."""
        below = int(np.searchsorted(self.separation, separation, side="right"))
        return float(self.farthest[below - 1]) if below else 0.0


def _around(grid: Grid, reach: float) -> Grid:
    """Return a grid of half the spacing around the points within this distance."""
    origin, shape = [], []
    for first, step, count in zip(grid.origin, grid.spacing, grid.shape, strict=True):
        low = max(math.floor((-reach - first) / step), 0)
        high = min(math.ceil((reach - first) / step), count - 1)
        origin.append(first + low * step)
        shape.append(2 * (high - low) + 1)
    spacing = tuple(step / 2 for step in grid.spacing)
    return Grid(shape=tuple(shape), spacing=spacing, origin=tuple(origin))
