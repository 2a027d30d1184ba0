r"""Observations, the variational bound of them, and prediction.

``q(f_n) = N(L_n μ + k_nᵀ m, k_nᵀ S k_n + v_n)``,
``bound = Σ_n E_q[ln p(y_n | f_n)] − KL(q(ε) ‖ N(0, I))`` (HIP-GP, eq. 13–14, for any
likelihood; Hensman, Matthews & Ghahramani 2015).

Every bound here is that of one kernel, one grid and one set of nodes. With *sub-grid
noise* the conditional variance ``v_n`` is added to the noise instead of the latent's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.inference.svi.gaussian import (
    Batch,
    Estimate,
    Gaussian,
    divergence_from_prior,
)
from dustmap.inference.svi.precision import PrecisionGaussian
from dustmap.likelihoods import Gaussian as NormalNoise
from dustmap.likelihoods import Likelihood
from dustmap.models.rowwise import FeatureRows, RowwiseGaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Observations under any likelihood.

    Parameters
    ----------
    values
        ``y_n``, or with additive noise ``y_n − L_n μ``.
    likelihood
        ``p(y_n | f_n)``.
    offset
        ``L_n μ`` as far as it is not in ``values``; nothing by default.
    subgrid_noise
        Whether ``v_n`` counts as noise, which must be normal then.
    """

    values: Float[Tensor, " n"]
    likelihood: Likelihood
    offset: Float[Tensor, " n"] | None = None
    subgrid_noise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianData:
    """Observations with normal noise, minus their mean function.

    Parameters
    ----------
    residual
        ``r_n = y_n − L_n μ``.
    noise
        ``σ_n²``, not negative.
    common_noise
        ``τ²``, added to every ``σ_n²``.
    subgrid_noise
        Whether ``v_n`` counts as noise.
    """

    residual: Float[Tensor, " n"]
    noise: Float[Tensor, " n"]
    common_noise: float | Tensor = 0.0
    subgrid_noise: bool = False

    def __post_init__(self) -> None:
        if self.residual.ndim != 1 or self.residual.shape != self.noise.shape:
            raise ValueError(
                "values and noise variances must be two equally long vectors, got "
                f"{tuple(self.residual.shape)} and {tuple(self.noise.shape)}"
            )
        for name in ("residual", "noise"):
            faulty = int((~torch.isfinite(getattr(self, name))).sum())
            if faulty:
                raise ValueError(f"{faulty} entries of {name} are not finite")
        common = torch.as_tensor(self.common_noise).detach()
        lowest = float(self.noise.min() + common) if len(self.noise) else 1.0
        if not lowest > 0:
            raise ValueError(
                "every noise variance, the common one added, must be positive, the "
                f"lowest is {lowest:g}: give the data errors or a common noise"
            )

    @classmethod
    def of(
        cls,
        model: RowwiseGaussian,
        values: Float[Tensor, " n"],
        noise_variance: Float[Tensor, " n"],
        *,
        common_noise: float = 0.0,
        subgrid_noise: bool = False,
    ) -> GaussianData:
        """The data ``y_n`` of a model's functionals with variances ``σ_n²``.

        They are carried to the model's device.
        """
        if len(values) != len(model.functionals):
            raise ValueError(
                f"the model has {len(model.functionals)} functionals, got "
                f"{len(values)} values"
            )
        return cls(
            residual=values.to(model.offset) - model.offset,
            noise=noise_variance.to(model.offset),
            common_noise=common_noise,
            subgrid_noise=subgrid_noise,
        )

    def __len__(self) -> int:
        return len(self.residual)

    @property
    def values(self) -> Float[Tensor, " n"]:
        """``r_n``."""
        return self.residual

    @property
    def offset(self) -> None:
        """Nothing: the residuals have it."""
        return None

    @property
    def likelihood(self) -> NormalNoise:
        """``N(f_n, σ_n² + τ²)``."""
        return NormalNoise(variance=self.common_noise, known=self.noise)

    def variance(
        self, index: Int[Tensor, " b"], conditional: Float[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """The noise of some observations: ``σ_n² + τ²``, plus ``v_n`` if sub-grid."""
        noise = self.noise[index] + self.common_noise
        return noise + conditional if self.subgrid_noise else noise

    def batch(
        self, index: Int[Tensor, " b"], rows: FeatureRows, *, scale: float | None = None
    ) -> Batch:
        """Data terms of a minibatch, scaled by ``N / |B|`` unless told."""
        if scale is None:
            scale = len(self) / len(index)
        weight = (scale / self.variance(index, rows.variance)).detach()
        return Batch(
            features=rows.features.detach(),
            weight=weight,
            target=weight * self.residual[index],
        )


Observed = Observations | GaussianData


def noise_and_spread(
    likelihood: Likelihood,
    conditional: Float[Tensor, " b"],
    quadratic: Float[Tensor, " b"] | float,
    *,
    subgrid_noise: bool,
) -> tuple[Likelihood, Float[Tensor, " b"]]:
    """The likelihood of some rows, and the variance of their latent.

    ``v_n`` goes to the one or to the other.
    """
    if not subgrid_noise:
        return likelihood, conditional + quadratic
    assert isinstance(likelihood, NormalNoise)
    return likelihood.widened(conditional), torch.zeros_like(conditional) + quadratic


def expected_log_likelihood(
    data: Observed, index: Int[Tensor, " b"], rows: FeatureRows, q: Gaussian
) -> Float[Tensor, " b"]:
    """``E_q[ln p(y_n | f_n)]`` (eq. 14, for normal noise; the paper leaves out ln 2π).

    Differentiable in ``rows`` and the likelihood's parameters.
    """
    likelihood, variance = noise_and_spread(
        data.likelihood.select(index),
        rows.variance,
        q.quadratic(rows.features),
        subgrid_noise=data.subgrid_noise,
    )
    mean = rows.features @ q.mean
    if data.offset is not None:
        mean = mean + data.offset[index]
    return likelihood.expected(data.values[index], mean, variance)


@torch.no_grad()
def expected_terms(
    model: RowwiseGaussian, data: Observed, q: Gaussian
) -> Float[Tensor, " n"]:
    """``E_q[ln p(y_n | f_n)]`` of all observations. Cost: every row once."""
    parts = [
        expected_log_likelihood(data, index, model.rows(index), q)
        for index in model.batches()
    ]
    return torch.cat(parts)


def divergence_of(q: Gaussian, generator: torch.Generator | None = None) -> Estimate:
    """``KL(q ‖ N(0, I))``, estimated where q can do no better."""
    if isinstance(q, PrecisionGaussian):
        return q.divergence(generator)
    return Estimate(float(divergence_from_prior(q).detach()))


def bound(
    model: RowwiseGaussian,
    data: Observed,
    q: Gaussian,
    generator: torch.Generator | None = None,
) -> Estimate:
    """The bound on all data [nats]; a generator where the KL term is an estimate."""
    expected = float(expected_terms(model, data, q).sum())
    divergence = divergence_of(q, generator)
    return Estimate(expected - divergence.value, divergence.error)


def elbo(model: RowwiseGaussian, data: Observed, q: Gaussian) -> float:
    """The bound of a q whose KL term is exact."""
    return bound(model, data, q).value


class LatentMoments(NamedTuple):
    """Mean and variance of latent functionals, without an observation's noise.

    In the functional's unit and its square. Where a functional is known almost exactly
    rounding may leave its variance slightly below zero.
    """

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]


@torch.no_grad()
def predict(model: RowwiseGaussian, q: Gaussian) -> LatentMoments:
    """``L_n μ + k_nᵀ m`` and ``k_nᵀ S k_n + v_n`` of a model's functionals.

    The variance is that of the noise-free ``L_n ρ``, with what the grid cannot resolve.
    Cost: one solve and one ``kᵀ S k`` each. Variances below zero by rounding are
    counted in ``model.report``.
    """
    empty = model.offset.new_zeros(0)
    means, variances = [empty], [empty]
    for index in model.batches():
        rows = model.rows(index)
        prior = (rows.features**2).sum(dim=-1) + rows.variance
        explained = prior - rows.variance - q.quadratic(rows.features)
        means.append(model.offset[index] + rows.features @ q.mean)
        variances.append(model.checked_variance(prior, explained))
    return LatentMoments(torch.cat(means), torch.cat(variances))
