"""Observation models against numerical integration with SciPy's densities."""

import functools
import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from dustmap.functionals import PointValues
from dustmap.inference.svi import SvgpSettings, fit_svgp
from dustmap.kernels import Matern32
from dustmap.likelihoods import Gaussian, Likelihood, StudentT
from dustmap.tails import log_student
from dustmap.whitening import CholeskyWhitening

# (mean, variance) of the latent: next to, far from, narrower and wider than the noise.
LATENTS = ((0.3, 1.0), (3.0, 0.01), (0.0, 100.0), (30.0, 1.0), (0.2, 1e-6), (-2.0, 1e3))
STUDENTS = tuple(
    StudentT(scale=scale, degrees=degrees)
    for scale, degrees in ((1e-3, 0.7), (1e-3, 50.0), (1.0, 5.0), (10.0, 2000.0))
)
GAUSSIANS = (Gaussian(variance=0.3), Gaussian(variance=1e-4))
ALL = (*STUDENTS, *GAUSSIANS)


def density(g, f: float) -> float:
    return math.exp(g(f))


def below(noise, y: float, f: float) -> float:
    return float(noise.cdf(y - f))


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def log_density(likelihood: Likelihood, y: float):
    """``f ↦ ln p(y | f)`` by SciPy, and the width of its features."""
    if isinstance(likelihood, StudentT):
        s, nu = float(likelihood.scale), float(likelihood.degrees)
        return lambda f: stats.t.logpdf(y, nu, f, s), s
    if isinstance(likelihood, Gaussian):
        s = math.sqrt(float(likelihood.variance))
        return lambda f: stats.norm.logpdf(y, f, s), s
    raise TypeError(likelihood)


def expectation(g, mean: float, variance: float, centre: float, width: float) -> float:
    """``E[g(f)]``, cut into pieces where g or the normal density bends."""
    std = math.sqrt(variance)
    edges = [mean + k * std for k in (-12, -4, -1, 0, 1, 4, 12)]
    bends = [centre + k * width for k in (-100, -10, -1, 0, 1, 10, 100)]
    edges = sorted({*edges, *(b for b in bends if edges[0] < b < edges[-1])})
    with warnings.catch_warnings():
        # Pieces without anything in them stop at rounding and say so.
        warnings.simplefilter("ignore", integrate.IntegrationWarning)
        return sum(
            integrate.quad(
                lambda f: g(f) * math.exp(-0.5 * ((f - mean) / std) ** 2),
                a,
                b,
                epsabs=1e-14,
                epsrel=1e-11,
            )[0]
            for a, b in itertools.pairwise(edges)
        ) / (std * math.sqrt(2 * math.pi))


def name(likelihood: Likelihood) -> str:
    values = [f"{float(v):g}" for v in likelihood.parameters().values()]
    return "-".join([type(likelihood).__name__, *values])


@pytest.mark.parametrize("likelihood", ALL, ids=name)
def test_the_expected_log_density_is_the_integral(likelihood):
    for y in (0.0, 1.0):
        g, width = log_density(likelihood, y)
        for mean, variance in LATENTS:
            exact = expectation(g, mean, variance, y, width)
            value = float(likelihood.expected(one(y), one(mean), one(variance)))
            assert value == pytest.approx(exact, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("likelihood", ALL, ids=name)
def test_the_predictive_density_is_the_integral(likelihood):
    for y in (0.0, 1.0):
        g, width = log_density(likelihood, y)
        for mean, variance in LATENTS:
            exact = expectation(functools.partial(density, g), mean, variance, y, width)
            value = likelihood.predictive_log_density(one(y), one(mean), one(variance))
            if exact > 1e-12:
                assert float(value) == pytest.approx(math.log(exact), abs=1e-6)


def test_the_tail_of_the_predictive_density_is_that_of_the_noise():
    """Far out, where a quadrature made for the centre would have no nodes left."""
    likelihood = StudentT(scale=0.5, degrees=3.0)
    y = torch.tensor([1e2, 1e4, 1e8], dtype=torch.float64)
    mean, variance = torch.zeros(3).double(), torch.full((3,), 1e-8).double()
    value = likelihood.predictive_log_density(y, mean, variance)
    exact = stats.t.logpdf(y.numpy(), 3.0, 0.0, 0.5)
    np.testing.assert_allclose(value, exact, rtol=1e-9)


@pytest.mark.parametrize("likelihood", [*STUDENTS, *GAUSSIANS], ids=name)
def test_quantiles_hold_their_probability(likelihood):
    _, width = log_density(likelihood, 0.0)
    noise = stats.norm(0, width)
    if isinstance(likelihood, StudentT):
        noise = stats.t(float(likelihood.degrees), 0, width)
    for mean, variance in LATENTS:
        for p in (0.025, 0.16, 0.5, 0.9):
            y = float(likelihood.quantile(p, one(mean), one(variance)))
            held = expectation(
                functools.partial(below, noise, y), mean, variance, y, width
            )
            assert held == pytest.approx(p, abs=1e-7)


def test_variances_of_predictions_include_the_noise():
    t = stats.t(5.0, 0.0, 0.3)
    student = StudentT(scale=0.3, degrees=5.0).predictive_variance(one(0.49))
    assert float(student) == pytest.approx(0.49 + t.var())
    heavy = StudentT(scale=1.0, degrees=2.0).predictive_variance(one(1.0))
    assert math.isinf(float(heavy))
    normal = Gaussian(variance=0.2).predictive_variance(one(0.49))
    assert float(normal) == pytest.approx(0.69)


MAKERS = {
    "gaussian": lambda v: Gaussian(variance=v),
    "student": lambda v: StudentT(scale=v, degrees=5 * v),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_derivatives_are_those_of_the_values(kind):
    """By mean, variance and the parameters, once and twice."""
    y = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    mean = torch.tensor([0.2, -3.0, 5.0], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.5, 2.0, 0.01], dtype=torch.float64, requires_grad=True)
    value = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def expected(m, v, p):
        return MAKERS[kind](p).expected(y, m, v)

    def predictive(m, v, p):
        return MAKERS[kind](p).predictive_log_density(y, m, v)

    for function in (expected, predictive):
        assert torch.autograd.gradcheck(function, (mean, variance, value))
    assert torch.autograd.gradgradcheck(expected, (mean, variance, value))


def test_known_variances_add_to_the_common_one():
    known = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    likelihood = Gaussian(variance=0.3, known=known)
    y = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    zero = torch.zeros(3, dtype=torch.float64)
    exact = stats.norm.logpdf(y.numpy(), 0.0, np.sqrt(0.3 + known.numpy()))
    np.testing.assert_allclose(likelihood.predictive_log_density(y, zero, zero), exact)
    some = likelihood.select(torch.tensor([2, 0]))
    found = some.predictive_log_density(y[[2, 0]], zero[:2], zero[:2])
    np.testing.assert_allclose(found, exact[[2, 0]])
    assert Gaussian(known=known).parameters() == {}
    changed = some.with_parameters({"variance": torch.tensor(1.0).double()})
    assert changed.noise.tolist() == pytest.approx([1.4, 1.1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(), "must be positive"),
        (lambda: Gaussian(variance=-1.0), "≥ 0"),
        (lambda: Gaussian(known=torch.tensor([1.0, 0.0])), "1 of 2"),
        (lambda: StudentT(scale=0.0), "scale must be"),
        (lambda: StudentT(scale=1.0, degrees=math.nan), "degrees must be"),
        (
            lambda: StudentT(scale=1.0).check(torch.tensor([0.0, math.nan])),
            "not finite",
        ),
        (lambda: Gaussian(known=torch.ones(3)).check(torch.ones(2)), "observations"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_students_noise_of_many_degrees_is_normal_noise():
    """Learning from normal noise drives ν up: nothing may fall apart on the way."""
    y = torch.tensor([0.1, -2.0, 6.0], dtype=torch.float64)
    mean, variance = torch.zeros(3).double(), torch.full((3,), 0.3).double()
    normal = Gaussian(variance=0.49)
    for degrees in (1e8, 1e12):
        student = StudentT(scale=0.7, degrees=degrees)
        for method in ("expected", "predictive_log_density"):
            value = getattr(student, method)(y, mean, variance)
            exact = getattr(normal, method)(y, mean, variance)
            torch.testing.assert_close(
                value, exact, rtol=0.0, atol=1e4 / degrees + 1e-9
            )
        value = student.quantile(0.9, mean, variance)
        exact = normal.quantile(0.9, mean, variance)
        torch.testing.assert_close(value, exact, rtol=1e-6, atol=0.0)


def test_series_for_many_degrees_join_without_a_step():
    """On either side of where series take over from the gamma function."""
    y, mean, variance = one(1.3), one(0.2), one(0.4)
    for switch in (200.0, 1000.0):
        values = []
        for degrees in (switch * (1 - 1e-9), switch * (1 + 1e-9)):
            student = StudentT(scale=0.7, degrees=degrees)
            values.append(
                torch.cat(
                    [
                        log_student((y - mean) ** 2, 0.49, degrees, of="scale"),
                        student.predictive_log_density(y, mean, variance),
                    ]
                )
            )
        torch.testing.assert_close(values[0], values[1], rtol=0.0, atol=1e-10)


class Poisson(Likelihood):
    """Counts, ``ln p(y | f) = y f − e^f − ln y!``: no likelihood of ours."""

    def expected(self, y, mean, variance):
        return y * mean - torch.exp(mean + variance / 2) - torch.lgamma(y + 1)

    def predictive_log_density(self, y, mean, variance):
        raise NotImplementedError


def test_a_new_likelihood_is_one_class(generator):
    x = torch.linspace(0, 4, 60, dtype=torch.float64)[:, None]
    rate = torch.exp(1.5 + torch.sin(2 * x[:, 0]))
    y = torch.poisson(rate, generator=generator)
    result = fit_svgp(
        PointValues(x),
        y,
        CholeskyWhitening(Matern32(lengthscale=1.0, variance=1.0), x[::5]),
        Poisson(),
        generator=generator,
        mean=float(y.mean().log()),
        settings=SvgpSettings(steps=40, batch_size=60, natural_rate=0.5, learn=()),
    )
    latent = result.model.predict(PointValues(x))
    found = torch.exp(latent.mean + latent.variance / 2)
    assert float((found / rate).log().abs().mean()) < 0.2
