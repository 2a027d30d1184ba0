"""The two engines against each other: one posterior, up to wrap and interpolation.

The published engine keeps the functionals' own nodes and the plain kernel; the
full-batch engine has the periodised kernel and nodes snapped onto a grid. What is left
between them must fall as the torus grows and its refinement does.
"""

from itertools import pairwise

import pytest
import torch
from dense_box import optimum

from dustmap.covariance import functional_covariance
from dustmap.functionals import Derivatives, GaussLegendre, LineIntegrals, PointValues
from dustmap.functionals import Stack as Joined
from dustmap.grid import Grid, Torus
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.svi.bound import Observations, predict
from dustmap.kernels import Matern52
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening, TorusWhitening

KERNEL = Matern52(lengthscale=1.0, variance=1.3)
BOX = Grid(shape=(13, 11), spacing=(0.5, 0.5), origin=(-3.0, -2.5))
NOISE = 0.1
TIGHT = ConjugateGradients(rtol=1e-11, max_steps=5000)


def functionals(count: int, generator: torch.Generator) -> Joined:
    """Values, slopes and rays in the middle of the box."""

    def places() -> torch.Tensor:
        unit = torch.rand(count, 2, generator=generator, dtype=torch.float64)
        return (unit - 0.5) * torch.tensor([3.0, 2.4])

    return Joined(
        [
            PointValues(places()),
            Derivatives(places(), 1),
            LineIntegrals(places(), GaussLegendre(count=8)),
        ]
    )


def published(data, targets, values, variance) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of the targets by the optimal q of full rank."""
    # A torus has inducing points around the box; so must what it is compared with.
    wide = Grid(shape=(37, 35), spacing=(0.5, 0.5), origin=(-9.0, -8.5))
    whitening = ToeplitzWhitening(KERNEL, wide, lengthscales=(1.0, 1.0), solver=TIGHT)
    model = RowwiseGaussian(whitening, data)
    observed = Observations.of(model, values, variance)
    model.keep_rows()
    q = optimum(model, observed, family="full")
    moments = predict(model.at(targets), q)
    return moments.mean, moments.variance


def full_batch(
    data, targets, values, variance, draws: int, *, pad: int, refinement: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by the full-batch engine; the variance by dense Λ."""
    torus = Torus(grid=BOX, shape=tuple(n + n % 2 + pad for n in BOX.shape))
    whitening = TorusWhitening(KERNEL, torus, refinement=refinement)

    def model_of(seen, draws: int) -> TorusGaussian:
        return TorusGaussian(
            whitening,
            seen,
            interpolation="cubic",
            residual_count=draws,
            generator=torch.Generator().manual_seed(0),
        )

    # Without sub-grid noise the variances of the data are of no account.
    model, seen = model_of(data, 1), model_of(targets, draws)
    result = infer(
        model,
        values,
        variance,
        settings=FullBatch(solver=TIGHT, samples=0, subgrid_noise=False),
        generator=torch.Generator().manual_seed(1),
    )
    assert result.converged
    features = model.operator.to_dense()
    precision = torch.eye(model.latent_size, dtype=torch.float64)
    precision += features.mT @ (features / variance[:, None])
    rows = seen.operator.to_dense()
    spread = (rows * torch.linalg.solve(precision, rows.mT).mT).sum(dim=1)
    return seen.apply(result.mean), spread + seen.variance


TORI = (2, 1), (8, 2), (20, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tori", "draws", "most"),
    [
        (TORI, 1000, 0.2),
        # With 2,000 draws the largest of 24 differences is .036 to .059 by the draws
        # alone, with 32,000 .036 to .043.
        pytest.param((*TORI, (20, 8)), 16_000, 0.05, marks=pytest.mark.slow),
    ],
)
def test_the_posteriors_agree_ever_better_as_padding_and_refinement_grow(
    generator, tori, draws, most
):
    data, targets = functionals(12, generator), functionals(8, generator)
    white = torch.randn(2, len(data), generator=generator, dtype=torch.float64)
    covariance = functional_covariance(KERNEL, data, data)
    values = torch.linalg.cholesky(covariance) @ white[0] + NOISE * white[1]
    variance = torch.full_like(values, NOISE**2)
    mean, spread = published(data, targets, values, variance)
    errors, spreads = [], []
    for pad, refinement in tori:
        other = full_batch(
            data, targets, values, variance, draws, pad=pad, refinement=refinement
        )
        errors.append(float(((other[0] - mean) / spread.sqrt()).abs().max()))
        spreads.append(float((other[1] / spread - 1).abs().max()))
    for series in (errors, spreads):
        assert all(late < 0.6 * early for early, late in pairwise(series))
        assert series[-1] < most
