"""What an inference leaves out where its time runs out."""

from __future__ import annotations

import functools
import math

import dense_torus
import numpy as np
import pytest
import torch

from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.full_batch.settings import Pace
from dustmap.linalg.cg import ConjugateGradients

SOLVER = ConjugateGradients(rtol=1e-6, max_steps=2000)


class Clock:
    """A second passes with every iteration, or more where samples are refined."""

    def __init__(self, limit=math.inf, refining=1):
        self.limit, self.spent, self.refining = limit, 0, refining

    def left(self):
        return self.limit - self.spent

    def tick(self, stage, step, value):
        self.spent += self.refining if "refined" in stage else 1


@functools.cache
def seen(*, linear):
    """A density, its data along 40 rays, and ``σ²``."""
    if linear:
        rays = LineIntegrals(dense_torus.inside(2, 40, 3), GaussLegendre(count=6))
        model = dense_torus.model("matern52", 2, rays)
    else:
        model = dense_torus.log_normal(1.0, 40, 3)
    generator = torch.Generator().manual_seed(1)
    truth = model.white_noise(np.random.default_rng(1))
    clean = model.apply(truth)
    sigma = 0.05 * float(clean.std())
    white = torch.randn(len(clean), generator=generator, dtype=torch.float64)
    return model, clean + sigma * white, torch.full_like(clean, sigma**2)


def fitted(limit=math.inf, *, linear=False, refining=1, **options):
    """The result, and the seconds it took."""
    model, y, variance = seen(linear=linear)
    clock = Clock(limit, refining)
    chosen = {"solver": SOLVER, "samples": 16, "block": 2, **options}
    result = infer(
        model,
        y,
        variance,
        settings=FullBatch(**chosen),
        generator=torch.Generator().manual_seed(5),
        on_step=clock.tick,
        time_left=clock.left,
    )
    return result, clock.spent


def test_a_limit_that_is_not_reached_changes_nothing():
    (free, spent), (limited, again) = fitted(), fitted(1e6)
    assert spent == again and not (free.out_of_time or limited.out_of_time)
    assert torch.equal(free.mean, limited.mean)
    assert torch.equal(free.samples, limited.samples)


def test_fewer_samples_are_drawn_and_they_are_those_of_a_long_run():
    free, spent = fitted()
    result, less = fitted(0.8 * spent)
    count = len(result.samples)
    assert result.out_of_time and result.converged
    assert 4 <= count < 16 and count % 4 == 0
    assert less <= 0.8 * spent
    assert torch.equal(result.mean, free.mean)
    assert torch.equal(result.samples, free.samples[:count])


def test_samples_that_are_not_refined_have_not_converged():
    free, spent = fitted()
    short, _ = fitted(0.27 * spent)
    assert torch.equal(short.mean, free.mean)
    assert short.out_of_time and not short.converged
    assert len(short.samples) == 4
    assert not short.sample_solution.converged.any()


def test_samples_without_time_to_be_refined_are_left_out():
    free, spent = fitted(refining=20)
    result, less = fitted(0.7 * spent, refining=20)
    count = len(result.samples)
    assert result.out_of_time and result.converged
    assert 4 <= count < 16 and count % 4 == 0
    assert less <= 0.75 * spent
    assert torch.equal(result.samples, free.samples[:count])


def test_steps_to_the_mode_leave_time_to_the_samples():
    free, spent = fitted()
    result, _ = fitted(0.02 * spent)
    assert result.out_of_time and not result.converged
    assert result.newton_steps < free.newton_steps
    assert len(result.samples) == 4


def test_blocks_of_a_linear_model_end_in_time():
    free, spent = fitted(linear=True)
    result, less = fitted(0.6 * spent, linear=True)
    count = len(result.samples)
    assert result.out_of_time and result.converged
    assert 2 <= count < 16 and less <= 0.6 * spent
    assert torch.equal(result.samples, free.samples[:count])
    # The first block is drawn in any case.
    assert len(fitted(0.0, linear=True)[0].samples) == 2


@pytest.mark.parametrize(("spent", "fits"), [(20, True), (30, True), (31, False)])
def test_parts_take_as_long_as_the_last_one(spent, fits):
    clock = Clock(100.0)
    pace = Pace(clock.left, reserve=0.4)
    clock.spent = spent
    assert pace.allows() == fits


def test_without_a_limit_all_is_allowed():
    assert Pace(lambda: math.inf, reserve=0.5).allows()
