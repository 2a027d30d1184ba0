"""A Gaussian process with a variational posterior, as a fit leaves it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.inference.svi.blocks import BlockGaussian
from dustmap.inference.svi.bound import (
    LatentMoments,
    Observations,
    bound,
    expected_terms,
    predict,
)
from dustmap.inference.svi.gaussian import Estimate
from dustmap.inference.svi.low_rank import LowRankGaussian
from dustmap.inference.svi.precision import PrecisionGaussian
from dustmap.kernels import Kernel
from dustmap.likelihoods import Likelihood
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import Whitening


def ones(model: RowwiseGaussian) -> Float[Tensor, " n"]:
    """What a model's functionals see of a field of one everywhere."""
    return ConstantMean(value=1.0).observed(model.functionals).to(model.device)


NaturalFamily = BlockGaussian | LowRankGaussian | PrecisionGaussian


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Svgp:
    """A Gaussian process with a variational posterior.

    Parameters
    ----------
    forward
        The prior: a whitening of the inducing values, and a mean function.
    q
        Of ε.
    likelihood
        Of observations.
    mean
        A constant beside the mean function, where one is learnt.
    """

    forward: RowwiseGaussian
    q: NaturalFamily
    likelihood: Likelihood
    mean: float = 0.0

    @property
    def whitening(self) -> Whitening:
        """Kernel and inducing points."""
        return self.forward.whitening

    @property
    def kernel(self) -> Kernel:
        """k."""
        return self.whitening.kernel

    def predict(self, functionals: Functionals) -> LatentMoments:
        """Moments of the latent ``L_* (μ + f)``, block by block."""
        at = self.forward.at(functionals)
        moments = predict(at, self.q)
        return moments._replace(mean=moments.mean + self.mean * ones(at))

    def bound(
        self,
        functionals: Functionals,
        values: Float[Tensor, " n"],
        generator: torch.Generator | None = None,
    ) -> Estimate:
        """The bound on these data; a generator where the KL term is an estimate."""
        return bound(*self._problem(functionals, values), self.q, generator)

    def expected(
        self, functionals: Functionals, values: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """``E_q[ln p(y_n | f_n)]`` of every observation [nats]."""
        return expected_terms(*self._problem(functionals, values), self.q)

    def _problem(
        self, functionals: Functionals, values: Tensor
    ) -> tuple[RowwiseGaussian, Observations]:
        at = self.forward.at(functionals)
        self.likelihood.check(values)
        return at, Observations(
            values=values.to(at.offset),
            likelihood=self.likelihood,
            offset=at.offset + self.mean * ones(at),
        )
