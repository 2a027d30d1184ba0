"""Inferences that were interrupted end as if they had not been."""

from __future__ import annotations

import copy
import functools
import pickle
from dataclasses import replace

import pytest
import torch
from checkpoint_cases import CASES, Recorder, alone, assert_same, flat, interrupted, rng
from operators import FunctionOperator

from dustmap.inference.full_batch import infer, mode
from dustmap.models.lognormal import LogNormal


def run(case, checkpointer=None, *, generator=None):
    model, y, noise, settings = case()
    generator = rng(7) if generator is None else generator
    return infer(
        model,
        y,
        noise,
        settings=settings,
        generator=generator,
        checkpointer=checkpointer,
    )


@functools.cache
def whole(name):
    """A run without checkpoints, and how many states are saved."""
    result = run(CASES[name])
    recorder = Recorder()
    assert_same(run(CASES[name], recorder), result)
    return result, recorder.steps


def assert_resumed_everywhere(name, every):
    result, _ = whole(name)
    recorder = Recorder(every=every)
    run(CASES[name], recorder)
    assert recorder.files
    for files in recorder.files.values():
        # Another generator: its state is part of what was saved.
        again = run(CASES[name], Recorder(files=files), generator=rng(99))
        assert_same(again, result)


@pytest.mark.parametrize("name", CASES)
def test_resumed_where_it_was_saved_a_run_ends_with_the_same_bits(name):
    _, steps = whole(name)
    assert_resumed_everywhere(name, max(1, steps // 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_after_every_step(name):
    assert_resumed_everywhere(name, 1)


@pytest.mark.parametrize(("name", "interval"), [("everything", 5), ("linear", 2)])
def test_a_run_may_be_interrupted_again_and_again(name, interval):
    result, steps = whole(name)
    again, stops = interrupted(functools.partial(run, CASES[name]), interval)
    assert_same(again, result)
    assert stops >= steps // interval - 1


def test_finer_steps_to_the_mode_are_resumed_too(monkeypatch):
    # So little may be left that rough steps never suffice.
    monkeypatch.setattr(mode, "DECREMENT_LIMIT", 1e-6)
    case = CASES["mode"]
    result = run(case)
    recorder = Recorder(every=1)
    assert_same(run(case, recorder), result)
    found = {files: pickle.loads(files).mode for files in recorder.files.values()}
    finer = {f: at for f, at in found.items() if at.search == "refined mode"}
    assert any(at.solution is None for at in finer.values())
    for files in finer:
        assert_same(run(case, Recorder(files=files)), result)


def test_the_generator_ends_where_it_would_have():
    generators = [rng(7), rng(99)]
    recorder = Recorder(every=1)
    run(CASES["linear"], recorder, generator=generators[0])
    files = recorder.files[2]
    run(CASES["linear"], Recorder(files=files), generator=generators[1])
    assert torch.equal(*[generator.get_state() for generator in generators])


@functools.cache
def saved_progress():
    """The progress when some samples are fitted."""
    recorder = Recorder(every=1)
    run(CASES["samples"], recorder)
    return next(
        found
        for found in map(pickle.loads, recorder.files.values())
        if found.samples and found.round.pairs == 1
    )


def changed(value, path, new):
    """The same with another value in one place."""
    name, *rest = path.split(".")
    if isinstance(value, tuple):
        parts = list(value)
        parts[int(name)] = changed(parts[int(name)], ".".join(rest), new)
        return tuple(parts)
    part = changed(getattr(value, name), ".".join(rest), new) if rest else new
    return replace(value, **{name: part})


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("noise.weights", torch.ones(3), "weights"),
        ("noise.held_out", torch.ones(40), "held_out"),
        ("noise", None, "noise"),
        ("origin.total", torch.ones(3), "total"),
        ("mode.eps", torch.zeros(2), "eps"),
        ("samples.1.eps", torch.zeros(1, 240), "eps.*float32"),
        ("count", 6, "number of samples"),
    ],
)
def test_progress_that_does_not_fit_is_refused(path, value, said):
    files = pickle.dumps(changed(saved_progress(), path, value))
    recorder = Recorder(files=files, every=1)
    with pytest.raises(ValueError, match=f"does not fit: .*{said}"):
        run(CASES["samples"], recorder)
    assert not recorder.files


@pytest.mark.parametrize("case", [functools.partial(alone, 6), CASES["linear"]])
def test_progress_of_other_settings_or_another_model_is_refused(case):
    recorder = Recorder(files=pickle.dumps(saved_progress()), every=1)
    with pytest.raises(ValueError, match="fit"):
        run(case, recorder)
    assert not recorder.files


class Spoilt(LogNormal):
    """A model one of whose answers is not a number from some call on."""

    def spoil(self, what, call):
        self.what, self.call, self.calls = what, call, {}
        return self

    def _spoilt(self, name, tensor):
        self.calls[name] = self.calls.get(name, -1) + 1
        if name != self.what or self.calls[name] < self.call:
            return tensor
        tensor = tensor.clone()
        tensor[..., 2] = torch.nan
        return tensor

    def apply(self, eps):
        return self._spoilt("prediction", super().apply(eps))

    def linearise(self, eps):
        tangent = super().linearise(eps)
        return replace(
            tangent,
            prediction=self._spoilt("prediction", tangent.prediction),
            variance=self._spoilt("variance", tangent.variance),
            operator=SpoiltTangent(self, tangent.operator),
        )


class SpoiltTangent(FunctionOperator):
    """That of the model, for any members of a batch."""

    def __init__(self, model, operator):
        super().__init__(
            operator.shape,
            operator.matvec,
            lambda y: model._spoilt("operator", operator.rmatvec(y)),
            dtype=operator.dtype,
        )
        self.select = lambda index: SpoiltTangent(model, operator.select(index))


@pytest.mark.parametrize(
    ("what", "call", "said"),
    [
        ("prediction", 0, "mode, step 0: prediction"),
        ("prediction", 3, "mode, .*objective"),
        ("prediction", 47, "samples.*objective"),
        ("variance", 3, "mode, step 1: unresolved variance"),
        ("operator", 0, "mode, step 0: residual"),
        ("operator", 4, "mode, step .*: residual"),
        ("operator", 60, "residual"),
        ("operator", 190, "samples .*: residual"),
    ],
)
def test_a_number_that_is_none_ends_the_fit_before_it_is_saved(what, call, said):
    model, y, noise, settings = alone(4)
    spoilt = copy.copy(model)
    spoilt.__class__ = Spoilt
    spoilt.spoil(what, call)
    recorder = Recorder(every=1)
    with pytest.raises(FloatingPointError, match=said):
        infer(
            spoilt, y, noise, settings=settings, generator=rng(7), checkpointer=recorder
        )
    for files in recorder.files.values():
        for value in flat(pickle.loads(files)).values():
            if isinstance(value, torch.Tensor):
                assert bool(value.isfinite().all())
