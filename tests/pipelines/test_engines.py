"""One door, two engines: the same data, the same answer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import one_cloud
import pytest
import torch

from dustmap.functionals import FixedStep, GaussLegendre, MonteCarlo, PointValues
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.posterior import Posterior
from pipelines.base.errors import InputError
from pipelines.config import FitConfig
from pipelines.model.cost import REFERENCE
from pipelines.model.engine import build_model, rays, run_engine
from pipelines.model.plan import EmbeddingPlan
from pipelines.model.problem import Device, Problem
from pipelines.planning.planner import make_plan
from pipelines.planning.prior import start_scales
from pipelines.planning.selection import choose_box

CPU = torch.device("cpu")


def settings(engine="full-batch", **sections):
    plain = one_cloud.settings(engine=engine, dtype="float64", samples=2)
    plain["box"]["spacing"] = 175.0
    plain["prior"]["lengthscale"] = 350.0
    plain["svi"] = {"epochs": 4, "quadrature": "gauss-legendre", "nodes": 16}
    for name, values in sections.items():
        plain[name] = {**plain.get(name, {}), **values}
    return FitConfig.model_validate(plain)


def data(count=80, distance_error=None):
    stars = one_cloud.catalogue(count)
    error = np.asarray(stars.extinction_error) * 5
    return replace(stars, extinction_error=error, distance_error=distance_error)


def plan_for(config, observed):
    box, _ = choose_box(observed.positions(), config, Path("stars"))
    scales, _ = start_scales(observed, config)
    return make_plan(scales, box, observed.distance, config, REFERENCE)


def on_cpu():
    return Device(
        dtype=torch.float64, device=CPU, generator=torch.Generator().manual_seed(0)
    )


def run(config, observed, plan=None):
    seen = []
    problem = Problem(
        plan=plan_for(config, observed) if plan is None else plan,
        stars=observed,
        config=config,
        device=on_cpu(),
        on_step=lambda task, *step: seen.append((task.name, *step)),
    )
    return run_engine(problem), seen


def field_mean(result, ends):
    model = build_model(result.plan, PointValues(ends), on_cpu())
    posterior = Posterior(model=model, mean=result.mean, samples=result.samples)
    return posterior.moments(rays(result.plan, ends)).mean


def test_both_engines_find_the_same_extinctions():
    observed = data()
    # Neither adds sub-grid noise, whose size depends on the feature map.
    plain: dict[str, Any] = {"model": {"subgrid_noise": False}}
    full, _ = run(settings("full-batch", **plain), observed)
    published, steps = run(settings("svi", **plain), observed)
    ends = torch.as_tensor(one_cloud.catalogue(50, seed=9).positions())
    one, other = field_mean(full, ends), field_mean(published, ends)
    assert full.converged and published.converged
    scatter = np.std(observed.extinction)
    # Linear weights on two cells to a lengthscale.
    assert (one - other).square().mean().sqrt() < 0.15 * scatter
    assert {step[0] for step in steps} == {"svi rows", "svi bound", "svi mean"}
    assert "bound" in published.facts and "wrap_error" in full.facts


def test_each_engine_has_its_own_quadrature_and_model():
    observed = data(5)
    config = settings()
    plan = plan_for(config, observed)
    assert isinstance(rays(plan, torch.as_tensor(observed.positions())).rule, FixedStep)
    exact = replace(plan, engine="svi")
    drawn = replace(exact, embedding=EmbeddingPlan(quadrature="monte-carlo"))
    assert isinstance(
        rays(drawn, torch.as_tensor(observed.positions())).rule, MonteCarlo
    )
    assert isinstance(
        rays(exact, torch.as_tensor(observed.positions())).rule, GaussLegendre
    )
    for which, kind in ((plan, TorusGaussian), (exact, RowwiseGaussian)):
        ends = torch.as_tensor(observed.positions())
        model = build_model(which, rays(which, ends), on_cpu())
        assert isinstance(model, kind)


def test_monte_carlo_nodes_of_a_star_are_the_same_at_every_call():
    plan = replace(
        plan_for(settings(), data(5)),
        engine="svi",
        embedding=EmbeddingPlan(quadrature="monte-carlo"),
    )
    ends = torch.as_tensor(data(5).positions())
    first, again = (rays(plan, ends).nodes().points for _ in range(2))
    assert torch.equal(first, again)
    other = replace(plan, embedding=replace(plan.embedding, seed=1))
    assert not torch.equal(first, rays(other, ends).nodes().points)


def test_common_noise_and_distance_errors_add_to_the_noise_of_a_star():
    observed = data()
    config = settings(model={"subgrid_noise": False})
    plan = plan_for(config, observed)
    plain, _ = run(config, observed, plan)
    torch.testing.assert_close(plain.noise**2, torch.as_tensor(observed.variance()))
    common, _ = run(config, observed, replace(plan, common_noise=0.3))
    torch.testing.assert_close(
        common.noise**2, torch.as_tensor(observed.variance()) + 0.09
    )
    errors = np.full(80, 50.0)
    blurred, _ = run(config, replace(observed, distance_error=errors), plan)
    added = blurred.noise**2 - torch.as_tensor(observed.variance())
    # (density times distance error)², by the density of a first fit.
    true = torch.as_tensor(one_cloud.density(observed.positions()))
    assert (added >= 0).all()
    assert added[true.argmax()] > 10 * added.median()


def test_an_embedding_beyond_its_limit_is_refused():
    config, observed = settings("svi"), data(20)
    plan = plan_for(config, observed)
    plan = replace(plan, embedding=replace(plan.embedding, max_points=10))
    with pytest.raises(InputError, match="engine svi: "):
        run(config, observed, plan)


def test_learnt_hyperparameters_are_those_of_the_plan_that_is_kept():
    config = settings(
        "svi",
        svi={"hyperparameter_rate": 0.05, "epochs": 2},
        prior={"lengthscale": 180.0, "kernel": "matern12"},
    )
    observed = data(40)
    plan = plan_for(config, observed)
    learnt, _ = run(config, observed, plan)
    assert learnt.plan.std != plan.std
    assert learnt.plan.lengthscale != plan.lengthscale
    assert learnt.plan.embedding.shape
    assert np.isfinite(
        field_mean(learnt, torch.as_tensor(observed.positions())).numpy()
    ).all()
