"""Learning from draws of the model's own prior."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.grid import Grid, Torus
from dustmap.inference.scales.hyperparameters import learn
from dustmap.inference.scales.learning_settings import Learning
from dustmap.inference.scales.learning_solve import LinearSolve
from dustmap.kernels import Matern32
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening

TRUTH = {"lengthscale": 1.5, "variance": 0.25, "mean": 0.8, "common_noise": 0.04}
START = {"lengthscale": 2.5, "variance": 0.6, "mean": 0.4}


def problem(seed, count=1500, *, lengthscale=TRUTH["lengthscale"], q=2, mean=True):
    """A 2-D model at the truth, data drawn from it, and catalogue variances."""
    generator = torch.Generator().manual_seed(seed)
    side = 16
    grid = Grid(shape=(side, side), spacing=(1.0, 1.0), origin=(-7.5, -7.5))
    unit = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    rays = LineIntegrals((unit - 0.5) * (side - 1.01), GaussLegendre(count=16))
    kernel = Matern32(lengthscale=lengthscale, variance=TRUTH["variance"])
    model = TorusGaussian(
        TorusWhitening(kernel, Torus(grid=grid, shape=(24, 24))),
        rays,
        mean=ConstantMean(value=TRUTH["mean"] if mean else 0.0),
        residual_refinement=q,
        residual_count=8,
        generator=generator,
    )
    sigma2 = 0.01 + 0.05 * torch.rand(count, generator=generator, dtype=torch.float64)
    eps = torch.randn(model.latent_size, generator=generator, dtype=torch.float64)
    total = sigma2 + TRUTH["common_noise"] + model.variance
    white = torch.randn(count, generator=generator, dtype=torch.float64)
    return model, model.apply(eps) + total.sqrt() * white, sigma2, generator


def away(model, **changes):
    values = {**START, **changes}
    own = model.parameters()
    return model.with_parameters(
        {
            name: torch.as_tensor(value, dtype=torch.float64).expand(own[name].shape)
            for name, value in values.items()
            if name in own
        }
    )


def scores(learnt, truth=TRUTH):
    return [
        math.log(float(learnt.parameters[name].reshape(-1)[0]) / value)
        / math.hypot(learnt.errors[name], learnt.sampling_errors[name])
        for name, value in truth.items()
    ]


def test_what_made_the_data_is_found_within_the_errors():
    found, sizes = [], []
    for seed in range(8):
        model, y, sigma2, generator = problem(seed)
        learnt = learn(
            away(model),
            y,
            sigma2,
            settings=Learning(),
            generator=generator,
            common_noise=0.15,
        )
        assert learnt.converged and learnt.bounded_steps == 0
        assert all(step.solved for step in learnt.history)
        found.append(scores(learnt))
        sizes.append(list(learnt.errors.values()))
        # Eight draws of the model add an eighth of the variance.
        for name in ("lengthscale", "variance", "common_noise"):
            assert learnt.sampling_errors[name] < 0.8 * learnt.errors[name]
    z = np.array(found)
    assert np.abs(z).max() < 3
    assert 0.6 < z.std() < 1.4
    # Of each parameter's eight numbers, in their standard error.
    assert np.abs(z.mean(axis=0) * math.sqrt(len(z))).max() < 3
    assert np.max(sizes) < 0.35


def test_draws_at_another_lengthscale_per_axis_are_told_apart():
    scales = [2.4, 1.2]
    model, y, sigma2, generator = problem(3, lengthscale=scales)
    learnt = learn(
        away(model, lengthscale=1.6),
        y,
        sigma2,
        settings=Learning(anisotropic=True),
        generator=generator,
        common_noise=0.1,
    )
    assert learnt.converged
    for axis, scale in enumerate(scales):
        label = f"lengthscale[{axis}]"
        error = math.hypot(learnt.errors[label], learnt.sampling_errors[label])
        found = float(learnt.parameters["lengthscale"][axis])
        assert abs(math.log(found / scale)) < 3 * error
        assert error < 0.3


def test_only_what_is_named_is_learnt_and_directions_keep_their_ratio():
    model, y, sigma2, generator = problem(4, lengthscale=[1.8, 1.2])
    start = model.with_parameters({"lengthscale": torch.tensor([3.0, 2.0])})
    settings = Learning(names=("lengthscale",))
    learnt = learn(
        start, y, sigma2, settings=settings, generator=generator, common_noise=0.04
    )
    scales = learnt.parameters["lengthscale"]
    assert float(scales[0] / scales[1]) == pytest.approx(1.5)
    assert set(learnt.errors) == {"lengthscale"}
    assert learnt.common_noise == 0.04
    assert float(learnt.parameters["variance"]) == TRUTH["variance"]


def test_a_lengthscale_stops_at_its_range_and_this_is_counted():
    model, y, sigma2, generator = problem(5)
    settings = Learning(lengthscale_range=(2.0, 4.0))
    learnt = learn(
        away(model), y, sigma2, settings=settings, generator=generator, common_noise=0.1
    )
    assert float(learnt.parameters["lengthscale"]) == pytest.approx(2.0)
    assert learnt.bounded_steps >= 1
    assert learnt.converged
    with pytest.raises(ValueError, match=r"lengthscale starts at .* outside its range"):
        learn(model, y, sigma2, settings=settings, generator=generator)


def test_what_the_data_do_not_tell_stays_where_it_was():
    model, y, sigma2, generator = problem(6, count=3)
    settings = Learning(prior_std=0.05)
    learnt = learn(
        away(model), y, sigma2, settings=settings, generator=generator, common_noise=0.1
    )
    for name, value in START.items():
        moved = math.log10(float(learnt.parameters[name]) / value)
        assert abs(moved) < 0.06
    assert max(learnt.errors.values()) <= 0.05 * math.log(10) * (1 + 1e-9)


def test_a_tight_prior_holds_against_the_data():
    model, y, sigma2, generator = problem(6)
    settings = Learning(prior_std=0.01, names=("lengthscale", "variance"))
    learnt = learn(
        away(model), y, sigma2, settings=settings, generator=generator, common_noise=0.1
    )
    # The data pull for far more than the tolerance; both pulls balance.
    assert learnt.converged
    moved = math.log10(float(learnt.parameters["lengthscale"]) / START["lengthscale"])
    assert 0.001 < abs(moved) < 0.1


def test_samples_of_any_solver_lead_to_the_same_place():
    """Without the draws w, the gradient comes from ``m ± δ`` alone."""
    model, y, sigma2, generator = problem(7)
    options = {"generator": generator, "common_noise": 0.1}
    direct = learn(away(model), y, sigma2, settings=Learning(pairs=32), **options)
    inside = LinearSolve(
        y,
        pairs=32,
        subgrid_noise=True,
        solver=ConjugateGradients(rtol=1e-2),
        residual=0.1,
        preconditioner_rank=0,
        seed=9,
    )
    seen = []

    def solve(model, noise, start):
        seen.append(start)
        state = inside(model, noise, start)
        return type(state)(
            mean=state.mean,
            deltas=state.deltas,
            total_variance=state.total_variance,
            tangent=state.tangent,
        )

    paired = learn(away(model), y, sigma2, settings=Learning(), solve=solve, **options)
    assert seen[0] is None and seen[1] is not None
    assert direct.converged and paired.converged
    for name in TRUTH:
        apart = math.log(float(direct.parameters[name] / paired.parameters[name]))
        allowed = math.hypot(direct.sampling_errors[name], paired.sampling_errors[name])
        assert abs(apart) < 3.5 * allowed + 0.02


def test_the_path_is_told_step_by_step():
    model, y, sigma2, generator = problem(8)
    told = []
    learnt = learn(
        away(model),
        y,
        sigma2,
        settings=Learning(max_steps=2),
        generator=generator,
        common_noise=0.1,
        on_step=told.append,
    )
    assert tuple(told) == learnt.history and len(told) == 2
    assert learnt.status == "out of steps" and not learnt.converged
    assert math.isnan(told[0].gain) and told[1].gain > 0
    largest = max(
        abs(math.log(float(told[1].parameters[n] / told[0].parameters[n])))
        for n in TRUTH
    )
    assert largest == pytest.approx(0.7)
    assert learnt.products == sum(step.products for step in told) > 0
    # Not converged: the last point itself.
    assert torch.equal(learnt.parameters["variance"], told[1].parameters["variance"])


def test_a_caller_can_stop_the_path_once_a_step_was_accepted():
    model, y, sigma2, generator = problem(8)
    seeds = {"generator": generator.clone_state(), "common_noise": 0.1}
    whole = learn(away(model), y, sigma2, settings=Learning(), **seeds)
    assert whole.converged and len(whole.history) > 3
    for patience in (0, 1):
        asked = []

        def stop(asked=asked, patience=patience):
            asked.append(None)
            return len(asked) > patience

        seeds = {"generator": generator.clone_state(), "common_noise": 0.1}
        cut = learn(away(model), y, sigma2, settings=Learning(), stop=stop, **seeds)
        # Two points are the start and one step, before which nobody is asked.
        assert len(cut.history) == 2 + patience == 1 + len(asked)
        assert cut.status == "stopped" and not cut.converged
        assert cut.history[-1].accepted
        for mine, full in zip(cut.history, whole.history):
            assert torch.equal(mine.parameters["variance"], full.parameters["variance"])
        assert torch.equal(
            cut.parameters["variance"], cut.history[-1].parameters["variance"]
        )


def test_a_step_that_is_refused_is_no_reason_to_stop():
    model, y, sigma2, generator = problem(8)
    inside = LinearSolve(
        y,
        pairs=8,
        subgrid_noise=True,
        solver=ConjugateGradients(rtol=1e-2),
        residual=0.1,
        preconditioner_rank=0,
        seed=9,
    )
    calls = []

    def solve(model, noise, start):
        """The first step seems too long by far: there, the model's draws are small."""
        calls.append(None)
        state = inside(model, noise, start)
        if len(calls) == 2:
            return replace(state, draws=0.2 * state.draws)
        return state

    learnt = learn(
        away(model),
        y,
        sigma2,
        settings=Learning(),
        generator=generator,
        common_noise=0.1,
        solve=solve,
        stop=lambda: True,
    )
    taken = [step.accepted for step in learnt.history]
    assert taken == [True, False, True] and learnt.status == "stopped"
    assert not torch.equal(
        learnt.parameters["variance"], learnt.history[0].parameters["variance"]
    )


def test_a_solve_that_fails_ends_the_path_before_it():
    model, y, sigma2, generator = problem(8)
    settings = Learning(
        solver=ConjugateGradients(rtol=1e-2, max_steps=3), preconditioner_rank=0
    )
    learnt = learn(
        away(model), y, sigma2, settings=settings, generator=generator, common_noise=0.1
    )
    assert not learnt.converged and len(learnt.history) == 1
    assert not learnt.history[0].solved and learnt.status == "solve failed"
    assert float(learnt.parameters["variance"]) == START["variance"]


def test_by_default_everything_above_zero_is_learnt():
    model, y, sigma2, generator = problem(9, mean=False)
    learnt = learn(
        model, y, sigma2, settings=Learning(max_steps=1), generator=generator
    )
    assert set(learnt.errors) == {"lengthscale", "variance"}


def test_senseless_requests_are_refused():
    model, y, sigma2, generator = problem(9)
    settings = Learning(names=("lengthscale", "slope"))
    with pytest.raises(ValueError, match="cannot learn slope: there are lengthscale"):
        learn(model, y, sigma2, settings=settings, generator=generator)
    settings = Learning(names=("common_noise",))
    with pytest.raises(ValueError, match="common_noise is learnt in the logarithm"):
        learn(model, y, sigma2, settings=settings, generator=generator)
    with pytest.raises(ValueError, match="common_noise is a variance"):
        learn(
            model,
            y,
            sigma2,
            settings=Learning(),
            generator=generator,
            common_noise=-1.0,
        )
    for wrong in (
        {"pairs": 1},
        {"tolerance": 0.0},
        {"prior_std": -1.0},
        {"lengthscale_range": (2.0, 1.0)},
    ):
        with pytest.raises(ValueError, match="must"):
            Learning(**wrong)
