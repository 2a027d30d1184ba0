r"""The evidence's gradient by hyperparameters at the posterior, without its value.

By the envelope theorem, with q(ε) the posterior at θ and ε held fixed,

``∂/∂θ log p(y) = ∂/∂θ { E_q[ Σ_n log N(y_n | apply_θ(ε)_n, Σ_n) ] − ½ Σ_n v_n/Σ_n }``

with ``Σ = σ² + τ²``, or ``σ² + τ² + v(θ)`` and no last term with sub-grid noise. E_q is
the average over antithetic samples ``m ± δ_s``: for a linear model it splits into
``|y − apply(m)|²``, exact, and the mean of ``|Φ δ_s|²``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.scales.hyperpoint import COMMON_NOISE, Direction, Hyperpoint
from dustmap.models.base import ForwardModel, Linearisation

# Change of a logarithm that scatter is measured with: its error is of that order.
_STEP = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedResiduals:
    """``y − apply(m ± δ_s)`` of every pair, and what they are weighted with.

    ``noise`` is ``σ² + τ²``, ``variance`` is ``v_n(m)``, both float64.
    """

    residuals: Float[Tensor, "2 s n"]
    noise: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    subgrid_noise: bool

    @property
    def total(self) -> Float[Tensor, " n"]:
        """Σ."""
        return self.noise + self.variance if self.subgrid_noise else self.noise

    @property
    def squares(self) -> Float[Tensor, "s n"]:
        """Mean square of each pair."""
        return (self.residuals**2).mean(dim=0)

    def misfits(self) -> Float[Tensor, " s"]:
        """``−½ Σ_n r_sn² / Σ_n``, the part of the objective that scatters."""
        return -0.5 * (self.squares / self.total).sum(dim=1)


def paired_residuals(
    point: Hyperpoint,
    observations: Float[Tensor, " n"],
    sigma2: Float[Tensor, " n"],
    mean: Float[Tensor, " p"],
    deltas: Float[Tensor, "s p"],
    *,
    subgrid_noise: bool,
    variance: Float[Tensor, " n"] | None = None,
) -> PairedResiduals:
    """Residuals of antithetic samples at one point; cost: ``2 s`` products.

    ``variance`` is ``v_n(m)`` where it is at hand.
    """
    model = point.model
    if variance is None:
        variance = model.linearise(mean).variance
    seen = model.apply(torch.cat([mean + deltas, mean - deltas])).to(torch.float64)
    residuals = observations.to(torch.float64) - seen
    return PairedResiduals(
        residuals=residuals.reshape(2, len(deltas), -1),
        noise=point.noise(sigma2),
        variance=variance.to(torch.float64),
        subgrid_noise=subgrid_noise,
    )


def log_gradient(
    point: Hyperpoint,
    pairs: PairedResiduals,
    mean: Float[Tensor, " p"],
    deltas: Float[Tensor, "s p"],
) -> dict[str, Tensor]:
    """``∂/∂ log θ`` of the objective for every hyperparameter, entry by entry."""
    model, count = point.model, 2 * len(deltas)
    total = pairs.total
    mean_square = pairs.squares.mean(dim=0)
    of_total = 0.5 * (mean_square / total - 1) / total
    of_variance = of_total
    if not pairs.subgrid_noise:
        of_variance = -0.5 / total
        of_total = of_total + 0.5 * pairs.variance / total**2
    eps = torch.cat([mean + deltas, mean - deltas, mean[None]])
    of_prediction = (pairs.residuals / total).reshape(count, -1) / count
    nothing = torch.zeros_like(of_prediction)
    by_value = model.parameter_gradient(
        eps,
        torch.cat([of_prediction, torch.zeros_like(total)[None]]).to(model.dtype),
        torch.cat([nothing, of_variance[None]]).to(model.dtype),
    )
    values = point.values()
    by_logarithm = {n: values[n] * g.to(values[n]) for n, g in by_value.items()}
    by_logarithm[COMMON_NOISE] = values[COMMON_NOISE] * float(of_total.sum())
    return by_logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSamples:
    """Antithetic samples ``m ± δ_s`` for :func:`learn`, of any model."""

    observations: Float[Tensor, " n"]
    sigma2: Float[Tensor, " n"]
    mean: Float[Tensor, " p"]
    deltas: Float[Tensor, "s p"]
    subgrid_noise: bool

    @property
    def products(self) -> int:
        """Vectors that Φ or Φᵀ is applied to by :meth:`values`."""
        return 2 * len(self.deltas)

    @property
    def gradient_products(self) -> int:
        """The same of :meth:`gradient`."""
        return 4 * len(self.deltas)

    def gradient(
        self, point: Hyperpoint, tangent: Linearisation
    ) -> dict[str, Float[Tensor, "..."]]:
        """``∂/∂ log θ`` for every hyperparameter, entry by entry."""
        pairs = self._residuals(point, tangent)
        return log_gradient(point, pairs, self.mean, self.deltas)

    def values(
        self, point: Hyperpoint, tangent: Linearisation, noise: Float[Tensor, " n"]
    ) -> Float[Tensor, " s"]:
        """The part of the objective that scatters, of every pair."""
        return self._residuals(point, tangent).misfits()

    def _residuals(self, point: Hyperpoint, tangent: Linearisation) -> PairedResiduals:
        return paired_residuals(
            point,
            self.observations,
            self.sigma2,
            self.mean,
            self.deltas,
            subgrid_noise=self.subgrid_noise,
            variance=tangent.variance,
        )


def evidence_gradient(
    model: ForwardModel,
    observations: Float[Tensor, " n"],
    sigma2: Float[Tensor, " n"],
    common_noise: float,
    mean: Float[Tensor, " p"],
    deltas: Float[Tensor, "s p"],
    *,
    subgrid_noise: bool,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradient of the collapsed objective in the logarithms of all hyperparameters.

    Parameters
    ----------
    model
        At the θ in question.
    observations, sigma2, common_noise
        ``y_n``, ``σ_n²`` and ``τ²``.
    mean
        The posterior's mean m at θ (its error enters to first order).
    deltas
        Draws of ``ε − m`` from the posterior at θ, used as ``m ± δ_s``.
    subgrid_noise
        Whether ``v_n`` is part of the noise.

    Returns
    -------
    The gradient and its standard errors from the scatter over pairs (``inf`` for one
    pair), as the model's parameters are shaped, and ``common_noise``.
    """
    point = Hyperpoint(model=model, common_noise=common_noise)
    data = (observations, sigma2, mean, deltas)
    pairs = paired_residuals(point, *data, subgrid_noise=subgrid_noise)
    gradient = log_gradient(point, pairs, mean, deltas)
    errors = {}
    for name, value in gradient.items():
        entries = [Direction(name=name, entry=i) for i in range(value.numel())]
        moved = [point.moved([d], [_STEP]) for d in entries]
        others = [
            paired_residuals(p, *data, subgrid_noise=subgrid_noise).misfits()
            for p in moved
        ]
        covariance = scatter(pairs.misfits(), others, _STEP)
        errors[name] = covariance.diagonal().sqrt().reshape(value.shape)
    return gradient, errors


def scatter(
    start: Float[Tensor, " s"], moved: Sequence[Float[Tensor, " s"]], step: float
) -> Float[Tensor, "k k"]:
    """Covariance of a sampled gradient along directions, from each sample's slopes.

    Forward differences by ``step``: to that relative order, as is enough for errors.
    """
    slopes = torch.stack([(there - start) / step for there in moved])
    if len(start) < 2:
        return torch.full((len(moved), len(moved)), torch.inf, dtype=torch.float64)
    centred = slopes - slopes.mean(dim=1, keepdim=True)
    return centred @ centred.mT / (len(start) - 1) / len(start)
