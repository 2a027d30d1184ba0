r"""The evidence's gradient of a linear model, from samples that scatter least.

With ``C = Φ Φᵀ + Σ``, ``α = C⁻¹ (y − Lμ) = Σ⁻¹ (y − apply(m))`` and ``w ~ N(0, C⁻¹)``

``∂/∂θ log N(y | Lμ, C) = αᵀ ∂(Lμ) + ½ αᵀ ∂C α − ½ E[wᵀ ∂C w]``,

for ``E[w wᵀ] = C⁻¹`` makes the last term ``½ tr C⁻¹ ∂C``. A posterior deviation
``δ = Λ⁻¹ (Φᵀ Σ^{-1/2} η + ξ)`` brings such a draw with it: ``w = Σ^{-1/2} η − Σ⁻¹ Φ δ``
has covariance C⁻¹ and ``Φᵀ w = δ − ξ``. What α does once for the data, w does for draws
of the model, so that S of them add 1/S of the hyperparameters' own variance: the trace
by ``m ± δ`` scatters several times more where θ moves the field at fixed ε.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.scales.hyperpoint import COMMON_NOISE, Hyperpoint
from dustmap.models.base import Linearisation


@dataclass(frozen=True, slots=True, kw_only=True)
class DualSamples:
    """α, draws of w and what weighs them, at one θ.

    ``noise`` is ``σ² + τ²``, ``variance`` is ``v_n``; all are float64.
    """

    weights: Float[Tensor, " n"]
    draws: Float[Tensor, "s n"]
    noise: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    subgrid_noise: bool

    @property
    def total(self) -> Float[Tensor, " n"]:
        """Σ."""
        return self.noise + self.variance if self.subgrid_noise else self.noise

    @property
    def products(self) -> int:
        """Vectors that Φ or Φᵀ is applied to by :meth:`values`."""
        return len(self.draws)

    @property
    def gradient_products(self) -> int:
        """The same of :meth:`gradient`."""
        return 2 * (1 + len(self.draws))

    def gradient(
        self, point: Hyperpoint, tangent: Linearisation
    ) -> dict[str, Float[Tensor, "..."]]:
        """``∂/∂ log θ`` for every hyperparameter, entry by entry."""
        model, draws = point.model, self.draws
        mean_draw = draws.mean(dim=0)
        # The last row takes back what the draws say of Lμ: zero on average only.
        left = torch.stack([self.weights, *(-draws / len(draws)), mean_draw])
        pulled = tangent.operator.rmatvec(
            torch.cat([self.weights[None], draws]).to(model.dtype)
        )
        eps = torch.cat([pulled, torch.zeros_like(pulled[:1])])
        of_total = 0.5 * (self.weights**2 - (draws**2).mean(dim=0))
        of_variance = of_total
        if not self.subgrid_noise:
            of_variance = -0.5 / self.total
            of_total = of_total + 0.5 * self.variance / self.total**2
        by_variance = torch.zeros_like(left)
        by_variance[-1] = of_variance
        by_value = model.parameter_gradient(
            eps, left.to(model.dtype), by_variance.to(model.dtype)
        )
        values = point.values()
        by_logarithm = {n: values[n] * g.to(values[n]) for n, g in by_value.items()}
        by_logarithm[COMMON_NOISE] = values[COMMON_NOISE] * float(of_total.sum())
        return by_logarithm

    def values(
        self, point: Hyperpoint, tangent: Linearisation, noise: Float[Tensor, " n"]
    ) -> Float[Tensor, " s"]:
        """``−½ wᵀ C_θ w`` of every draw: its slope is the part that scatters."""
        pulled = tangent.operator.rmatvec(self.draws.to(tangent.operator.dtype))
        total = noise
        if self.subgrid_noise:
            total = total + tangent.variance.to(torch.float64)
        explained = (pulled.to(torch.float64) ** 2).sum(dim=1)
        return -0.5 * (explained + (self.draws**2 * total).sum(dim=1))
