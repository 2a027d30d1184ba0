"""Sparse variational regression against dense algebra."""

import math

import numpy as np
import pytest
import torch
from reference import (
    Covariance,
    exact_posterior,
    functional_covariance,
    log_evidence,
    points_as_rows,
    rows_of,
)
from scipy import stats
from torch import Tensor

from dustmap.functionals import (
    Derivatives,
    FixedStep,
    Functionals,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.gp import svgp
from dustmap.gp.sgpr import SGPR
from dustmap.gp.svgp import Svgp, seen_rows
from dustmap.gp.svgp_families import FullRankFactor, LowRankFactor, MeanFieldScale
from dustmap.gp.svgp_fit import SvgpResult, fit_svgp
from dustmap.gp.svgp_settings import SvgpSettings
from dustmap.kernels import Matern32, Matern52
from dustmap.likelihoods import Bernoulli, Gaussian, Likelihood, StudentT
from dustmap.linalg.ciq import CIQ
from dustmap.linalg.minres import MultiShiftMinres
from dustmap.whitening import CholeskyWhitening, CiqWhitening

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


def ones_of(functionals: Functionals) -> np.ndarray:
    """What a functional sees of a constant: its weights, but for slopes."""
    return np.array(
        [sum(w for _, w, a in row if a is None) for row in rows_of(functionals)]
    )


def test_with_all_points_inducing_it_is_the_exact_process(generator):
    """Evidence, and predictions of values, slopes and integrals."""
    x = uniform(generator, 25, 2)
    y = torch.sin(5 * x[:, 0]) + x[:, 1]
    result = fit(PointValues(x), y, x, Gaussian(variance=0.05), ONE_STEP, mean=0.6)
    seen, asked = points_as_rows(x.numpy()), mixed(generator)
    K_nn = functional_covariance(COVARIANCE, seen, seen)
    K_sn = functional_covariance(COVARIANCE, rows_of(asked), seen)
    K_ss = functional_covariance(COVARIANCE, rows_of(asked), rows_of(asked))
    noise, residual = np.full(25, 0.05), y.numpy() - 0.6
    assert result.bound.value == pytest.approx(
        log_evidence(K_nn, residual, noise), rel=1e-9
    )
    mean, covariance = exact_posterior(K_nn, K_sn, K_ss, residual, noise)
    moments = result.model.predict(asked)
    exact = mean + 0.6 * ones_of(asked)
    np.testing.assert_allclose(moments.mean, exact, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(moments.variance, np.diag(covariance), atol=1e-9)


def collapsed_bound(
    K_nn: np.ndarray, K_nu: np.ndarray, K_uu: np.ndarray, y: np.ndarray, noise
) -> float:
    """Titsias (2009, eq. 9) with a noise of its own for every observation."""
    Q = K_nu @ np.linalg.solve(K_uu, K_nu.T)
    missed = np.diag(K_nn - Q)
    evidence = stats.multivariate_normal(np.zeros(len(y)), Q + np.diag(noise))
    return evidence.logpdf(y) - 0.5 * np.sum(missed / noise)


def test_at_the_optimum_it_is_the_collapsed_bound(generator):
    """Values, slopes and integrals in one data set, with noise known and common."""
    data, z = mixed(generator), uniform(generator, 9, 2)
    y = normal(generator, len(data))
    known = 0.1 + uniform(generator, len(data))
    result = fit(data, y, z, Gaussian(variance=0.2, known=known), ONE_STEP, mean=0.3)
    rows, inducing = rows_of(data), points_as_rows(z.numpy())
    K_nu = functional_covariance(COVARIANCE, rows, inducing)
    K_uu = functional_covariance(COVARIANCE, inducing, inducing)
    K_nn = functional_covariance(COVARIANCE, rows, rows)
    residual = y.numpy() - 0.3 * ones_of(data)
    noise = 0.2 + known.numpy()
    exact = collapsed_bound(K_nn, K_nu, K_uu, residual, noise)
    assert result.bound.value == pytest.approx(exact, rel=1e-9)
    assert result.bound.value < log_evidence(K_nn, residual, noise)
    precision = K_uu + K_nu.T @ (K_nu / noise[:, None])
    asked = mixed(generator)
    K_su = functional_covariance(COVARIANCE, rows_of(asked), inducing)
    mean = K_su @ np.linalg.solve(precision, K_nu.T @ (residual / noise))
    moments = result.model.predict(asked)
    expected = mean + 0.3 * ones_of(asked)
    np.testing.assert_allclose(moments.mean, expected, rtol=1e-7, atol=1e-8)
    K_ss = functional_covariance(COVARIANCE, rows_of(asked), rows_of(asked))
    gone = K_su @ np.linalg.solve(K_uu, K_su.T)
    kept = K_su @ np.linalg.solve(precision, K_su.T)
    np.testing.assert_allclose(
        moments.variance, np.diag(K_ss - gone + kept), rtol=1e-6, atol=1e-8
    )


def test_at_the_optimum_it_is_sgpr(generator):
    data, z = mixed(generator), uniform(generator, 9, 2)
    y = normal(generator, len(data))
    known = 0.1 + uniform(generator, len(data))
    result = fit(data, y, z, Gaussian(variance=0.2, known=known), ONE_STEP, mean=0.3)
    collapsed = SGPR(
        KERNEL, data, y, z, noise=0.2, mean=0.3, known_noise=known, jitter=0.0
    )
    assert result.bound.value == pytest.approx(collapsed.log_marginal(), rel=1e-9)
    asked = mixed(generator)
    found, other = result.model.predict(asked), collapsed.predict(asked)
    torch.testing.assert_close(found.mean, other.mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.variance, other.variance, rtol=1e-6, atol=1e-8)


def test_contour_quadrature_whitens_to_the_same_posterior(generator):
    """Another root of K_uu: q differs by a rotation, moments and bound do not."""
    data, z = mixed(generator), uniform(generator, 9, 2)
    y, likelihood = normal(generator, len(data)), StudentT(scale=0.5, degrees=5.0)
    settings = SvgpSettings(steps=4, batch_size=10, learn=())
    results = [
        fit_svgp(
            data,
            y,
            chosen,
            likelihood,
            generator=torch.Generator().manual_seed(5),
            settings=settings,
        )
        for chosen in (
            CholeskyWhitening(KERNEL, z),
            CiqWhitening(KERNEL, z, ciq=CIQ(solver=MultiShiftMinres(rtol=1e-8))),
        )
    ]
    asked = mixed(generator)
    exact, rooted = (r.model.predict(asked) for r in results)
    torch.testing.assert_close(rooted.mean, exact.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rooted.variance, exact.variance, rtol=1e-6, atol=1e-6)
    bounds = [r.bound.value for r in results]
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-6)
    assert not torch.allclose(results[0].model.q.mean, results[1].model.q.mean)


def families(generator: torch.Generator, size: int):
    """One of each, away from the prior."""
    members = [
        FullRankFactor(size),
        MeanFieldScale(size),
        LowRankFactor(size, 3, generator),
    ]
    for member in members:
        with torch.no_grad():
            for parameter in member.parameters():
                parameter.add_(0.3 * normal(generator, *parameter.shape))
    return members


def dense(q) -> Tensor:
    """S by polarisation: all that a family tells is ``kᵀ S k``."""
    size = len(q.mean)
    eye = torch.eye(size, dtype=torch.float64)
    pairs = (eye[:, None] + eye[None, :]).reshape(-1, size)
    both = q.quadratic(pairs).reshape(size, size)
    own = q.quadratic(eye)
    return ((both - own[:, None] - own[None, :]) / 2).detach()


@pytest.mark.parametrize("number", range(3))
def test_families_know_their_covariance(number, generator):
    q = families(generator, 6)[number]
    S = dense(q)
    assert float(torch.linalg.eigvalsh(S)[0]) > 0
    torch.testing.assert_close(q.trace().detach(), S.trace())
    torch.testing.assert_close(q.log_determinant().detach(), torch.logdet(S))
    draws = q.sample(100_000, generator).detach()
    torch.testing.assert_close(torch.cov(draws.mT), S, rtol=0.0, atol=0.1)
    torch.testing.assert_close(draws.mean(0), q.mean.detach(), rtol=0.0, atol=0.03)


@pytest.mark.parametrize("number", range(3))
def test_the_bound_is_the_formula(number, generator):
    """With Student's noise, in ε = L⁻¹u by dense algebra."""
    x, z = uniform(generator, 15, 2), uniform(generator, 6, 2)
    y = normal(generator, 15)
    likelihood = StudentT(scale=0.3, degrees=4.0)
    q = families(generator, 6)[number]
    model = Svgp(whitening=whitening(z), q=q, likelihood=likelihood, mean=0.2)
    K_uu = COVARIANCE.matrix(z.numpy(), z.numpy())
    K_nu = COVARIANCE.matrix(x.numpy(), z.numpy())
    features = np.linalg.solve(np.linalg.cholesky(K_uu), K_nu.T).T
    m, S = q.mean.detach().numpy(), dense(q).numpy()
    means = 0.2 + features @ m
    variances = 1.7 + np.einsum("np,pq,nq->n", features, S - np.eye(6), features)
    f, weights = np.polynomial.hermite_e.hermegauss(300)
    nodes = means[:, None] + np.sqrt(variances)[:, None] * f
    logs = stats.t.logpdf(y.numpy()[:, None], 4.0, nodes, 0.3)
    expected = (logs @ weights).sum() / math.sqrt(2 * math.pi)
    KL = 0.5 * (np.trace(S) + m @ m - 6 - np.linalg.slogdet(S)[1])
    value = model.bound(PointValues(x), y).value
    assert value == pytest.approx(expected - KL, abs=0.02)


def test_derivatives_run_through_features_to_kernel_and_points(generator):
    data = mixed(generator)
    z = uniform(generator, 5, 2).requires_grad_(True)
    log = torch.tensor([-0.9, -0.4], dtype=torch.float64, requires_grad=True)

    def rows(log_scale: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        kernel = Matern52(lengthscale=log_scale.exp(), variance=1.7)
        seen = seen_rows(CholeskyWhitening(kernel, points), data, 1e-6)
        return seen.features, seen.variance

    assert torch.autograd.gradcheck(rows, (log, z), rtol=1e-3, atol=1e-6)


def curve(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    x = 4 * uniform(generator, count, 1)
    return x, torch.sin(3 * x[:, 0]) + 0.5


POINTS = torch.linspace(0, 4, 15, dtype=torch.float64)[:, None]
START = Matern52(lengthscale=1.0, variance=1.0)
LEARN = SvgpSettings(steps=250, batch_size=100, rate=0.05)


@pytest.mark.parametrize("update", ["natural", "adam"])
def test_learning_recovers_the_noise(update, generator):
    x, f = curve(generator, 300)
    y = f + 0.2 * normal(generator, 300)
    settings = SvgpSettings(steps=250, batch_size=100, rate=0.05, update=update)
    result = fit(
        PointValues(x), y, POINTS, Gaussian(variance=1.0), settings, kernel=START
    )
    found = float(result.model.likelihood.parameters()["variance"])
    assert found == pytest.approx(0.04, rel=0.3)
    moments = result.model.predict(PointValues(x))
    assert float((moments.mean - f).square().mean().sqrt()) < 0.1
    assert result.bound_trace[-1] > result.bound_trace[0]
    assert set(result.hyperparameter_trace) == {
        "kernel.lengthscale",
        "kernel.variance",
        "likelihood.variance",
        "mean",
    }


def test_natural_steps_pass_adam_of_q(generator):
    """The same minibatches, the same number of steps: the natural bound is higher."""
    x, f = curve(generator, 300)
    y = f + 0.2 * normal(generator, 300)
    bounds = {
        update: fit(
            PointValues(x),
            y,
            POINTS,
            Gaussian(variance=0.04),
            SvgpSettings(steps=60, batch_size=100, update=update, learn=()),
            kernel=START,
            nugget=1e-8,
        ).bound.value
        for update in ("natural", "adam")
    }
    assert bounds["natural"] > bounds["adam"] + 10


def test_outliers_cost_students_noise_less(generator):
    x, f = curve(generator, 300)
    y = f + 0.1 * normal(generator, 300)
    y[::15] += 5.0
    errors = {}
    for likelihood in (Gaussian(variance=0.1), StudentT(scale=0.3, degrees=4.0)):
        result = fit(PointValues(x), y, POINTS, likelihood, LEARN, kernel=START)
        moments = result.model.predict(PointValues(x))
        errors[type(likelihood)] = float((moments.mean - f).square().mean())
        assert math.isfinite(result.bound.value)
    assert errors[StudentT] < 0.1 * errors[Gaussian]


def test_classes_are_told_better_than_by_their_frequency(generator):
    x, f = curve(generator, 400)
    y = (
        torch.rand(400, generator=generator) < torch.special.ndtr(3 * (f - 0.5))
    ).double()
    train, test = slice(0, 300), slice(300, 400)
    result = fit(
        PointValues(x[train]), y[train], POINTS, Bernoulli(), LEARN, kernel=START
    )
    moments = result.model.predict(PointValues(x[test]))
    told = result.model.likelihood.predictive_log_density(
        y[test], moments.mean, moments.variance
    )
    frequency = float(y[train].mean())
    plain = torch.where(y[test] > 0, frequency, 1 - frequency).log()
    assert float(told.mean()) > float(plain.mean()) + 0.15


def test_learnt_points_go_where_the_data_are(generator):
    x, f = curve(generator, 200)
    start = 0.3 * POINTS[::2]
    data, y = PointValues(x), f + 0.1 * normal(generator, 200)
    keys = {"steps": 150, "batch_size": 100, "rate": 0.05}
    settings = SvgpSettings(learn=("likelihood.variance",), **keys)
    moved = SvgpSettings(learn=("likelihood.variance", "points"), **keys)
    noise = Gaussian(variance=0.1)
    kernel = Matern32(lengthscale=1.0, variance=1.0)
    fixed = fit(data, y, start, noise, settings, kernel=kernel)
    free = fit(data, y, start, noise, moved, kernel=kernel, nugget=1e-6)
    assert free.bound.value > fixed.bound.value + 30
    assert float(free.model.whitening.points.max()) > 2.0


@pytest.mark.parametrize("family", ["mean-field", "low-rank", "full"])
def test_the_same_seed_gives_the_same_fit(family, generator):
    x, f = curve(generator, 120)
    data = PointValues(x)
    results = [
        fit(
            data,
            f,
            POINTS,
            Gaussian(variance=0.1),
            SvgpSettings(
                steps=12,
                batch_size=50,
                family=family,
                update="natural" if family == "full" else "adam",
                record_every=every,
                dense_limit=1,
            ),
            seed=seed,
            kernel=START,
        )
        for seed, every in ((3, 2), (3, 5), (4, 2))
    ]
    means = [r.model.predict(data).mean for r in results]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])
    assert results[0].recorded.tolist() == [0, 2, 4, 6, 8, 10]


def test_features_that_do_not_change_may_be_kept(generator):
    """Kept or made anew, blocks large or small: the same numbers."""
    x, f = curve(generator, 120)
    keys = {"steps": 10, "batch_size": 50, "learn": ("likelihood.variance", "mean")}
    fresh, kept = (
        fit(
            PointValues(x),
            f,
            POINTS,
            Gaussian(variance=0.1),
            SvgpSettings(row_memory=memory, **keys),
            kernel=START,
        )
        for memory in (0, 2**30)
    )
    torch.testing.assert_close(kept.model.q.mean, fresh.model.q.mean)
    assert kept.rows.rows == 120 < fresh.rows.rows


def test_prediction_in_blocks_is_prediction(generator, monkeypatch):
    x, f = curve(generator, 60)
    result = fit(
        PointValues(x), f, POINTS, Gaussian(variance=0.1), ONE_STEP, kernel=START
    )
    whole = result.model.predict(PointValues(x))
    monkeypatch.setattr(svgp, "_BLOCK", 7 * len(POINTS))
    parts = result.model.predict(PointValues(x))
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.variance, whole.variance)


def test_rates_decay_at_their_fractions():
    settings = SvgpSettings(decay_at=(0.05, 0.25), decay=0.1, epochs=3, batch_size=10)
    assert [settings.decayed(f) for f in (0.0, 0.05, 0.5)] == pytest.approx(
        [1.0, 0.1, 0.01]
    )
    assert settings.total_steps(21) == 9


def test_hyperparameters_rest_at_the_start(generator):
    x, f = curve(generator, 60)
    result = fit(
        PointValues(x),
        f,
        POINTS,
        Gaussian(variance=0.1),
        SvgpSettings(steps=10, rest=0.5, record_every=1),
        kernel=START,
    )
    trace = result.hyperparameter_trace["likelihood.variance"]
    assert bool((trace[:6] == trace[0]).all()) and trace[6] != trace[0]


def test_with_normal_noise_a_step_solves_for_the_mean_alone(generator):
    x, f = curve(generator, 60)
    keys = {"steps": 6, "batch_size": 20, "learn": (), "solves": "iterative"}
    keys["dense_limit"] = 1
    solves = []
    for every in (1, 10):
        settings = SvgpSettings(record_every=every, **keys)
        result = fit(
            PointValues(x), f, POINTS, Gaussian(variance=0.1), settings, kernel=START
        )
        solves.append(result.solves.rows)
    assert solves == [6 * (21 + 16) + 60 + 16, 20 + 6 + 16 + 60 + 16]


SETTINGS = [
    ({"batch_size": 0}, "batch_size must be at least 1"),
    ({"steps": 0}, "steps must be at least 1"),
    ({"family": "diagonal"}, "family is one of"),
    ({"family": "mean-field"}, "update='adam'"),
    ({"natural_rate": 1.5}, "natural_rate"),
    ({"rate": -1.0}, "rate must be positive"),
    ({"decay_at": (1.5,)}, "fractions"),
]


@pytest.mark.parametrize(("keys", "message"), SETTINGS)
def test_settings_that_cannot_be_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        SvgpSettings(**keys)


def refused(message: str, **keys) -> None:
    x = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
    given = {
        "functionals": PointValues(x),
        "values": x[:, 0],
        "points": x[::2],
        "likelihood": Gaussian(variance=0.1),
        "settings": ONE_STEP,
        "kernel": START,
        **keys,
    }
    with pytest.raises(ValueError, match=message):
        fit(**given)


def test_data_that_do_not_fit_are_refused():
    refused("8 functionals need as many values", values=torch.ones(3))
    refused("1-D do not fit inducing points in 2-D", points=torch.eye(2))
    refused(
        "1 of 8 observations are not finite",
        values=torch.full((8,), math.nan).index_fill(0, torch.arange(7), 0.0),
    )
    refused("neither 0 nor 1", likelihood=Bernoulli())


def test_what_cannot_be_learnt_or_held_is_refused():
    refused(
        "cannot learn kernel.period", settings=SvgpSettings(learn=("kernel.period",))
    )
    refused("takes 0.0 GiB", settings=SvgpSettings(covariance_memory=10))
    refused("not positive definite", points=torch.zeros(2, 1))
