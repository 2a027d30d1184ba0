"""Small problems for sparse variational regression."""

import torch
from reference import Covariance
from torch import Tensor

from dustmap.functionals import (
    Derivatives,
    FixedStep,
    Functionals,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.inference.svi import Svgp, SvgpResult, SvgpSettings, fit_svgp
from dustmap.inference.svi.bound import Observations, elbo
from dustmap.kernels import Matern52
from dustmap.likelihoods import Likelihood
from dustmap.whitening import CholeskyWhitening

COVARIANCE = Covariance(name="matern52", lengthscale=(0.4, 0.7), variance=1.7)
KERNEL = Matern52(lengthscale=[0.4, 0.7], variance=1.7)
ONE_STEP = SvgpSettings(steps=1, natural_rate=1.0, batch_size=10**6, learn=())


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def mixed(generator: torch.Generator) -> Functionals:
    """Values, slopes along both axes and integrals."""
    return Stack(
        [
            PointValues(uniform(generator, 12, 2)),
            Derivatives(uniform(generator, 6, 2), torch.tensor([0, 1, 0, 1, 0, 1])),
            LineIntegrals(uniform(generator, 7, 2), FixedStep(step=0.1)),
        ]
    )


def whitening(points: Tensor, kernel=KERNEL, nugget: float = 0.0) -> CholeskyWhitening:
    return CholeskyWhitening(kernel, points, nugget=nugget)


def fit(
    functionals: Functionals,
    values: Tensor,
    points: Tensor,
    likelihood: Likelihood,
    settings: SvgpSettings,
    *,
    seed: int = 1,
    **keys,
) -> SvgpResult:
    return fit_svgp(
        functionals,
        values,
        whitening(points, keys.pop("kernel", KERNEL), keys.pop("nugget", 0.0)),
        likelihood,
        generator=torch.Generator().manual_seed(seed),
        settings=settings,
        **keys,
    )


def bound_of(model: Svgp, functionals: Functionals, values: Tensor) -> float:
    """The bound on these data."""
    at = model.forward.at(functionals)
    data = Observations(values=values, likelihood=model.likelihood, offset=at.offset)
    return elbo(at, data, model.q)


def curve(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    x = 4 * uniform(generator, count, 1)
    return x, torch.sin(3 * x[:, 0]) + 0.5


POINTS = torch.linspace(0, 4, 15, dtype=torch.float64)[:, None]
START = Matern52(lengthscale=1.0, variance=1.0)
LEARN = SvgpSettings(steps=250, batch_size=100, rate=0.05)
