r"""A positive density: ``ρ = ρ_0 exp(f)`` with f Gaussian on a torus.

``apply(ε) = W ρ`` with ``ρ = ρ_0 exp(A ε)``; its tangent is ``Φ = W diag(ρ) A``. The
unresolved part of f has small scales and multiplies the density: it contributes the
variance ``κ ∫ ρ² ds`` to a line integral and ``(e^c − 1) ρ²`` to a point value
(:mod:`dustmap.models.subgrid`).
"""

from __future__ import annotations

import copy
import math
from typing import Self

import numpy as np
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
from dustmap.grid import torus_positions
from dustmap.kernels import Radial
from dustmap.models.base import Linearisation
from dustmap.models.gradients import SpectralGradient
from dustmap.models.means import Mean
from dustmap.models.subgrid import LocalResidual, local_residual
from dustmap.models.torus import TorusModel, TorusTangent
from dustmap.projection import Interpolation
from dustmap.whitening import TorusWhitening

SUBGRID_SHARE = "subgrid_share"
# Step in ln θ of the central differences of κ and c.
_LOG_STEP = 0.05


class LogNormal(TorusModel):
    """A log-normal density that predicts all observations without a solve.

    Parameters
    ----------
    whitening
        ε ↔ f; the density is computed on its grid of refinement r.
    functionals
        Point values and line integrals; the local residual of others is not known.
    mean
        ``ρ_0(x) > 0``, the median of the prior density.
    interpolation
        Weights of W.
    seed
        Seed of the white noise with which κ and c are measured.
    memory_budget
        Memory for W [bytes]; a larger W is recomputed in every product.
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
        whitening: TorusWhitening,
        functionals: Functionals,
        *,
        mean: Mean,
        interpolation: Interpolation = "linear",
        seed: int = 0,
        memory_budget: float | None = None,
        subgrid_share: float = 1.0,
        group: Group | None = None,
    ) -> None:
        if not subgrid_share > 0:
            raise ValueError(f"subgrid_share must be positive, got {subgrid_share}")
        self.subgrid_share = subgrid_share
        self.memory_budget = memory_budget
        super().__init__(
            whitening, functionals, mean=mean, interpolation=interpolation, group=group
        )
        self._log_mean = self._logarithm()
        self._seed = seed
        # By lengthscale, at unit variance; shared with all models derived from this.
        self._measured: dict[tuple[float, ...], LocalResidual] = {}

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
    def kernel(self) -> Radial:
        """The covariance of f."""
        assert isinstance(self.whitening.kernel, Radial)
        return self.whitening.kernel

    @property
    def local(self) -> LocalResidual:
        """The unresolved part of f (measured once per lengthscale)."""
        return self._local_of(self.kernel)

    def _local_of(self, kernel: Radial) -> LocalResidual:
        scales = tuple(kernel.lengthscale.detach().reshape(-1).tolist())
        if scales not in self._measured:
            one = {"variance": torch.ones_like(kernel.variance)}
            self._measured[scales] = local_residual(
                kernel.with_parameters(one),
                self.whitening.torus.grid.spacing,
                refinement=self.whitening.refinement,
                interpolation=self.interpolation,
                seed=self._seed,
            )
        return self._measured[scales].times(float(kernel.variance))

    def density(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch f"]:
        """``ρ`` on the (refined) torus."""
        return torch.exp(self._log_mean + self.whitening.colour(eps))

    def _derivative(self, density: Tensor) -> Tensor:
        """``∂ρ/∂f``, which also converts unresolved f to density."""
        return density

    def apply(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch n"]:
        return self.weights.matvec(self.density(eps))

    def linearise(self, eps: Float[Tensor, "*batch p"]) -> Linearisation:
        self.group.require_alike("the vector of parameters", eps)
        density = self.density(eps)
        prediction, variance = self.predict_from_density(density)
        operator = TorusTangent(self.whitening, self.weights, self._derivative(density))
        return Linearisation(
            prediction=prediction, operator=operator, variance=variance
        )

    def predict_from_density(
        self, density: Float[Tensor, " f"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Prediction and conditional variance from ``ρ`` on the torus.

        Models made by `at` can share one density: two sparse products each, and no
        transform.
        """
        scale = self._derivative(density)
        prediction = self.weights.matvec(density)
        known = prediction if scale is density else self.weights.matvec(scale)
        return prediction, self._variance(scale, known)

    def _variance(self, density: Tensor, observed: Tensor) -> Tensor:
        """``κ_n (W ρ²)_n + (e^{c_n} − 1) (W ρ)_n²``, where ``observed`` is ``W ρ``."""
        line, point = self._factors()
        return line * self.weights.matvec(density**2) + point * observed**2

    def retract(
        self, eps: Float[Tensor, " p"], step: Float[Tensor, " p"], length: float
    ) -> Float[Tensor, " p"]:
        """Multiply ρ by ``1 + δ`` where δ, the change of f, is positive.

        This is the change predicted by the tangent. ``exp(δ)`` overshoots it, and a
        few such cells would force long steps to be halved.
        """
        if self.whitening.refinement != 1:
            return super().retract(eps, step, length)
        change = length * self.whitening.colour(step)
        softer = torch.where(change > 0, torch.log1p(change.clamp(min=0)), change)
        return eps + self.whitening.whiten(softer)

    def residual_draws(
        self, eps: Float[Tensor, "s p"], generator: torch.Generator
    ) -> Float[Tensor, "s n"]:
        """Independent draws that keep every prediction positive."""
        shape = (len(eps), len(self._functionals))
        white = torch.randn(shape, generator=generator, dtype=torch.float64)
        return self.residual_from(eps, white)

    def residual_from(
        self, eps: Float[Tensor, "s p"], white: Float[Tensor, "s n"]
    ) -> Float[Tensor, "s n"]:
        """``W ρ (e^{τ z − τ²/2} − 1)`` with ``τ² = ln(1 + v / (W ρ)²)``."""
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

    def parameters(self) -> dict[str, Tensor]:
        share = torch.tensor(self.subgrid_share, dtype=torch.float64)
        return {**super().parameters(), SUBGRID_SHARE: share}

    def with_parameters(self, values: dict[str, Tensor]) -> Self:
        other = super().with_parameters(values)
        if SUBGRID_SHARE in values:
            other = other.with_subgrid_share(float(values[SUBGRID_SHARE]))
        if other.mean != self.mean:
            other._log_mean = other._logarithm()
        return other

    def parameter_gradient(
        self,
        eps: Float[Tensor, "s p"],
        of_prediction: Float[Tensor, "s n"],
        of_variance: Float[Tensor, "s n"],
    ) -> dict[str, Tensor]:
        gradient = SpectralGradient(self.whitening, self.whitening.refinement)
        of_log_mean = torch.zeros(self.whitening.fine_size, dtype=torch.float64)
        factors = self._factors()
        # Sums over samples of b (W ρ²) and b (W ρ)², the multipliers of the factors.
        squares = torch.zeros(2, len(factors[0]), dtype=torch.float64)
        curved = bool(of_variance.any())
        for one, a, b in zip(eps, of_prediction, of_variance, strict=True):
            density = self.density(one)
            scale, pulled = self._derivative(density), self._pull(a)
            of_field, of_mean = scale * pulled, density * pulled
            if curved:
                varied, both = self._variance_gradient(scale, b, factors)
                of_mean = of_mean + varied
                of_field = of_field + varied if scale is density else of_field
                squares += both.to(torch.float64).cpu()
            gradient.add_coloured(one[None], of_field[None])
            of_log_mean += of_mean.to(torch.float64).cpu()
        of_kernel = gradient.by_parameter()
        if curved:
            of_factors = self._factor_gradient(squares)
            of_kernel = {n: v + of_factors[n] for n, v in of_kernel.items()}
        # The variance of a line integral is proportional to the share.
        of_share = (factors[0].to(squares) * squares[0]).sum() / self.subgrid_share
        positions = self._positions()
        of_mean = {
            name: of_log_mean @ self.mean.log_derivative(name, positions)
            for name in self.mean.parameters()
        }
        return {**of_kernel, **of_mean, SUBGRID_SHARE: of_share}

    def _variance_gradient(
        self, scale: Tensor, b: Tensor, factors: tuple[Tensor, Tensor]
    ) -> tuple[Float[Tensor, " f"], Float[Tensor, "2 n"]]:
        """``∂/∂ ln ρ Σ_n b_n v_n``, and ``b (W ρ²)`` and ``b (W ρ)²``."""
        line, point = factors
        observed = self.weights.matvec(scale)
        varied = 2 * scale**2 * self._pull(b * line)
        varied = varied + scale * self._pull(2 * b * point * observed)
        both = torch.stack([self.weights.matvec(scale**2), observed**2])
        return varied, b * both

    def _pull(self, cotangent: Tensor) -> Tensor:
        return self.weights.rmatvec(cotangent.to(self.dtype))

    def _factor_gradient(self, squares: Float[Tensor, "2 n"]) -> dict[str, Tensor]:
        """``∂/∂θ Σ_n [κ_n s_1n + (e^{c_n} − 1) s_2n]`` by differences in ``ln θ``."""

        def value(name: str, parameter: Tensor) -> float:
            kernel = self.kernel.with_parameters({name: parameter})
            factors = self._factors_of(self._local_of(kernel))
            return float((torch.stack(factors) * squares).sum())

        gradient = {}
        for name, parameter in self.kernel.parameters().items():
            start = parameter.detach()
            gradient[name] = torch.zeros_like(start)
            for place in np.ndindex(tuple(start.shape)):
                ends = []
                for sign in (-1.0, 1.0):
                    shifted = start.clone()
                    shifted[place] *= math.exp(sign * _LOG_STEP)
                    ends.append(value(name, shifted))
                width = 2 * _LOG_STEP * float(start[place])
                gradient[name][place] = (ends[1] - ends[0]) / width
        return gradient

    def _factors(self) -> tuple[Tensor, Tensor]:
        """``κ_n`` and ``e^{c_n} − 1`` per functional; one of them is zero."""
        line, point = self._factors_of(self.local)
        place = {"dtype": self.dtype, "device": self.device}
        return line.to(**place), point.to(**place)

    def _factors_of(self, local: LocalResidual) -> tuple[Tensor, Tensor]:
        line = torch.zeros(len(self._functionals), dtype=torch.float64)
        point = torch.zeros_like(line)
        for rows, part in self._functionals.runs():
            if isinstance(part, PointValues):
                grid = self.whitening.torus.grid
                point[rows] = self._point_factor(local.at(part.points, grid))
            else:
                line[rows] = self.subgrid_share * local.line
        return line, point

    def _point_factor(self, variance: Tensor) -> Tensor:
        """Relative variance of the density at a variance ``c`` of f."""
        return torch.expm1(variance)

    def _positions(self) -> Float[Tensor, "f d"]:
        return torus_positions(self.whitening.torus, self.whitening.refinement)

    def _logarithm(self) -> Float[Tensor, " f"]:
        """``ln ρ_0`` on the (refined) torus."""
        values = self.mean(self._positions())
        if not bool((values > 0).all()):
            raise ValueError(
                "the median of a log-normal density must be positive everywhere, the "
                f"mean function is {float(values.min()):.3g} at its lowest: use a "
                "positive mean, or a Gaussian density"
            )
        return values.log().to(dtype=self.dtype, device=self.device)
