r"""The variational bound of eq. 13–14, its collapsed form, and prediction.

Every bound here is that of one kernel, one grid and one set of nodes. With *sub-grid
noise* the conditional variance ``v_n`` is added to the noise instead of the trace term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.inference.variational import Batch, Gaussian, divergence_from_prior
from dustmap.models.rowwise import Rows, RowwiseGaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianData:
    """Observations minus their mean function, and their noise.

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
        """The data ``y_n`` of a model's functionals with variances ``σ_n²``."""
        if len(values) != len(model.functionals):
            raise ValueError(
                f"the model has {len(model.functionals)} functionals, got "
                f"{len(values)} values"
            )
        return cls(
            residual=values.to(torch.float64) - model.offset,
            noise=noise_variance.to(torch.float64),
            common_noise=common_noise,
            subgrid_noise=subgrid_noise,
        )

    def __len__(self) -> int:
        return len(self.residual)

    def variance(
        self, index: Int[Tensor, " b"], conditional: Float[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """The noise of some observations: ``σ_n² + τ²``, plus ``v_n`` if sub-grid."""
        noise = self.noise[index] + self.common_noise
        return noise + conditional if self.subgrid_noise else noise

    def batch(
        self, index: Int[Tensor, " b"], rows: Rows, *, scale: float | None = None
    ) -> Batch:
        """Data terms of a minibatch, scaled by ``N / |B|`` unless told."""
        if scale is None:
            scale = len(self) / len(index)
        noise = self.variance(index, rows.variance)
        return Batch(
            features=rows.features.detach(),
            residual=self.residual[index],
            weight=(scale / noise).detach(),
        )


def expected_log_likelihood(
    data: GaussianData, index: Int[Tensor, " b"], rows: Rows, q: Gaussian
) -> Float[Tensor, " b"]:
    r"""``a'_n = E_q E[ln N(y_n | L_n ρ, σ_n²)]`` (eq. 14).

    ``−½ ln 2πσ² − ((r − kᵀm)² + kᵀSk + v) / 2σ²``; the paper leaves out −½ ln 2π. With
    sub-grid noise ``σ² + v`` stands for ``σ²`` and v leaves the bracket.
    Differentiable in ``rows`` and the noise.
    """
    noise = data.variance(index, rows.variance)
    misfit = data.residual[index] - rows.features @ q.mean
    spread = misfit**2 + q.quadratic(rows.features)
    if not data.subgrid_noise:
        spread = spread + rows.variance
    return -0.5 * (torch.log(2 * math.pi * noise) + spread / noise)


def elbo(model: RowwiseGaussian, data: GaussianData, q: Gaussian) -> float:
    """The bound of eq. 13 on all data. Cost: every row once."""
    total = -divergence_from_prior(q)
    for index in model.batches():
        rows = model.rows(index)
        total = total + expected_log_likelihood(data, index, rows, q).sum()
    return float(total)


class Moments(NamedTuple):
    """Mean and variance of what was predicted."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]


def predict(model: RowwiseGaussian, q: Gaussian) -> Moments:
    """``L_n μ + k_nᵀ m`` and ``k_nᵀ S k_n + v_n`` of a model's functionals.

    The variance is that of the noise-free ``L_n ρ``, with what the grid cannot resolve.
    Cost: one PCG each. Variances below zero by rounding are counted in
    ``model.report``.
    """
    empty = torch.zeros(0, dtype=model.dtype)
    means, variances = [empty], [empty]
    for index in model.batches():
        rows = model.rows(index)
        prior = (rows.features**2).sum(dim=-1) + rows.variance
        explained = prior - rows.variance - q.quadratic(rows.features)
        means.append(model.offset[index] + rows.features @ q.mean)
        variances.append(model.checked_variance(prior, explained))
    return Moments(torch.cat(means), torch.cat(variances))
