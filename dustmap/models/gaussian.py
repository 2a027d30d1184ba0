r"""A Gaussian field on a torus that predicts all observations without a solve.

``Φ = W A``: colour ε onto the (refined) torus, then apply the projection. The residual
that the grid cannot resolve, ``L_n f − Φ_n ε``, is drawn on a torus at least as fine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.functionals import Functionals
from dustmap.models.base import Linearisation
from dustmap.models.means import ConstantMean, Mean
from dustmap.models.torus import TorusModel, TorusTangent
from dustmap.projection import Interpolation
from dustmap.whitening import TorusWhitening


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
        self.residual_count = residual_count
        # One seed for all draws of v_n, which are thus reproducible.
        self._seed = _seed(generator)
        super().__init__(
            whitening,
            functionals,
            mean=ConstantMean() if mean is None else mean,
            interpolation=interpolation,
            group=group,
        )

    def _observe(self, functionals: Functionals) -> None:
        super()._observe(functionals)
        self.operator = TorusTangent(self.whitening, self.weights)
        self.offset = self._offset()
        self._variance: Tensor | None = None

    def _offset(self) -> Float[Tensor, " n"]:
        """``L μ``."""
        observed = self.mean.observed(self._functionals)
        return observed.to(self.dtype).to(self.device)

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
            if self.residual_refinement > 1:
                generator = torch.Generator().manual_seed(self._seed)
                for draw in self._residuals(self.residual_count, generator):
                    total += draw.to(torch.float64) ** 2
            self._variance = (total / self.residual_count).to(self.dtype)
        return self._variance

    def residual_draws(
        self, eps: Float[Tensor, "s p"], generator: torch.Generator
    ) -> Float[Tensor, "s n"]:
        if not len(eps) or self.residual_refinement == 1:
            shape = (len(eps), len(self._functionals))
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        return torch.stack(list(self._residuals(len(eps), generator)))

    def _residuals(
        self, count: int, generator: torch.Generator
    ) -> Iterator[Float[Tensor, " n"]]:
        """Draws of the residual."""
        fine = self.whitening.refined(self.residual_refinement)
        weights = self.weights
        if self.residual_refinement != self.whitening.refinement:
            weights = self._projection(self.residual_refinement)
        for _ in range(count):
            field, eps = fine.prior_draw(generator)
            yield (weights.matvec(field) - self.operator.matvec(eps))[0]

    def at(self, functionals: Functionals) -> Self:
        other = super().at(functionals)
        other._seed = _seed(torch.Generator().manual_seed(self._seed))
        return other


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (1,), generator=generator))
