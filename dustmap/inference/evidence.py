r"""The evidence of all observations at once, with an error bar.

With ``Λ = I + Φᵀ Σ⁻¹ Φ`` and the posterior's mean m,

``log N(y | Lμ, Φ Φᵀ + Σ) = −½ [ N log 2π + Σ_n log Σ_n + log det Λ
+ Σ_n (y_n − apply(m)_n)² / Σ_n + |m|² ]``

(the determinant lemma, and the least squares that m solves). The quadratic is
stationary in m: an error of m enters squared. For a model that is not linear, with its
tangent at the mode, this is Laplace's approximation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch import Precision
from dustmap.linalg.lanczos import LanczosQuadrature, LogDeterminant
from dustmap.linalg.operator import inner
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import Linearisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The collapsed objective and its parts [nats].

    ``value`` is ``log N(y | Lμ, Φ Φᵀ + Σ) − trace``; ``trace`` is ``½ Σ_n v_n / Σ_n``,
    zero where the sub-grid variance is part of Σ. ``error`` is that of the log
    determinant, halved: everything else is exact for the m given.
    """

    value: float
    error: float
    fit: float
    trace: float
    log_determinant: LogDeterminant


def collapsed_evidence(
    tangent: Linearisation,
    observations: Float[Tensor, " n"],
    noise_variance: Float[Tensor, " n"],
    mean: Float[Tensor, " p"],
    *,
    subgrid_noise: bool,
    quadrature: LanczosQuadrature,
    generator: torch.Generator,
    preconditioner: NystromPreconditioner | None = None,
) -> Evidence:
    """The evidence at the posterior's mean, or Laplace's at the mode.

    Parameters
    ----------
    tangent
        Of the model at ``mean``.
    noise_variance
        ``σ_n² + τ²``, without the sub-grid variance.
    subgrid_noise
        Add ``v_n`` to the noise; otherwise the bound is charged for it.
    quadrature, generator
        For ``log det Λ``.
    preconditioner
        Of Λ: narrows the error bar.
    """
    noise = noise_variance.to(torch.float64)
    v = tangent.variance.to(torch.float64)
    total = noise + v if subgrid_noise else noise
    trace = 0.0 if subgrid_noise else 0.5 * float((v / noise).sum())
    precision = Precision(tangent.operator, total)
    precision.domain.require_whole("the evidence")
    determinant = quadrature.estimate(
        precision.matvec,
        precision.shape[0],
        generator,
        preconditioner=preconditioner,
        dtype=precision.dtype,
        device=precision.device,
    )
    residual = observations.to(torch.float64) - tangent.prediction.to(torch.float64)
    fit = float((residual**2 / total).sum() + inner(mean, mean))
    constant = len(observations) * math.log(2 * math.pi) + float(total.log().sum())
    return Evidence(
        value=-0.5 * (constant + determinant.value + fit) - trace,
        error=0.5 * determinant.error,
        fit=fit,
        trace=trace,
        log_determinant=determinant,
    )
