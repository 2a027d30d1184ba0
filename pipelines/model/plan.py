"""The plan of a fit: every choice that defines its model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, TypeAdapter

from dustmap.grid import Grid
from dustmap.inference.scales.band_power import changed_kernel
from dustmap.inference.scales.prior_scales import PriorScales
from dustmap.kernels import KERNELS, Radial
from dustmap.keyed_noise import Purpose, stream
from dustmap.models.means import ConstantMean, ExponentialDisc
from dustmap.models.prior_integrals import PriorIntegrals
from dustmap.nested_grids import NestedGrids
from dustmap.tori import Tori
from pipelines.base.errors import InputError
from pipelines.config.engines import ABILITIES, Abilities, DensityKind, EngineName
from pipelines.config.fitting import KernelName, Quadrature

# Distance to the Galactic centre (GRAVITY Collaboration 2019, A&A 625, L10) [pc].
CENTRE_DISTANCE = 8178.0
# Scale length of the dust disc where none is given (Li et al. 2018, ApJ 858, 75) [pc].
SCALE_LENGTH = 3200.0
# Most points of the published engine's circulant embedding.
MOST_EMBEDDED = 20_000_000
# Least lengthscale over spacing with which the grid resolves the field.
RESOLVED = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPlan:
    """The published engine's own: circulant embedding, solves and ray nodes.

    The embedding's ``shape`` is known when it is made: it may grow.
    """

    shape: tuple[int, ...] = ()
    nugget: float = 0.0
    max_points: int = MOST_EMBEDDED
    tolerance: float = 1e-6
    max_steps: int = 200
    quadrature: Quadrature = "monte-carlo"
    nodes: int = 20
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that defines the model of a fit; JSON through `as_dict`.

    ``tori`` hold the nested grids, the coarsest first; ``lengthscale`` [pc] per axis
    and ``std`` of the kernel ([mag/pc], or pure for the logarithm of a lognormal
    ``density``), ``common_noise`` [mag], ``ray_step`` in cells, ``degrees`` of freedom
    of the Student-T noise of ``outliers`` (learnt if ``None``), ``cut`` the shortest
    scale that a grid carries in its spacings (0 if it carries the whole prior),
    ``mean`` of the density (of a lognormal one the median) [mag/pc], ``bend`` of the
    kernel, ``spread`` a root of the covariance of its errors (in steps of
    `dustmap.inference.scales.band_power.changed_kernel`; empty if they are not known),
    ``subgrid_share`` of the unresolved variance that is left to each star, ``block``
    samples that are fitted together; ``limit`` names what bounds the
    resolution of the grids, ``notes`` other choices.
    """

    tori: Tori
    kernel: KernelName
    lengthscale: tuple[float, ...]
    std: float
    mean: Annotated[ExponentialDisc | ConstantMean, Field(union_mode="left_to_right")]
    common_noise: float
    engine: EngineName = "full-batch"
    density: DensityKind = "gaussian"
    outliers: bool = False
    degrees: float | None = None
    subgrid_share: float = 1.0
    cut: float = 0.0
    ray_step: float = 0.5
    subgrid_noise: bool = True
    block: int = 8
    bend: tuple[float, ...] = ()
    spread: tuple[tuple[float, ...], ...] = ()
    embedding: EmbeddingPlan = field(default_factory=lambda: EmbeddingPlan())
    limit: str = ""
    notes: tuple[str, ...] = ()

    @property
    def abilities(self) -> Abilities:
        """What the engine offers."""
        return ABILITIES[self.engine]

    @property
    def is_lognormal(self) -> bool:
        """True if the density is lognormal."""
        return self.density == "lognormal"

    @property
    def grid(self) -> Grid:
        """The coarsest grid, over the whole box."""
        return self.tori[0].grid

    @property
    def grids(self) -> tuple[Grid, ...]:
        """The nested grids, the coarsest first."""
        return self.nested_grids.grids

    @property
    def nested_grids(self) -> NestedGrids:
        """All grids."""
        return self.tori.grids

    def as_dict(self) -> dict[str, Any]:
        """Plain values, of which JSON makes lists and numbers."""
        return {**asdict(self), "tori": [asdict(torus) for torus in self.tori]}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Plan:
        """Read what `as_dict` gave, also from JSON.

        Raises `InputError` if the values are no plan of this version.
        """
        if "tori" not in plain:
            raise InputError("an earlier version wrote this plan: fit again")
        return _adapter().validate_python({**plain, "tori": {"tori": plain["tori"]}})

    @property
    def scales(self) -> PriorScales:
        """Scales of the prior, with the mean of the density instead of its median."""
        above = math.exp(self.std**2 / 2) if self.is_lognormal else 1.0
        return PriorScales(
            lengthscale=torch.tensor(self.lengthscale, dtype=torch.float64),
            std=self.std,
            mean=replace(self.mean, value=above * self.mean.value),
            common_noise=self.common_noise**2,
            bend=self.bend,
            spread=self.spread,
        )

    def build_kernel(self) -> Radial:
        """The prior covariance."""
        return KERNELS[self.kernel](
            lengthscale=list(self.lengthscale), variance=self.std**2, bend=self.bend
        )

    def drawn_kernels(self, count: int, seed: int) -> list[Radial]:
        """Draw prior covariances from their errors; none if these are not known."""
        if not self.spread:
            return []
        kernel, root = self.build_kernel(), np.array(self.spread)
        found = []
        for number in range(count):
            # Every second draw mirrors the one before: means keep less of their noise.
            draw = stream(seed, Purpose.SPECTRUM, number // 2)
            steps = (-1) ** number * (root @ draw.standard_normal(len(root)))
            found.append(changed_kernel(kernel, steps))
        return found

    def build_prior(self) -> PriorIntegrals:
        """The prior of the density, also outside the grids.

        Raises `InputError` if its mean is the same everywhere: learnt in a box of
        ±150 pc in z, this made extinctions to 500 to 700 pc in z too large by 135%.
        """
        mean = self.scales.mean
        if not isinstance(mean, ExponentialDisc):
            raise InputError(
                "the prior of this map has no disc to go on with beyond its box, only "
                "a constant mean density: fit in a taller box, or with --set "
                "prior.mean=exponential-disc"
            )
        return PriorIntegrals.of(mean, self.build_kernel(), positive=self.is_lognormal)


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)
