"""Fields on a torus that is distributed in slabs.

A rank holds ε, the density and the columns of W of its planes; observations, noise and
predictions are complete on every rank. All ranks construct and call a model together.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.slabs import Slabs
from dustmap.functionals import Functionals
from dustmap.grid import torus_positions
from dustmap.models.base import Linearisation
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import Mean
from dustmap.models.torus import TorusModel
from dustmap.projection import Interpolation, slab_projection
from dustmap.projection.slabs import SlabColumns
from dustmap.whitening import SlabTorusWhitening


class _InSlabs(TorusModel):
    """Projection and checks of both fields."""

    whitening: SlabTorusWhitening

    @property
    def slabs(self) -> Slabs:
        """The distribution of the grid."""
        return self.whitening.slabs

    def _projection(self, refinement: int) -> SlabColumns:
        return slab_projection(
            self.whitening.torus,
            self.functionals,
            self.slabs,
            interpolation=self.interpolation,
            dtype=self.dtype,
            device=self.device,
            memory_budget=self.memory_budget,
        )

    def linearise(self, eps: Float[Tensor, " n"]) -> Linearisation:
        tangent = super().linearise(eps)
        self.slabs.group.require_alike("the prediction", tangent.prediction)
        return tangent


class SlabGaussian(_InSlabs, TorusGaussian):
    """:class:`TorusGaussian` in slabs: refinement 1, without unresolved variance.

    Parameters
    ----------
    whitening
        ε ↔ field.
    functionals, mean, interpolation
        As of :class:`TorusGaussian`.
    memory_budget
        Memory for this rank's part of W [bytes]; a larger one is recomputed.
    """

    def __init__(
        self,
        whitening: SlabTorusWhitening,
        functionals: Functionals,
        *,
        mean: Mean | None = None,
        interpolation: Interpolation = "linear",
        memory_budget: float | None = None,
    ) -> None:
        self.memory_budget = memory_budget
        super().__init__(
            whitening,
            functionals,
            mean=mean,
            interpolation=interpolation,
            # No residual is drawn.
            generator=torch.Generator(),
        )

    def at(self, functionals: Functionals) -> SlabGaussian:
        return SlabGaussian(
            self.whitening,
            functionals,
            mean=self.mean,
            interpolation=self.interpolation,
            memory_budget=self.memory_budget,
        )


class SlabLogNormal(_InSlabs, LogNormal):
    """:class:`LogNormal` in slabs; its ``whitening`` is a `SlabTorusWhitening`."""

    def _positions(self) -> Float[Tensor, "n d"]:
        return torus_positions(self.whitening.torus, 1, self.slabs.planes)
