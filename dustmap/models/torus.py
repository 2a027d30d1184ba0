"""What models of a field on grids share: the whitening A and the projection W."""

from __future__ import annotations

import copy
from typing import Generic, Self, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.functionals import Functionals
from dustmap.linalg.operator import LinearOperator
from dustmap.models.base import ForwardModel
from dustmap.models.means import Mean
from dustmap.projection import Interpolation, Projection, projection
from dustmap.whitening import GridWhitening

AnyWhitening = TypeVar("AnyWhitening", bound=GridWhitening)


class TorusTangent(LinearOperator):
    """``Φ = W diag(d) A``: one sparse product and two FFTs.

    Parameters
    ----------
    whitening, weights
        A and W.
    derivative
        ``d = ∂ρ/∂f`` on the (refined) torus, one row or as many as the operands have;
        1 if ``None``.
    """

    def __init__(
        self,
        whitening: GridWhitening,
        weights: LinearOperator,
        derivative: Float[Tensor, "*batch f"] | None = None,
    ) -> None:
        self.shape = (weights.shape[0], whitening.size)
        self.dtype = whitening.dtype
        self.device = whitening.device
        self.whitening = whitening
        self._weights = weights
        self._derivative = derivative

    def matvec(self, x: Tensor) -> Tensor:
        return self._weights.matvec(self._density(x))

    def rmatvec(self, y: Tensor) -> Tensor:
        return self._density_transpose(self._weights.rmatvec(y))

    def gram(self, x: Tensor, weights: Tensor) -> Tensor:
        return self._density_transpose(self._weights.gram(self._density(x), weights))

    def select(self, index: Int[Tensor, " k"]) -> TorusTangent:
        if self._derivative is None or self._derivative.ndim == 1:
            return self
        return TorusTangent(self.whitening, self._weights, self._derivative[index])

    def _density(self, eps: Tensor) -> Tensor:
        """``d ⊙ A ε``."""
        field = self.whitening.colour(eps)
        return field if self._derivative is None else self._derivative * field

    def _density_transpose(self, cotangent: Tensor) -> Tensor:
        """``Aᵀ (d ⊙ g)``."""
        if self._derivative is not None:
            cotangent = self._derivative * cotangent
        return self.whitening.colour_transpose(cotangent)


class TorusModel(ForwardModel, Generic[AnyWhitening]):
    """A field on grids that all functionals observe through one sparse W."""

    memory_budget: float | None = None

    def __init__(
        self,
        whitening: AnyWhitening,
        functionals: Functionals,
        *,
        mean: Mean,
        interpolation: Interpolation,
        group: Group | None,
    ) -> None:
        self.group = Group() if group is None else group
        self.whitening = whitening
        self.mean = mean
        self.interpolation: Interpolation = interpolation
        self.latent_size = whitening.size
        self.dtype = whitening.dtype
        self.device = whitening.device
        self._observe(functionals)

    def _observe(self, functionals: Functionals) -> None:
        self._functionals = functionals
        self.weights = self._projection(self.whitening.refinement)

    def _projection(self, refinement: int) -> Projection:
        return projection(
            self.whitening.tori,
            self._functionals,
            refinement=refinement,
            interpolation=self.interpolation,
            dtype=self.dtype,
            device=self.device,
            memory_budget=self.memory_budget,
            group=self.group,
        )

    def white_noise(self, generator: torch.Generator) -> Float[Tensor, " p"]:
        return self.whitening.modes.white_noise(generator)

    @property
    def functionals(self) -> Functionals:
        return self._functionals

    def at(self, functionals: Functionals) -> Self:
        other = copy.copy(self)
        other._observe(functionals)
        return other
