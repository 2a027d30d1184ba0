r"""A positive density: ``ρ = ρ_0 exp(f)`` with f Gaussian on one or several tori.

``apply(ε) = W ρ`` with ``ρ = ρ_0 exp(A ε)``; its tangent is ``Φ = W diag(ρ) A``. The
unresolved part of f has small scales and multiplies the density: it contributes the
variance ``κ ∫ ρ² ds`` to a line integral and ``(e^c − 1) ρ²`` to a point value
(:mod:`dustmap.models.subgrid`).
"""

from __future__ import annotations

import copy
import math
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.functionals import (
    DistanceMarginalizedIntegrals,
    Functionals,
    LineIntegrals,
    PointValues,
)
from dustmap.models.base import Linearisation
from dustmap.models.gaussian import TorusModel, TorusTangent
from dustmap.models.means import Mean
from dustmap.models.subgrid import LocalResidual, local_residual
from dustmap.shapes import Draws, EpsBatch, EpsDraws, Vector
from dustmap.whitening import GridWhitening
from dustmap.whitening.modes import LEADING, Field


class LogNormal(TorusModel[GridWhitening]):
    """A log-normal density that predicts all observations without a solve.

    Parameters
    ----------
    whitening
        ε ↔ f.
    functionals
        Point values and line integrals; other functionals have no known local residual.
    mean
        ``ρ_0(x) > 0``, the median of the prior density.
    subgrid_share
        α, a factor on κ: the fraction of a line integral's unresolved variance that is
        independent of its neighbours.
    group
        Processes that share the rows of W; all of them construct and call the model
        together.

    Raises
    ------
    ValueError
        If ``ρ_0`` is not positive in the box, or a functional has another kind.
    """

    positive = True

    def __init__(
        self,
        whitening: GridWhitening,
        functionals: Functionals,
        *,
        mean: Mean,
        subgrid_share: float = 1.0,
        group: Group | None = None,
    ) -> None:
        if not subgrid_share > 0:
            raise ValueError(f"subgrid_share must be positive, got {subgrid_share}")
        self.subgrid_share = subgrid_share
        super().__init__(whitening, functionals, mean=mean, group=group)
        self.leading = whitening.modes.longest(LEADING)
        # ``ln ρ_0`` on the tori.
        median = torch.cat([mean(some) for some in whitening.tori.position_blocks()])
        if not bool((median > 0).all()):
            raise ValueError(
                "the median of a log-normal density must be positive everywhere, the "
                f"mean function is {float(median.min()):.3g} at its lowest: use a "
                "positive mean, or a Gaussian density"
            )
        logarithm = median.log()
        if whitening.cut:
            # The mean over the scales that the grids do not carry.
            logarithm += whitening.tori.constants(whitening.unresolved) / 2
        self._log_mean = logarithm.to(dtype=self.dtype, device=self.device)
        # Shared with all models derived from this.
        self._relative: list[Tensor] = []

    def _observe(self, functionals: Functionals) -> None:
        known = PointValues | LineIntegrals | DistanceMarginalizedIntegrals
        for _, part in functionals.runs():
            if not isinstance(part, known):
                raise ValueError(
                    "a log-normal density is observed by point values and line "
                    f"integrals, got {type(part).__name__}: use a Gaussian density "
                    "for others"
                )
        super()._observe(functionals)

    @property
    def local(self) -> list[LocalResidual]:
        """The unresolved part of f on every level, measured once."""
        kernel, cut = self.whitening.kernel, self.whitening.cut
        grids = self.whitening.tori.grids
        return [local_residual(kernel, grid.spacing, cut=cut) for grid in grids]

    def density(self, eps: EpsBatch) -> Field:
        """Return ``ρ`` on the tori."""
        return torch.exp(self._log_mean + self.whitening.colour(eps))

    def apply(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch n"]:
        return self.weights.matvec(self.density(eps))

    def linearise(self, eps: Float[Tensor, "*batch p"]) -> Linearisation:
        self.group.require_alike("the vector of parameters", eps)
        density = self.density(eps)
        prediction, variance = self.predict_from_density(density)
        operator = TorusTangent(self.whitening, self.weights, density)
        return Linearisation(
            prediction=prediction, operator=operator, variance=variance
        )

    def predict_from_density(self, density: Field) -> tuple[Vector, Vector]:
        """Return prediction and conditional variance from ``ρ`` on the torus.

        Models made by `at` can share one density: two sparse products each, and no
        transform.
        """
        prediction = self.weights.matvec(density)
        return prediction, self._variance(density, prediction)

    def _variance(self, density: Tensor, observed: Tensor) -> Tensor:
        """Return ``κ_n (W ρ²)_n + (e^{c_n} − 1) (W ρ)_n²``; ``observed`` is ``W ρ``.

        κ belongs to the coarsest level, c to the level in which a point lies; κ is zero
        for points, c for integrals.
        """
        line = torch.zeros(len(self.functionals), dtype=torch.float64)
        share = self.subgrid_share * self.weights.excess
        point = torch.zeros_like(line)
        grids = self.whitening.tori.grids
        for rows, part in self.functionals.runs():
            if not isinstance(part, PointValues):
                line[rows] = share * self.local[0].line
                continue
            points = part.points
            level = torch.from_numpy(grids.level_of(points.numpy()))
            variance = points.new_zeros(len(points))
            for number, (local, grid) in enumerate(zip(self.local, grids, strict=True)):
                variance[level == number] = local.at(points[level == number], grid)
            point[rows] = torch.expm1(variance)
        squared = density**2
        if len(grids) > 1:
            # κ of every point's level, relative to the coarsest level.
            if not self._relative:
                kappa = [local.line / self.local[0].line for local in self.local]
                found = self.whitening.tori.constants(kappa)
                self._relative.append(found.to(dtype=self.dtype, device=self.device))
            squared *= self._relative[0]
        found = line.to(observed) * self.weights.nonnegative(squared)
        return found + point.to(observed) * observed**2

    def residual_draws(self, eps: EpsDraws, generator: torch.Generator) -> Draws:
        """Draw independent residuals that keep every prediction positive.

        They are ``W ρ (e^{τ z − τ²/2} − 1)`` with ``τ² = ln(1 + v / (W ρ)²)``.
        """
        shape = (len(eps), len(self.functionals))
        white = torch.randn(shape, generator=generator, dtype=torch.float64)
        density = self.density(eps)
        prediction = self.weights.matvec(density)
        variance = self._variance(density, prediction)
        # A ray of zero length predicts zero, without scatter.
        size = prediction.clamp(min=torch.finfo(self.dtype).tiny)
        scatter = torch.log1p((variance.sqrt() / size) ** 2).sqrt()
        exponent = scatter * white.to(scatter) - scatter**2 / 2
        return prediction * torch.expm1(exponent)

    def with_subgrid_share(self, share: float) -> Self:
        if not 0 < share < math.inf:
            raise ValueError(f"a share must be positive and finite, got {share}")
        other = copy.copy(self)
        other.subgrid_share = share
        return other
