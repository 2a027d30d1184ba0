r"""Stochastic variational Gaussian processes: any likelihood, any inducing points.

``y_n ~ p(y_n | f_n)`` of latent functionals ``f_n = L_n (μ + f)``, ``f ~ GP(0, k)``, a
constant μ; inducing values ``u = R ε`` and ``q(ε) = N(m, S)`` (Hensman, Matthews &
Ghahramani 2015). With ``k_n`` from the whitening and ``v_n = k_nn − |k_n|²``,

``q(f_n) = N(L_n μ + k_nᵀ m, k_nᵀ S k_n + v_n)``,
``bound = Σ_n E_q[ln p(y_n | f_n)] − KL(q(ε) ‖ N(0, I))``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.covariance import functional_variance
from dustmap.functionals import Functionals
from dustmap.gp.dense import cross_covariance
from dustmap.gp.moments import Moments
from dustmap.gp.natural import Divergence, PrecisionGaussian
from dustmap.inference.variational import Gaussian, divergence_from_prior
from dustmap.kernels import Kernel
from dustmap.likelihoods import Likelihood
from dustmap.models.means import ConstantMean
from dustmap.models.row_report import RowReport
from dustmap.whitening import Whitening

# Numbers in one block of features.
_BLOCK = 2**22


class SeenRows(NamedTuple):
    """Features and conditional variances of a batch, and what they are worth."""

    features: Float[Tensor, "b p"]
    variance: Float[Tensor, " b"]
    report: RowReport


class Bound(NamedTuple):
    """A lower bound of ``ln p(y)`` [nats], and its standard error (0: exact)."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Svgp:
    """A Gaussian process with a variational posterior.

    Parameters
    ----------
    whitening
        Kernel and inducing points.
    q
        Of ε.
    likelihood
        Of the observations.
    mean
        μ.
    tolerance
        ``v_n ≥ −tolerance · k_nn`` counts as rounding and is zero.
    """

    whitening: Whitening
    q: Gaussian
    likelihood: Likelihood
    mean: float = 0.0
    tolerance: float = 1e-2

    @property
    def kernel(self) -> Kernel:
        """k."""
        return self.whitening.kernel

    @torch.no_grad()
    def predict(self, functionals: Functionals) -> Moments:
        """Moments of the latent ``L_* (μ + f)``, block by block.

        Cost: one row of features and one ``kᵀ S k`` per functional.
        """
        means, variances = [torch.zeros(0).double()], [torch.zeros(0).double()]
        for _, part in functionals.chunks(self._rows):
            rows = seen_rows(self.whitening, part, self.tolerance)
            offset = self.mean * ones(part)
            means.append(offset + rows.features @ self.q.mean)
            variances.append(self.q.quadratic(rows.features) + rows.variance)
        return Moments(mean=torch.cat(means), variance=torch.cat(variances))

    @torch.no_grad()
    def bound(
        self,
        functionals: Functionals,
        values: Float[Tensor, " n"],
        generator: torch.Generator | None = None,
    ) -> Bound:
        """The bound on all data; a generator where the KL term is an estimate."""
        expected = self.expected(functionals, values)
        divergence = divergence_of(self.q, generator)
        return Bound(float(expected.sum()) - divergence.value, divergence.error)

    @torch.no_grad()
    def expected(
        self, functionals: Functionals, values: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """``E_q[ln p(y_n | f_n)]`` of every observation [nats]."""
        values = values.to(torch.float64)
        self.likelihood.check(values)
        moments = self.predict(functionals)
        rows = max(1, _BLOCK // 256)
        parts = [
            self.likelihood.select(index).expected(
                values[index], moments.mean[index], moments.variance[index]
            )
            for index in torch.arange(len(values)).split(rows)
        ]
        return torch.cat(parts)

    @property
    def _rows(self) -> int:
        return max(1, _BLOCK // self.whitening.size)


def ones(functionals: Functionals) -> Float[Tensor, " n"]:
    """What functionals see of a field of one everywhere."""
    return ConstantMean(value=1.0).observed(functionals)


def divergence_of(q: Gaussian, generator: torch.Generator | None) -> Divergence:
    """``KL(q ‖ N(0, I))``, estimated where q can do no better."""
    if isinstance(q, PrecisionGaussian):
        return q.divergence(generator)
    return Divergence(value=float(divergence_from_prior(q).detach()))


def seen_rows(
    whitening: Whitening,
    functionals: Functionals,
    tolerance: float,
    report: RowReport | None = None,
) -> SeenRows:
    """``k_n`` and ``v_n``, differentiable in the kernel and the inducing points.

    ``report`` is what was seen before; it comes back with these rows added.

    Raises
    ------
    ValueError
        If a ``v_n`` is below zero by more than the tolerance.
    """
    cross = cross_covariance(whitening.kernel, functionals, whitening.points)
    features, solution = whitening.features(cross)
    total = functional_variance(whitening.kernel, functionals)
    variance = total - (features**2).sum(dim=-1)
    exact, scale = variance.detach(), total.detach()
    relative = torch.where(scale > 0, exact / torch.where(scale > 0, scale, 1.0), 0.0)
    wrong = relative < -tolerance
    if bool(wrong.any()):
        raise ValueError(
            f"{int(wrong.sum())} of {len(wrong)} conditional variances are negative, "
            f"down to {float(relative.min()):.1e} of the prior variance (allowed: "
            f"{-tolerance:.0e}): ask the whitening for a smaller residual, or give it "
            "a jitter or fewer inducing points"
        )
    report = RowReport() if report is None else report
    report = report.with_solution(solution).with_variances(relative)
    # The zero replaces rounding only: the derivative stays that of the formula.
    kept = variance + (exact.clamp(min=0) - exact)
    return SeenRows(features, kept, report)
