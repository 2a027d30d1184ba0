r"""A Gaussian field on a torus that predicts all observations without a solve.

``Φ = W A``: colour ε onto the (refined) torus, then apply the projection. The residual
that the grid cannot resolve, ``L_n f − Φ_n ε``, is drawn on a torus at least as fine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.functionals import Functionals
from dustmap.linalg.operator import LinearOperator
from dustmap.models.base import Linearisation
from dustmap.models.gradients import SpectralGradient
from dustmap.models.mean_parameters import (
    mean_gradient,
    mean_parameters,
    mean_with,
)
from dustmap.models.means import ConstantMean, Mean
from dustmap.models.torus import TorusModel, TorusTangent
from dustmap.projection import Interpolation
from dustmap.whitening import TorusWhitening


class TorusGaussian(TorusModel):
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
        For those draws.
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
        fine = whitening.refinement
        self.residual_refinement = (
            fine if residual_refinement is None else residual_refinement
        )
        if self.residual_refinement % fine:
            raise ValueError(
                f"residual_refinement {self.residual_refinement} must be a multiple of "
                f"the refinement {fine}"
            )
        super().__init__(
            whitening,
            functionals,
            mean=ConstantMean() if mean is None else mean,
            interpolation=interpolation,
            group=group,
        )
        self.residual_count = residual_count
        # One seed for all draws of v_n, which are thus reproducible.
        self._seed = int(torch.randint(2**62, (1,), generator=generator))
        self.operator = TorusTangent(whitening, self.weights)
        self.offset = self.mean.observed(functionals).to(self.dtype).to(self.device)
        self._variance: Tensor | None = None
        self._fine_weights: LinearOperator | None = None

    def apply(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch n"]:
        return self.offset + self.operator.matvec(eps)

    def linearise(self, eps: Float[Tensor, " p"]) -> Linearisation:
        self.group.require_alike("the vector of parameters", eps)
        return Linearisation(
            prediction=self.apply(eps), operator=self.operator, variance=self.variance
        )

    @property
    def variance(self) -> Float[Tensor, " n"]:
        """``v_n`` as the mean square of prior draws of the residual (cached)."""
        if self._variance is None:
            total = torch.zeros(
                len(self._functionals), dtype=torch.float64, device=self.device
            )
            if self._resolves_nothing():
                self._variance = total.to(self.dtype)
                return self._variance
            generator = torch.Generator().manual_seed(self._seed)
            for draw in self._residuals(self.residual_count, generator):
                total += draw.to(torch.float64) ** 2
            self._variance = (total / self.residual_count).to(self.dtype)
        return self._variance

    def residual_draws(
        self, eps: Float[Tensor, "s p"], generator: torch.Generator
    ) -> Float[Tensor, "s n"]:
        if not len(eps) or self._resolves_nothing():
            shape = (len(eps), len(self._functionals))
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        return torch.stack(list(self._residuals(len(eps), generator)))

    def _resolves_nothing(self) -> bool:
        return self.residual_refinement == 1

    def _residuals(
        self, count: int, generator: torch.Generator
    ) -> Iterator[Float[Tensor, " n"]]:
        return (residual for residual, _ in self._fields(count, generator))

    def _fields(
        self, count: int, generator: torch.Generator
    ) -> Iterator[tuple[Float[Tensor, " n"], Float[Tensor, " q"]]]:
        """Draws of the residual and its field."""
        fine = self.whitening.refined(self.residual_refinement)
        weights = self._residual_weights()
        for _ in range(count):
            field, _ = fine.prior_draw(generator)
            eps = self.whitening.whiten(fine.subsample(field))
            yield (weights.matvec(field) - self.operator.matvec(eps))[0], field[0]

    def _residual_weights(self) -> LinearOperator:
        if self.residual_refinement == self.whitening.refinement:
            return self.weights
        if self._fine_weights is not None:
            return self._fine_weights
        return self._projection(self.residual_refinement)

    def with_parameters(self, values: dict[str, Tensor]) -> TorusGaussian:
        """The same torus, W and white draws with other hyperparameters.

        Memory: keeps the weights on the residual's torus.

        Raises
        ------
        ValueError
            If a name is not among ``parameters()`` or a value is not positive.
        """
        self.require_known(values)
        own = mean_parameters(self.mean)
        self._fine_weights = self._residual_weights()
        other = copy.copy(self)
        other.mean = mean_with(self.mean, {n: v for n, v in values.items() if n in own})
        if other.mean != self.mean:
            offset = other.mean.observed(self._functionals)
            other.offset = offset.to(self.dtype).to(self.device)
        kernel = {n: v for n, v in values.items() if n not in own}
        if kernel:
            other.whitening = self.whitening.with_kernel(
                self.whitening.kernel.with_parameters(kernel)
            )
            other.operator = TorusTangent(other.whitening, self.weights)
            other._variance = None
        return other

    def parameter_gradient(
        self,
        eps: Float[Tensor, "s p"],
        of_prediction: Float[Tensor, "s n"],
        of_variance: Float[Tensor, "s n"],
    ) -> dict[str, Tensor]:
        gradient = SpectralGradient(self.whitening, self.residual_refinement)
        used = of_prediction.any(dim=1)
        if bool(used.any()):
            pulled = self.weights.rmatvec(of_prediction[used])
            gradient.add_coloured(eps[used], pulled)
        self._add_variance(gradient, of_variance.sum(dim=0))
        total = of_prediction.sum(dim=0)
        means = mean_gradient(self.mean, self._functionals, self.offset, total)
        return {**gradient.by_parameter(), **means}

    def _add_variance(
        self, gradient: SpectralGradient, weights: Float[Tensor, " n"]
    ) -> None:
        """Add ``Σ_n b_n v_n`` from the draws that define ``v_n``."""
        if self._resolves_nothing() or not bool(weights.any()):
            return
        self._fine_weights = fine = self._residual_weights()
        generator = torch.Generator().manual_seed(self._seed)
        for residual, field in self._fields(self.residual_count, generator):
            pull = (2 / self.residual_count) * weights * residual
            of_field, of_conditional = fine.rmatvec(pull), self.weights.rmatvec(pull)
            gradient.add_residual(field, of_field, of_conditional)

    def at(self, functionals: Functionals) -> TorusGaussian:
        return TorusGaussian(
            self.whitening,
            functionals,
            mean=self.mean,
            interpolation=self.interpolation,
            residual_refinement=self.residual_refinement,
            residual_count=self.residual_count,
            generator=torch.Generator().manual_seed(self._seed),
            group=self.group,
        )
