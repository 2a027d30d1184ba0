r"""Observations, their variational bound, and the model that predicts.

``q(f_n) = N(L_n μ + k_nᵀ m, k_nᵀ S k_n + v_n)``,
``bound = Σ_n E_q[ln p(y_n | f_n)] − KL(q(ε) ‖ N(0, I))`` (HIP-GP, eq. 13–14, for any
likelihood, and with the ln 2π that the paper leaves out; Hensman, Matthews &
Ghahramani 2015).

Every bound is for one kernel, one grid and one set of nodes. With *sub-grid noise* the
conditional variance ``v_n`` is added to the noise instead of the latent's variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.inference.svi.gaussian import Batch, NaturalGaussian
from dustmap.kernels import Kernel
from dustmap.keyed_noise import Purpose, stream, torch_stream
from dustmap.likelihoods import Gaussian as NormalNoise
from dustmap.likelihoods import Likelihood
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import FeatureRows, RowwiseGaussian
from dustmap.shapes import Draws, Index, Vector


class LatentMoments(NamedTuple):
    """Mean and variance of latent functionals, without an observation's noise.

    Units: the functional's unit and its square. If a functional is known almost
    exactly, rounding may leave its variance slightly below zero.
    """

    mean: Vector
    variance: Vector


class Terms(NamedTuple):
    """``k_n`` and ``v_n`` of a minibatch, moments of ``q(f_n)`` and ``E_n``."""

    features: Float[Tensor, "b p"]
    conditional: Float[Tensor, " b"]
    mean: Float[Tensor, " b"]
    variance: Float[Tensor, " b"]
    expected: Float[Tensor, " b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Observations of a model's functionals.

    ``values``, ``likelihood`` and ``offset`` are ``y_n``, ``p(y_n | f_n)`` and
    ``L_n μ``; with ``subgrid_noise`` ``v_n`` counts as noise, which must be normal.
    """

    values: Vector
    likelihood: Likelihood
    offset: Vector
    subgrid_noise: bool = False

    @classmethod
    def of(
        cls,
        model: RowwiseGaussian,
        values: Vector,
        noise_variance: Vector,
        *,
        common_noise: float = 0.0,
        subgrid_noise: bool = False,
    ) -> Observations:
        """Return data with normal noise ``σ_n² + τ²`` on the model's device.

        Raises `ValueError` if lengths disagree, a value is not finite or a noise not
        positive.
        """
        shape = (len(model.functionals),)
        if not values.shape == noise_variance.shape == shape:
            raise ValueError(
                f"the model has {shape[0]} functionals, got {tuple(values.shape)} "
                f"values and {tuple(noise_variance.shape)} noise variances"
            )
        values, known = values.to(model.offset), noise_variance.to(model.offset)
        likelihood = NormalNoise(variance=common_noise, known=known)
        likelihood.check(values)
        return cls(
            values=values,
            likelihood=likelihood,
            offset=model.offset,
            subgrid_noise=subgrid_noise,
        )

    def __len__(self) -> int:
        return len(self.values)

    def noise(self, model: RowwiseGaussian) -> Vector:
        """Return normal noise variances: ``σ_n² + τ²``, plus ``v_n`` if sub-grid.

        Raises `ValueError` if the noise is not normal.
        """
        likelihood = self.likelihood
        if not isinstance(likelihood, NormalNoise):
            raise ValueError(
                f"expected normal noise, got {type(likelihood).__name__}: "
                "take solve_mean=False"
            )
        if self.subgrid_noise:
            return likelihood.noise + model.variance
        return likelihood.noise.expand(len(self))

    def select(self, index: Index) -> Observations:
        """Return some of the observations."""
        return replace(
            self,
            values=self.values[index],
            likelihood=self.likelihood.select(index),
            offset=self.offset[index],
        )

    def split(self, conditional: Vector) -> tuple[Likelihood, Vector]:
        """Return the likelihood, and the part of ``v_n`` in the latent's variance."""
        if not self.subgrid_noise:
            return self.likelihood, conditional
        assert isinstance(self.likelihood, NormalNoise)
        return self.likelihood.widened(conditional), torch.zeros_like(conditional)

    def terms(
        self, rows: FeatureRows, q: NaturalGaussian, *, spread: bool = True
    ) -> Terms:
        """Return the bound's terms, differentiable in the rows.

        Without ``spread`` variances leave out ``k_nᵀ S k_n``, the expensive part, which
        steps with normal noise do not need.
        """
        likelihood, variance = self.split(rows.variance)
        if spread or not likelihood.conjugate:
            variance = variance + q.quadratic(rows.features)
        mean = self.offset + rows.features @ q.mean
        expected = likelihood.expected(self.values, mean, variance)
        return Terms(rows.features, rows.variance, mean, variance, expected)

    def batch(
        self,
        rows: FeatureRows,
        moments: tuple[Tensor, Tensor] | None = None,
        *,
        scale: float = 1.0,
    ) -> Batch:
        """Return the weights and targets of a natural step.

        ``moments`` holds mean and variance of ``q(f_n)``, which normal noise does not
        need; ``scale`` is ``N/|B|`` for a minibatch.
        """
        features, values, offset = rows.features.detach(), self.values, self.offset
        likelihood, spread = self.split(rows.variance.detach())
        start = (offset, spread) if moments is None else moments
        mean, variance = (m.detach().clone().requires_grad_(True) for m in start)
        with torch.enable_grad():
            expected = likelihood.expected(values, mean, variance).sum()
            by_mean, by_variance = torch.autograd.grad(expected, (mean, variance))
        weight = -2 * scale * by_variance
        kept = weight.clamp(min=0)

        @torch.no_grad()
        def objective(m: Tensor) -> float:
            moved = offset + features @ m
            return scale * float(likelihood.expected(values, moved, variance).sum())

        return Batch(
            features=features,
            weight=kept,
            target=scale * by_mean + kept * (mean.detach() - offset),
            clipped=int((weight < 0).sum()),
            objective=None if likelihood.conjugate else objective,
        )


@torch.no_grad()
def expected_terms(
    model: RowwiseGaussian, data: Observations, q: NaturalGaussian
) -> Vector:
    """Return ``E_q[ln p(y_n | f_n)]`` of all observations. Cost: every row once."""
    parts = [data.select(rows).terms(model.rows(rows), q) for rows in model.batches()]
    return torch.cat([part.expected for part in parts])


def elbo(model: RowwiseGaussian, data: Observations, q: NaturalGaussian) -> float:
    """Return the bound on all data [nats]."""
    return float(expected_terms(model, data, q).sum()) - q.divergence()


@torch.no_grad()
def predict(model: RowwiseGaussian, q: NaturalGaussian) -> LatentMoments:
    """Return ``L_n μ + k_nᵀ m`` and ``k_nᵀ S k_n + v_n`` of a model's functionals.

    The variance is for the noise-free ``L_n ρ`` and includes the unresolved part.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Svgp:
    """A Gaussian process with a variational posterior.

    ``forward`` is the prior, a whitening of the inducing values and a mean function;
    ``q`` is the distribution of ε, ``likelihood`` the distribution of observations.
    """

    forward: RowwiseGaussian
    q: NaturalGaussian
    likelihood: Likelihood

    @property
    def kernel(self) -> Kernel:
        """Kernel k."""
        return self.forward.whitening.kernel

    @property
    def mean(self) -> float:
        """Value of the constant mean function."""
        assert isinstance(self.forward.mean, ConstantMean)
        return self.forward.mean.value

    def predict(self, functionals: Functionals) -> LatentMoments:
        """Return moments of the latent ``L_* (μ + f)``, block by block."""
        return predict(self.forward.at(functionals), self.q)

    @torch.no_grad()
    def samples(self, functionals: Functionals, count: int, seed: int) -> Draws:
        """Draw ``L_* (μ + f)`` jointly, given q and the inducing points' residual."""
        there = self.forward.at(functionals)
        eps = self.q.sample(count, stream(seed, Purpose.LATENT))
        generator = torch_stream(seed, Purpose.SAMPLES)
        return there.apply(eps) + there.residual_draws(eps, generator)
