"""A Gaussian process with a variational posterior, as a fit leaves it."""

from __future__ import annotations

from dataclasses import dataclass

from dustmap.functionals import Functionals
from dustmap.inference.svi.bound import LatentMoments, predict
from dustmap.inference.svi.gaussian import NaturalGaussian
from dustmap.kernels import Kernel
from dustmap.likelihoods import Likelihood
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import Whitening


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
    """

    forward: RowwiseGaussian
    q: NaturalGaussian
    likelihood: Likelihood

    @property
    def whitening(self) -> Whitening:
        """Kernel and inducing points."""
        return self.forward.whitening

    @property
    def kernel(self) -> Kernel:
        """k."""
        return self.whitening.kernel

    @property
    def mean(self) -> float:
        """A constant mean function's value."""
        assert isinstance(self.forward.mean, ConstantMean)
        return self.forward.mean.value

    def predict(self, functionals: Functionals) -> LatentMoments:
        """Moments of the latent ``L_* (μ + f)``, block by block."""
        return predict(self.forward.at(functionals), self.q)
