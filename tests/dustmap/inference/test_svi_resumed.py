"""Stochastic inferences that were interrupted end as if they had not been."""

from __future__ import annotations

import functools
import pickle
from dataclasses import replace

import pytest
import torch
from checkpoint_cases import Recorder, assert_same, flat, interrupted, rng
from dense_box import box, fresh_model

from dustmap.inference.svi import HipSettings, fit_svi
from dustmap.inference.svi.bound import Observations

COMMON = HipSettings(batch_size=4, epochs=3)
LEARNING = replace(COMMON, rate=0.05, learn=("kernel", "likelihood"))
CASES = {
    "mean-field": replace(COMMON, family="mean-field"),
    "blocks, rows anew": replace(COMMON, row_memory=0),
    "full, rate": replace(COMMON, family="full", natural_rate=0.1, solve_mean=False),
    "learning": LEARNING,
    "learning the noise": replace(LEARNING, learn=("likelihood",)),
}


def problem():
    return box(2, "matern32", 2.0)


def run(name, checkpointer=None, *, generator=None, **options):
    data = replace(problem().data, subgrid_noise=name == "blocks, rows anew")
    result = fit_svi(
        fresh_model(problem()),
        data,
        CASES[name],
        generator=rng(7) if generator is None else generator,
        checkpointer=checkpointer,
        **options,
    )
    parameters = result.model.kernel.parameters()
    return {
        "mean": result.q.mean,
        "precision": result.q.precision,
        "bound": result.bound,
        "trace": result.bound_trace,
        "common": float(result.model.likelihood.variance),
        "limited": result.steps.limited,
        "bounded": result.bounded_steps,
        **flat(result.mean_solution, "solution"),
        **flat(result.rows, "rows"),
        **{f"learnt.{k}": v for k, v in result.learnt.items()},
        **{f"kernel.{k}": v.detach() for k, v in parameters.items()},
    }


@functools.cache
def whole(name):
    """A run without checkpoints, and the states after every step."""
    result = run(name)
    recorder = Recorder(every=1)
    assert_same(run(name, recorder), result)
    return result, recorder.files


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_resumed_where_it_was_saved_a_run_ends_with_the_same_bits(name):
    result, files = whole(name)
    for point in [*list(files)[::6], max(files)]:
        recorder = Recorder(files=files[point])
        generator = rng(99)
        assert_same(run(name, recorder, generator=generator), result)


@pytest.mark.parametrize("name", ["learning", "blocks, rows anew"])
def test_a_run_may_be_interrupted_again_and_again(name):
    result, files = whole(name)
    again, stops = interrupted(functools.partial(run, name), 4)
    assert_same(again, result)
    assert stops >= max(2, len(files) // 4 - 1)


def test_the_generator_ends_where_it_would_have():
    states = []
    for files in (None, whole("mean-field")[1][6]):
        generator = rng(7)
        run("mean-field", Recorder(files=files), generator=generator)
        states.append(generator.get_state())
    assert torch.equal(*states)


def test_a_state_that_does_not_fit_is_refused():
    _, files = whole("learning")
    saved = pickle.loads(files[max(files)])
    short = replace(saved, exp_avg=torch.zeros(1))
    for name, given, said in [
        ("learning", short, "exp_avg should be"),
        ("learning the noise", saved, ".* should be"),
        ("mean-field", saved, ".* should be"),
    ]:
        recorder = Recorder(files=pickle.dumps(given), every=1)
        with pytest.raises(ValueError, match=said):
            run(name, recorder)
        assert not recorder.files


@pytest.mark.parametrize("step", [0, 5])
def test_rows_that_are_not_numbers_end_the_fit(step, monkeypatch):
    split, calls = Observations.split, []

    def spoilt(self, conditional):
        calls.append(self)
        likelihood, variance = split(self, conditional)
        # Twice a step: for the bound, and for the natural gradient.
        broken = len(calls) > 2 * step
        return likelihood, variance * torch.nan if broken else variance

    monkeypatch.setattr(Observations, "split", spoilt)
    recorder = Recorder(every=1)
    with pytest.raises(FloatingPointError, match=f"svi, step {step}: bound is not"):
        run("blocks, rows anew", recorder)
    assert len(recorder.files) >= step
