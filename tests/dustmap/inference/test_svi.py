"""The published engine against dense algebra of its own kernel and nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_box import CASES, box, fresh_model, grid_of, known, noisy, optimum, whitened
from reference import exact_posterior, log_evidence
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from dustmap.functionals import PointValues
from dustmap.inference.svi import HipSettings, fit_svi, initial_family
from dustmap.inference.svi.bound import Observations, elbo, predict
from dustmap.inference.svi.training import Trainer
from dustmap.models.rowwise import RowwiseGaussian

SMALL = [(1, "matern52", 3.0), (2, "matern32", 2.0), (3, "matern32", 1.0)]
FAMILIES = ["mean-field", "block", "full"]
LEARNT = ("kernel", "likelihood")


def everything(model):
    return torch.arange(len(model.functionals))


def dense_posterior(problem, noise):
    """Exact SVGP posterior of the targets: the process is f given u, u given y."""
    solved_n = np.linalg.solve(problem.K_uu, problem.K_nu.T)
    Q_nn, Q_sn = problem.K_nu @ solved_n, problem.K_su @ solved_n
    Q_ss = problem.K_su @ np.linalg.solve(problem.K_uu, problem.K_su.T)
    mean, covariance = exact_posterior(Q_nn, Q_sn, Q_ss, problem.residual, noise)
    return mean, (covariance + problem.K_ss - Q_ss).diagonal()


def trace_term(problem, noise):
    gap = problem.K_nn.diagonal() - problem.explained().diagonal()
    return 0.5 * float((gap / noise).sum())


def one_step(model, data, **family):
    """One natural step of length 1 with all data, and the mean solved."""
    settings = HipSettings(
        batch_size=len(data), epochs=1, natural_rate=1.0, mean_tolerance=1e-12, **family
    )
    return fit_svi(model, data, settings, generator=torch.Generator())


@pytest.mark.parametrize("subgrid", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_one_step_with_all_data_is_the_dense_svgp_posterior(case, subgrid):
    problem = box(*case)
    data = replace(problem.data, subgrid_noise=subgrid)
    model = fresh_model(problem)
    best = one_step(model, data, family="full")
    gap = problem.K_nn.diagonal() - problem.explained().diagonal()
    noise = problem.noise + (gap if subgrid else 0.0)
    mean, variance = dense_posterior(problem, noise)
    ours = predict(model.at(problem.targets), best.q)
    offset = model.at(problem.targets).offset.numpy()
    scale = problem.K_ss.diagonal()
    error = np.abs(ours.mean.numpy() - offset - mean) / np.sqrt(scale)
    assert error.max() < 1e-6
    assert (np.abs(ours.variance.numpy() - variance) / scale).max() < 1e-6
    exact = log_evidence(problem.explained(), problem.residual, noise)
    exact -= 0.0 if subgrid else trace_term(problem, noise)
    assert best.bound == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("subgrid", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bound_is_the_dense_formula(family, subgrid, generator):
    """Eq. 13–14 with expectations taken by torch's own distributions."""
    problem = box(2, "matern32", 2.0)
    model, data = fresh_model(problem), replace(problem.data, subgrid_noise=subgrid)
    q = initial_family(model, HipSettings(family=family, block=3))
    rows = model.rows(everything(model))
    q = q.covariance_step(data.batch(rows), 0.5)
    q = q.with_mean(torch.randn(q.mean.shape, generator=generator).double())
    eye = torch.eye(len(q.mean), dtype=torch.float64)
    S = q.covariance_times(eye)
    S = (S + S.mT) / 2
    prior = MultivariateNormal(torch.zeros_like(q.mean), eye)
    exact = -kl_divergence(MultivariateNormal(q.mean, S), prior)
    gap = rows.variance
    noise = known(data) + gap if subgrid else known(data)
    spread = (rows.features @ S * rows.features).sum(dim=1)
    spread = spread + (0 if subgrid else gap)
    centre = rows.features @ q.mean
    residual = data.values - data.offset
    exact = exact + Normal(centre, noise.sqrt()).log_prob(residual).sum()
    exact = exact - 0.5 * (spread / noise).sum()
    assert elbo(model, data, q) == pytest.approx(float(exact), rel=1e-10)


@pytest.mark.parametrize("subgrid", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_ends_at_the_optimum(family, subgrid, generator):
    problem = box(2, "matern32", 2.0)
    data = replace(problem.data, subgrid_noise=subgrid)
    settings = HipSettings(family=family, batch_size=4, epochs=4, mean_tolerance=1e-12)
    steps = []
    result = fit_svi(
        fresh_model(problem),
        data,
        settings,
        generator=generator,
        on_step=lambda *step: steps.append(step),
    )
    model = fresh_model(problem)
    best = optimum(model, data, family=family)
    assert result.bound == pytest.approx(elbo(model, data, best), rel=1e-9)
    ours = predict(result.model.forward.at(problem.targets), result.q)
    exact = predict(model.at(problem.targets), best)
    torch.testing.assert_close(ours.mean, exact.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.variance, exact.variance, rtol=1e-6, atol=1e-6)
    assert [s[:2] for s in steps] == [(i, 16) for i in range(1, 17)]
    assert result.mean_solution is not None
    assert bool(result.mean_solution.converged.all())
    assert family != "full" or result.steps.limited == 0


def test_rows_solved_anew_give_the_same_as_rows_kept(generator):
    problem = box(3, "matern32", 1.0)
    settings = HipSettings(batch_size=6, epochs=2, natural_rate=0.1, solve_mean=True)
    results = []
    for memory in (2**30, 0):
        model = fresh_model(problem)
        seeded = torch.Generator().manual_seed(7)
        results.append(
            fit_svi(
                model,
                problem.data,
                replace(settings, row_memory=memory),
                generator=seeded,
            )
        )
        assert (model.kept is None) == (memory == 0)
    kept, anew = results
    torch.testing.assert_close(kept.bound_trace, anew.bound_trace)
    torch.testing.assert_close(kept.q.mean, anew.q.mean, rtol=1e-6, atol=1e-6)
    count = len(problem.data)
    assert kept.rows.rows == count
    # Two epochs, the bound, and two products for each iteration of the mean's solve.
    products = 1 + 2 * int(anew.mean_solution.iterations.max())
    assert anew.rows.rows >= 3 * count + products


def test_unit_steps_of_blocks_are_cut_and_counted(generator):
    problem = box(2, "matern32", 2.0)
    data = noisy(problem.data, 1e-4)
    settings = HipSettings(
        family="mean-field", batch_size=15, epochs=40, natural_rate=1.0,
        solve_mean=False,
    )  # fmt: skip
    result = fit_svi(fresh_model(problem), data, settings, generator=generator)
    assert result.steps.limited > 20
    assert f"{result.steps.limited} were cut for stability" in result.message
    # The first step moves S away from the prior; from then on the bound only climbs.
    assert (result.bound_trace[2:] >= result.bound_trace[1:-1] - 1e-6).all()


@pytest.mark.parametrize("subgrid", [False, True])
@pytest.mark.parametrize("case", SMALL)
def test_hyperparameters_follow_the_gradient_of_the_dense_bound(
    case, subgrid, generator
):
    """Fourth-order differences of the dense minibatch bound, q held fixed."""
    problem = box(*case)
    model = fresh_model(problem)
    data = replace(noisy(problem.data, common=0.03), subgrid_noise=subgrid)
    q = initial_family(model, HipSettings(block=3))
    rows = model.rows(everything(model))
    q, _ = q.safe_step(data.batch(rows), 0.05)
    index = torch.tensor([0, 3, 7, 11])
    kernel = model.whitening.kernel
    settings = HipSettings(learn=LEARNT)
    trainer = Trainer(model, data, settings, generator)
    trainer.q, ours = q, trainer.hyperparameters
    trainer.terms(index, learning=True)
    gradient = -ours.vector.grad

    start = ours.vector.detach()
    d = model.whitening.grid.dimension

    def objective(logs):
        moved = kernel.with_parameters(
            {"lengthscale": logs[:d].exp(), "variance": logs[d].exp()}
        )
        rows = fresh_on(model, moved).rows(index)
        other = noisy(data, common=float(logs[d + 1].exp())).select(index)
        return float(other.terms(rows, q).expected.mean())

    step = 2e-3
    for i in range(len(start)):
        unit = torch.zeros_like(start)
        unit[i] = step
        near = objective(start + unit) - objective(start - unit)
        far = objective(start + 2 * unit) - objective(start - 2 * unit)
        exact = (8 * near - far) / (12 * step)
        assert float(gradient[i]) == pytest.approx(exact, rel=1e-6, abs=1e-6)


@pytest.mark.slow
def test_learning_climbs_to_the_top_of_the_collapsed_bound(generator):
    """Full rank and all data: by the envelope theorem θ climbs the collapsed bound."""
    grid = grid_of(1)
    points = torch.rand(60, 1, generator=generator, dtype=torch.float64) * 11 - 0.2
    model = RowwiseGaussian(whitened(1, "matern52", 2.0), PointValues(points))
    truth = torch.sin(points[:, 0] * 1.5) * 2
    noise = torch.full_like(truth, 0.01)
    y = truth + 0.3 * torch.randn(60, generator=generator, dtype=torch.float64)
    data = Observations.of(model, y, noise)
    settings = HipSettings(
        family="full", batch_size=60, epochs=300, rate=0.05, learn=LEARNT, rest=None,
        lengthscale_range=2.0,
    )  # fmt: skip
    result = fit_svi(model, data, settings, generator=generator)

    def collapsed(kernel, seen):
        other = fresh_on(result.model.forward, kernel)
        return elbo(other, seen, optimum(other, seen, family="full"))

    before = collapsed(model.whitening.kernel, noisy(data, common=0.001))
    assert result.bound > before + 10
    learnt = float(result.model.likelihood.variance)
    assert learnt + 0.01 == pytest.approx(0.09, rel=0.5)
    top = result.bound
    final = noisy(data, common=learnt)
    kernel = result.model.kernel
    for name, value in kernel.parameters().items():
        for factor in (0.8, 1.25):
            moved = kernel.with_parameters(
                {**kernel.parameters(), name: value * factor}
            )
            assert collapsed(moved, final) < top + 0.05
    assert set(result.learnt) == {
        "kernel.lengthscale", "kernel.variance", "likelihood.variance",
    }  # fmt: skip
    assert grid.size == 24


def fresh_on(model, kernel):
    return model.on(model.whitening.with_kernel(kernel))


def test_lengthscales_stop_at_their_range_and_it_is_said(generator):
    problem = box(1, "matern52", 3.0)
    settings = HipSettings(
        family="full", batch_size=15, epochs=12, rate=0.5,
        learn=("kernel.lengthscale",), lengthscale_range=1.2,
    )  # fmt: skip
    result = fit_svi(fresh_model(problem), problem.data, settings, generator=generator)
    start = problem.model.whitening.kernel.parameters()["lengthscale"]
    ratio = result.learnt["kernel.lengthscale"] / start
    assert float(ratio.min()) >= 1 / 1.2 - 1e-9
    assert float(ratio.max()) <= 1.2 + 1e-9
    assert result.bounded_steps > 0
    assert "widen lengthscale_range" in result.message
    assert float(result.model.kernel.parameters()["variance"]) == pytest.approx(1.7)
    assert float(result.model.likelihood.variance) == 0.0


def test_wrong_data_are_refused():
    model = fresh_model(box(2, "matern32", 2.0))
    count = len(model.functionals)
    good = torch.ones(count, dtype=torch.float64)
    with pytest.raises(ValueError, match="15 functionals"):
        Observations.of(model, good[1:], good[1:])
    with pytest.raises(ValueError, match="must be positive"):
        Observations.of(model, good, 0 * good)
    Observations.of(model, good, 0 * good, common_noise=0.1)
    with pytest.raises(ValueError, match="1 of 15"):
        Observations.of(
            model, torch.where(torch.arange(15) == 3, torch.nan, good), good
        )
    with pytest.raises(ValueError, match="15 functionals"):
        Observations.of(model, good, good[1:])
