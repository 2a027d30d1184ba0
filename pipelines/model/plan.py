"""From catalogue and configuration to a plan: every choice of a fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dustmap.grid import Grid, Torus
from dustmap.kernels import KERNELS, Radial
from dustmap.models.means import ConstantMean, ExponentialDisc, Mean
from dustmap.nested_grids import NestedGrids
from dustmap.tori import Tori
from dustmap.whitening import nested_tori, transformed_points
from pipelines.config import FitConfig
from pipelines.config.fitting import (
    DensityKind,
    EngineName,
    Interpolation,
    KernelName,
    MeanKind,
    Quadrature,
)
from pipelines.model import cost

# Distance to the Galactic centre (GRAVITY Collaboration 2019, A&A 625, L10) [pc].
CENTRE_DISTANCE = 8178.0
# Scale length of the dust disc where none is given (Li et al. 2018, ApJ 858, 75) [pc].
SCALE_LENGTH = 3200.0
# Least lengthscale over spacing with which the grid resolves the field; above the other
# its covariance, which the published engine solves with, is nearly singular.
RESOLVED, SOLVABLE = 1.5, 5.0
# Fraction of a CUDA device's memory for a fit: the rest is torch's and cuFFT's.
_OF_DEVICE = 0.8
# Fraction of the memory that W may take before it is recomputed instead.
WEIGHTS_SHARE = 0.5
# How much larger than the stars' box one may be that holds the sphere around the Sun.
_WIDER = 2.0
# Vectors of a log-normal fit's preconditioner, and how many for every star per point.
_FEWEST_VECTORS, _MOST_VECTORS, _PER_UNKNOWN = 16, 100, 700


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanPlan:
    """The mean function: kind, density at the Sun's place [mag/pc], scales [pc].

    Of a lognormal density it is the median.
    """

    kind: MeanKind = "zero"
    value: float = 0.0
    scale_height: float = 0.0
    scale_length: float = SCALE_LENGTH

    def build(self) -> Mean:
        """The mean function itself."""
        if self.kind == "exponential-disc":
            return ExponentialDisc(
                value=self.value,
                scale_height=self.scale_height,
                scale_length=self.scale_length,
                centre_distance=CENTRE_DISTANCE,
            )
        return ConstantMean(value=self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPlan:
    """The published engine's own: circulant embedding, solves and ray nodes."""

    nugget: float = 0.0
    max_points: int = 2**24
    tolerance: float = 1e-6
    max_steps: int = 200
    quadrature: Quadrature = "monte-carlo"
    nodes: int = 20
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that defines the model of a fit; JSON through `as_dict`.

    ``lengthscale`` [pc] per axis and ``std`` of the kernel ([mag/pc], or pure for the
    logarithm of a lognormal ``density``), ``common_noise`` [mag], ``ray_step`` in
    cells, ``weights_budget`` [bytes] beyond which W is recomputed in every product
    instead of kept, ``degrees`` of freedom of the Student-T noise of ``outliers``
    (learnt if ``None``), ``subgrid_share`` of the unresolved variance that is left to
    each star; ``notes`` say in words what was chosen and why.
    """

    grid: Grid
    torus_shape: tuple[int, ...]
    kernel: KernelName
    lengthscale: tuple[float, ...]
    std: float
    mean: MeanPlan
    common_noise: float
    finer: tuple[Torus, ...] = ()
    engine: EngineName = "full-batch"
    density: DensityKind = "gaussian"
    outliers: bool = False
    degrees: float | None = None
    subgrid_share: float = 1.0
    refinement: int = 1
    residual_refinement: int = 2
    residual_count: int = 16
    interpolation: Interpolation = "linear"
    ray_step: float = 0.5
    subgrid_noise: bool = True
    weights_budget: float | None = None
    embedding: EmbeddingPlan = field(default_factory=lambda: EmbeddingPlan())
    notes: tuple[str, ...] = ()

    @property
    def is_full_batch(self) -> bool:
        """Whether the full-batch engine fits it; otherwise the published one, svi."""
        return self.engine == "full-batch"

    @property
    def is_lognormal(self) -> bool:
        """Whether the density is the exponential of the field, and so positive."""
        return self.density == "lognormal"

    @property
    def tori(self) -> Tori:
        """The grid on its torus, and the finer ones inside it."""
        coarsest = Torus(grid=self.grid, shape=self.torus_shape)
        return Tori(tori=(coarsest, *self.finer))

    @property
    def grids(self) -> tuple[Grid, ...]:
        """The grid and the finer ones inside it, the coarsest first."""
        return (self.grid, *self.finer_grids)

    @property
    def nested_grids(self) -> NestedGrids:
        """All grids."""
        return NestedGrids(grids=self.grids)

    @property
    def finer_grids(self) -> tuple[Grid, ...]:
        """Nested grids inside the first."""
        return tuple(torus.grid for torus in self.finer)

    def step_at(self, distance: float) -> float:
        """Spacing [pc] of the finest grid that reaches so far in all directions."""
        within = [grid for grid in self.finer_grids if grid.reach >= distance]
        return min((within or [self.grid])[-1].spacing)

    def on(self, tori: Tori) -> Plan:
        """The same plan on other tori."""
        coarsest, *finer = tori
        return replace(
            self,
            grid=coarsest.grid,
            torus_shape=coarsest.shape,
            finer=tuple(finer),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, of which JSON makes lists and numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Plan:
        """The inverse of `as_dict`, also from JSON."""
        values = _with_tuples(plain)
        values["grid"] = _grid_from(plain["grid"])
        values["finer"] = tuple(
            Torus(grid=_grid_from(torus["grid"]), shape=tuple(torus["shape"]))
            for torus in plain.get("finer", ())
        )
        values["mean"] = MeanPlan(**plain["mean"])
        values["embedding"] = EmbeddingPlan(**plain["embedding"])
        return cls(**values)

    def build_kernel(self) -> Radial:
        """The prior covariance."""
        return KERNELS[self.kernel](
            lengthscale=list(self.lengthscale), variance=self.std**2
        )


def _grid_from(plain: dict[str, Any]) -> Grid:
    return Grid(**_with_tuples(plain))


def _with_tuples(plain: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}


def choose_box(
    positions: np.ndarray, config: FitConfig
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Lower and upper corner [pc] of the box, with the observer inside.

    Axes that are not given span the stars, or what ``box.cover`` says; where the
    furthest 1% of the stars would make the box more than half as large again, they are
    left out.
    """
    notes = []
    given = [getattr(config.box, name) for name in "xyz"]
    box = _with_observer(positions.min(axis=0), positions.max(axis=0))
    trimmed = _with_observer(*np.quantile(positions, [0.005, 0.995], axis=0))
    stretched = _volume(box) > 1.5 * _volume(trimmed)
    if None in given and len(positions) >= 200 and stretched:
        box = trimmed
        notes.append("box: the furthest 0.5% of the stars on every side left out")
    for axis, interval in enumerate(given):
        if interval is not None:
            box[:, axis] = interval
    box = _covering(box, positions, config)
    extent = box[1] - box[0]
    # A box thinner than this in one axis would have no cell to put the dust in.
    least = 0.02 * extent.max()
    for axis, interval in enumerate(given):
        if interval is None and extent[axis] < least:
            box[:, axis] += np.array([-0.5, 0.5]) * least
            notes.append(f"box: {'xyz'[axis]} widened to 2% of the longest side")
    return box[0], box[1], notes


def _covering(box: np.ndarray, positions: np.ndarray, config: FitConfig) -> np.ndarray:
    """The stars' box, or one that holds the sphere or the cylinder around the observer.

    Unless asked for, these are taken with ``data.max_distance`` alone, and if they are
    at most ``_WIDER`` times as large; what the cylinder leaves of that makes it taller.
    """
    asked, radius = config.box.cover, config.data.max_distance
    if asked == "stars" or (asked is None and radius is None):
        return box
    if radius is None:
        inside = ((positions >= box[0]) & (positions <= box[1])).all(axis=1)
        radius = float(np.linalg.norm(positions[inside], axis=1).max())
    for cover, axes in (("sphere", "xyz"), ("cylinder", "xy")):
        wide = box.copy()
        for axis, name in enumerate("xyz"):
            if name in axes and getattr(config.box, name) is None:
                wide[:, axis] = -radius, radius
        room = _WIDER * _volume(box) / _volume(wide)
        if asked == cover or (not asked and room >= 1):
            if not asked and config.box.z is None:
                height, far = np.ptp(wide[:, 2]) * room, np.abs(wide[:, 2]).max()
                tall = min(height / 2, height - far, radius)
                wide[:, 2] = np.minimum(wide[0, 2], -tall), np.maximum(wide[1, 2], tall)
            return wide
    return box


def _with_observer(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    return np.stack([np.minimum(lower, 0.0), np.maximum(upper, 0.0)])


def _volume(box: np.ndarray) -> float:
    extent = box[1] - box[0]
    return float(np.prod(np.maximum(extent, 0.02 * extent.max())))


def make_grid(
    lower: np.ndarray, upper: np.ndarray, spacing: tuple[float, ...], config: FitConfig
) -> Grid:
    """The grid that covers the box; free sides are multiples of the spacing."""
    shape = config.box.shape
    if shape is not None:
        steps = (upper - lower) / (np.array(shape) - 1)
        spacing, origin = tuple(steps.tolist()), tuple(lower.tolist())
        return Grid(shape=shape, spacing=spacing, origin=origin)
    origin, counts = [], []
    for axis, name in enumerate("xyz"):
        h, low, high = spacing[axis], float(lower[axis]), float(upper[axis])
        if getattr(config.box, name) is None:
            low = -math.ceil(-low / h - 1e-9) * h
        origin.append(low)
        counts.append(max(math.ceil((high - low) / h - 1e-9), 1) + 1)
    return Grid(shape=tuple(counts), spacing=tuple(spacing), origin=tuple(origin))


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
) -> cost.Work:
    """The size of the full-batch fit on these nested grids."""
    tori = nested_tori(grids, kernel, config.model.wrap_tolerance)
    points = tori.size
    refinement = config.model.refinement
    return cost.Work(
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
        correlated=shares_noise(config),
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


def shares_noise(config: FitConfig) -> bool:
    """Whether neighbouring stars' noise is to be correlated, if enough can teach it."""
    asked = config.model.residual and config.density == "lognormal"
    full_batch = config.inference.engine == "full-batch"
    return asked and full_batch and config.inference.samples > 0


def residual_refinement(refinement: int) -> int:
    """On which refinement the sub-grid residual is drawn."""
    return 2 if refinement == 1 else refinement


def memory_limit(config: FitConfig) -> float:
    """Bytes a fit may use: half of the machine's, or most of a CUDA device's."""
    if config.budget.memory_gib is not None:
        return config.budget.memory_gib * 2**30
    if uses_cuda(config):
        return cost.available_memory(on_cuda=True) * _OF_DEVICE
    return cost.available_memory() / 2


def uses_cuda(config: FitConfig) -> bool:
    """Whether a fit computes on CUDA: where it may, and torch sees a device."""
    return config.inference.device != "cpu" and torch.cuda.is_available()


def resolution_notes(plan: Plan) -> list[str]:
    """A warning if the lengthscale is outside the window the grid serves well."""
    ratios = [s / h for s, h in zip(plan.lengthscale, plan.grid.spacing, strict=True)]
    if min(ratios) < RESOLVED:
        return [
            f"the lengthscale is only {min(ratios):.2g} grid steps long: interpolation "
            "is poor below 1.5; use a finer grid or a longer prior.lengthscale"
        ]
    if max(ratios) > SOLVABLE and not plan.is_full_batch:
        return [
            f"the lengthscale is {max(ratios):.2g} grid steps long: above 5 the prior "
            "covariance is nearly singular; a coarser grid is as good and cheaper"
        ]
    return []
