"""A function with noisy values and slopes, and ways to learn it from them.

The function is a random neural network with sinusoidal units, as in the authors'
published code; all methods share kernel, noise and a zero mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Derivatives, Functionals, PointValues, Stack
from dustmap.gp.exact import ExactGP
from dustmap.grid import Grid
from dustmap.inference.svi import HipSettings, SvgpSettings, fit_svgp, fit_svi
from dustmap.inference.svi.bound import Observations, predict
from dustmap.kernels import SquaredExponential
from dustmap.likelihoods import Gaussian as Normal
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import CholeskyWhitening, ToeplitzWhitening

VALUES, DERIVATIVES, TESTS = 100, 20, 100
VALUE_NOISE, DERIVATIVE_NOISE = 0.05, 0.2
KERNEL = SquaredExponential(lengthscale=0.1, variance=0.5)
ITERATIONS = 20
# Nugget of SVGP's inducing values, relative to k(0).
JITTER = 1e-8
# Of the network: units, and the spreads of the inner and the outer weights.
_UNITS, _INNER, _OUTER = 9, 9.0, 0.2

HIPGP, SVGP, EXACT = "HIP-GP", "SVGP", "exact GP"


class Predicted(NamedTuple):
    """Posterior moments of the function."""

    mean: Float[Tensor, " t"]
    variance: Float[Tensor, " t"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Data:
    """One function, its observations and the points to predict at."""

    function: Callable[[Tensor], Tensor]
    at: Float[Tensor, "n 1"]
    values: Float[Tensor, " n"]
    slopes_at: Float[Tensor, "m 1"]
    slopes: Float[Tensor, " m"]
    test: Float[Tensor, "t 1"]

    @property
    def truth(self) -> Float[Tensor, " t"]:
        """The function where it is to be predicted."""
        return self.function(self.test)

    def observed(self, *, derivatives: bool) -> tuple[Functionals, Tensor, Tensor]:
        """Functionals, observations and noise variances."""
        values = PointValues(self.at)
        noise = torch.full_like(self.values, VALUE_NOISE**2)
        if not derivatives:
            return values, self.values, noise
        both = Stack([values, Derivatives(self.slopes_at, 0)])
        slope_noise = torch.full_like(self.slopes, DERIVATIVE_NOISE**2)
        return (
            both,
            torch.cat([self.values, self.slopes]),
            torch.cat([noise, slope_noise]),
        )


def network(generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """``softplus(vᵀ tanh sin(w x + b) + c)``, weights normal (authors' code)."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inner, shift = _INNER * normal(_UNITS), _INNER * normal(_UNITS)
    outer, last = _OUTER * normal(_UNITS), _OUTER * normal(1)

    def function(x: Tensor) -> Tensor:
        hidden = torch.tanh(torch.sin(x * inner + shift))
        return torch.nn.functional.softplus(hidden @ outer + last)

    return function


def draw_data(seed: int) -> Data:
    """A function and its observations by a seed."""
    generator = torch.Generator().manual_seed(seed)
    function = network(generator)

    def uniform(count: int) -> Tensor:
        return 2 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 1

    def noisy(values: Tensor, noise: float) -> Tensor:
        white = torch.randn(len(values), generator=generator, dtype=torch.float64)
        return values + noise * white

    at, slopes_at, test = uniform(VALUES), uniform(DERIVATIVES), uniform(TESTS)
    leaf = slopes_at.clone().requires_grad_(True)
    (slopes,) = torch.autograd.grad(function(leaf).sum(), leaf)
    return Data(
        function=function,
        at=at,
        values=noisy(function(at), VALUE_NOISE),
        slopes_at=slopes_at,
        slopes=noisy(slopes[:, 0], DERIVATIVE_NOISE),
        test=test,
    )


def inducing_grid(count: int) -> Grid:
    """Equidistant points on [-1, 1]."""
    return Grid(shape=(count,), spacing=(2 / (count - 1),), origin=(-1.0,))


def hipgp(data: Data, points: int, *, derivatives: bool) -> Predicted:
    """The published features with a full-rank q at the optimum S4–S5.

    These are one step of length 1 with all observations, and m by a solve.
    """
    functionals, values, noise = data.observed(derivatives=derivatives)
    whitening = ToeplitzWhitening(
        KERNEL,
        inducing_grid(points),
        lengthscales=(float(KERNEL.lengthscale),),
        solver=ConjugateGradients(rtol=1e-10, max_steps=ITERATIONS),
    )
    model = RowwiseGaussian(whitening, functionals)
    seen = Observations.of(model, values, noise)
    settings = HipSettings(
        family="full", batch_size=len(values), epochs=1, natural_rate=1.0
    )
    q = fit_svi(model, seen, settings, generator=torch.Generator()).q
    moments = predict(model.at(PointValues(data.test)), q)
    return Predicted(moments.mean, moments.variance)


def svgp(data: Data, points: int, *, derivatives: bool) -> Predicted:
    """SVGP on the same points: Cholesky whitening, one natural step on all data.

    With normal noise a step of length 1 from the prior arrives at the optimum.
    """
    functionals, values, noise = data.observed(derivatives=derivatives)
    places = inducing_grid(points).points()
    fitted = fit_svgp(
        functionals,
        values,
        CholeskyWhitening(KERNEL, places, nugget=JITTER * float(KERNEL.variance)),
        Normal(known=noise),
        generator=torch.Generator(),
        settings=SvgpSettings(
            natural_rate=1.0, batch_size=len(values), steps=1, learn=()
        ),
    )
    found = fitted.model.predict(PointValues(data.test))
    return Predicted(found.mean, found.variance)


def exact(data: Data, *, derivatives: bool) -> Predicted:
    """Dense Cholesky of the covariance of all observations."""
    functionals, values, noise = data.observed(derivatives=derivatives)
    common = float(noise.min())
    model = ExactGP(
        KERNEL, functionals, values, noise=common, known_noise=noise - common
    )
    found = model.predict(PointValues(data.test))
    return Predicted(found.mean, found.variance)


def all_methods(data: Data, points: int, *, derivatives: bool) -> dict[str, Predicted]:
    """Every method on one set of observations."""
    return {
        HIPGP: hipgp(data, points, derivatives=derivatives),
        SVGP: svgp(data, points, derivatives=derivatives),
        EXACT: exact(data, derivatives=derivatives),
    }
