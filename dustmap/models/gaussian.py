r"""Fields on tori, whose predictions need no solve, and a Gaussian one.

``Φ = W diag(d) A``: colour ε onto the torus, then apply the projection. The residual of
a Gaussian field that the grid cannot resolve, ``L_n f − Φ_n ε``, is drawn on a torus at
least as fine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.functionals import Functionals
from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.linalg.operator import LinearOperator
from dustmap.models.base import ForwardModel, Linearisation
from dustmap.models.means import ConstantMean, Mean
from dustmap.projection import Interpolation, Projection, projection
from dustmap.shapes import Draws, Eps, EpsDraws, Vector
from dustmap.whitening import GridWhitening, TorusWhitening

AnyWhitening = TypeVar("AnyWhitening", bound=GridWhitening)


class TorusTangent(LinearOperator):
    """``Φ = W diag(d) A``: one sparse product and two FFTs.

    ``whitening`` is A, ``weights`` W and ``derivative`` ``d = ∂ρ/∂f`` on the torus,
    with one row or as many rows as the operands; 1 if ``None``.
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
        """Return ``d ⊙ A ε``."""
        field = self.whitening.colour(eps)
        return field if self._derivative is None else self._derivative * field

    def _density_transpose(self, cotangent: Tensor) -> Tensor:
        """Return ``Aᵀ (d ⊙ g)``."""
        if self._derivative is not None:
            cotangent = self._derivative * cotangent
        return self.whitening.colour_transpose(cotangent)


class TorusModel(ForwardModel, Generic[AnyWhitening]):
    """A field on grids, observed through one sparse W."""

    refinement = 1
    interpolation: Interpolation = "linear"

    def __init__(
        self,
        whitening: AnyWhitening,
        functionals: Functionals,
        *,
        mean: Mean,
        group: Group | None,
    ) -> None:
        self.group = Group() if group is None else group
        self.whitening = whitening
        self.mean = mean
        self.latent_size = whitening.size
        self.dtype = whitening.dtype
        self.device = whitening.device
        self._observe(functionals)

    def _observe(self, functionals: Functionals) -> None:
        self.functionals = functionals
        self.weights = self._projection(self.refinement)

    def _projection(self, refinement: int) -> Projection:
        return projection(
            self.whitening.tori,
            self.functionals,
            refinement=refinement,
            interpolation=self.interpolation,
            dtype=self.dtype,
            device=self.device,
            group=self.group,
        )

    def white_noise(self, generator: np.random.Generator) -> Eps:
        return self.whitening.modes.white_noise(generator)

    def at(self, functionals: Functionals) -> Self:
        other = copy.copy(self)
        other._observe(functionals)
        return other


class TorusGaussian(TorusModel[TorusWhitening]):
    r"""``ρ = μ + f`` with f Gaussian on a torus (full batch, solve-free).

    Parameters
    ----------
    whitening
        ε ↔ field, evaluated on its grid of refinement r.
    functionals
        The observations.
    mean
        The mean function.
    interpolation
        Weights of W.
    residual_refinement
        Refinement q ≥ r of the torus on which ``L_n f`` counts as exact. With q = r
        the residual is the conditional variance given the inducing points (zero for
        r = 1); with q > r it includes the interpolation error of W.
    residual_count
        Draws that estimate ``v_n``, with the relative error
        ``sqrt(2 / residual_count)``.
    generator
        Draws the residuals that estimate ``v_n``.
    group
        Processes that share the rows of W; all of them construct and call the model
        together, and draw the same white noise.
    """

    linear = True

    def __init__(
        self,
        whitening: TorusWhitening,
        functionals: Functionals,
        *,
        mean: Mean | None = None,
        interpolation: Interpolation = "linear",
        residual_refinement: int | None = None,
        residual_count: int = 32,
        generator: torch.Generator,
        group: Group | None = None,
    ) -> None:
        self.refinement, self.interpolation = whitening.refinement, interpolation
        self.residual_refinement = residual_refinement or self.refinement
        if self.residual_refinement % self.refinement:
            raise ValueError(
                f"residual_refinement {self.residual_refinement} must be a multiple of "
                f"the refinement {self.refinement}"
            )
        self.residual_count = residual_count
        # A fixed seed makes the draws for v_n reproducible.
        self._seed = _seed(generator)
        mean = ConstantMean() if mean is None else mean
        super().__init__(whitening, functionals, mean=mean, group=group)

    def _observe(self, functionals: Functionals) -> None:
        super()._observe(functionals)
        self.operator = TorusTangent(self.whitening, self.weights)
        # ``L μ``.
        self.offset = self.mean.observed(functionals).to(self.dtype).to(self.device)
        self._variance: Tensor | None = None

    def apply(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch n"]:
        return self.offset + self.operator.matvec(eps)

    def linearise(self, eps: Eps) -> Linearisation:
        self.group.require_alike("the vector of parameters", eps)
        return Linearisation(
            prediction=self.apply(eps), operator=self.operator, variance=self.variance
        )

    @property
    def variance(self) -> Vector:
        """``v_n`` as the mean square of prior draws of the residual (cached)."""
        if self._variance is None:
            count = len(self.functionals)
            total = torch.zeros(count, dtype=torch.float64, device=self.device)
            if self.residual_refinement > 1:
                generator = torch_stream(self._seed, Purpose.VARIANCE)
                for draw in self._residuals(self.residual_count, generator):
                    total += draw.to(torch.float64) ** 2
            self._variance = (total / self.residual_count).to(self.dtype)
        return self._variance

    def residual_draws(self, eps: EpsDraws, generator: torch.Generator) -> Draws:
        if not len(eps) or self.residual_refinement == 1:
            shape = (len(eps), len(self.functionals))
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        return torch.stack(list(self._residuals(len(eps), generator)))

    def _residuals(self, count: int, generator: torch.Generator) -> Iterator[Vector]:
        """Draw residuals."""
        fine = self.whitening.refined(self.residual_refinement)
        weights = self.weights
        if self.residual_refinement != self.refinement:
            weights = self._projection(self.residual_refinement)
        for _ in range(count):
            field, eps = fine.prior_draw(generator)
            yield (weights.matvec(field) - self.operator.matvec(eps))[0]

    def at(self, functionals: Functionals) -> Self:
        other = super().at(functionals)
        other._seed = _seed(torch_stream(self._seed, Purpose.VARIANCE, 1))
        return other


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (1,), generator=generator))
