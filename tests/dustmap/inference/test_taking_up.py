"""Inferences that were interrupted end as if they had not been."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from journal_cases import (
    CASES,
    Diary,
    StoppedError,
    alone,
    assert_same,
    flat,
    interrupted,
    linear,
    restored,
    rng,
    stored,
    with_everything,
)

from dustmap.inference import mode as mode_steps
from dustmap.inference.full_batch import infer
from dustmap.linalg.operator import FunctionOperator
from dustmap.models.lognormal import LogNormal


def run(case, journal=None, *, generator=None):
    model, y, noise, settings = case()
    generator = rng(7) if generator is None else generator
    return infer(
        model, y, noise, settings=settings, generator=generator, journal=journal
    )


@functools.cache
def whole(name):
    """A run without a journal, and how many safe points one has."""
    result = run(CASES[name])
    diary = Diary()
    assert_same(run(CASES[name], diary.journal), result)
    return result, diary.points


def assert_taken_up_everywhere(name, every):
    result, _ = whole(name)
    diary = Diary(every=every)
    run(CASES[name], diary.journal)
    assert diary.files
    for files in diary.files.values():
        # Another generator: its state is part of what was saved.
        again = run(CASES[name], Diary(files=files).journal, generator=rng(99))
        assert_same(again, result)


@pytest.mark.parametrize("name", CASES)
def test_taken_up_where_it_was_saved_a_run_ends_with_the_same_bits(name):
    _, points = whole(name)
    assert_taken_up_everywhere(name, points // 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_at_every_safe_point(name):
    assert_taken_up_everywhere(name, 1)


@pytest.mark.parametrize("name", ["everything", "linear, outliers"])
@pytest.mark.parametrize("interval", [23, 50])
def test_a_run_may_be_interrupted_again_and_again(name, interval):
    result, points = whole(name)
    again, stops = interrupted(functools.partial(run, CASES[name]), interval)
    assert_same(again, result)
    assert stops >= points // interval - 1


def test_it_learns_what_it_would_have_learnt():
    result, _ = whole("everything")
    assert result.common_noise > 0
    assert result.subgrid_share != 1.0
    assert result.degrees != 4.0


def test_finer_steps_to_the_mode_are_taken_up_too(monkeypatch):
    # So little may be left that rough steps never suffice.
    monkeypatch.setattr(mode_steps, "LEFT", 1e-6)
    case = CASES["mode"]
    result = run(case)
    diary = Diary(every=1)
    assert_same(run(case, diary.journal), result)
    finer = [f for f in diary.files.values() if "refined/rest.left" in f[1]]
    assert any("refined/mode/" in files[1] for files in finer)
    for files in finer[::2]:
        assert_same(run(case, Diary(files=files).journal), result)


def test_the_generator_ends_where_it_would_have():
    generators = [rng(7), rng(99)]
    diary = Diary(every=40)
    run(CASES["linear"], diary.journal, generator=generators[0])
    files = diary.files[80]
    run(CASES["linear"], Diary(files=files).journal, generator=generators[1])
    assert torch.equal(*[generator.get_state() for generator in generators])


def test_what_is_saved_is_small():
    model, y, _, settings = with_everything(6)
    diary = Diary(every=5)
    run(CASES["everything"], diary.journal)
    p, n = model.latent_size, len(y)
    # ε, Σ, a solve's three vectors, the mode and its last solve, the sketch's ε and Σ.
    most = 8 * ((7 + settings.samples) * p + 5 * n) + 3 * 5056 + 10_000
    assert max(len(files[0]) for files in diary.files.values()) < most


@pytest.mark.slow
def test_a_new_process_ends_with_the_same_bits(tmp_path):
    result, points = whole("everything")
    diary = Diary(stop=2 * points // 3)
    with pytest.raises(StoppedError):
        run(CASES["everything"], diary.journal)
    tensors, rest = diary.files[2 * points // 3]
    (tmp_path / "state.safetensors").write_bytes(tensors)
    (tmp_path / "state.json").write_text(rest)
    here = Path(__file__).parent
    program = """
import sys
from pathlib import Path

sys.path[:0] = [sys.argv[1], sys.argv[2]]
import safetensors.torch
from journal_cases import CASES, Diary, flat
from test_taking_up import run
import torch

place = Path(sys.argv[3])
files = (place / "state.safetensors").read_bytes(), (place / "state.json").read_text()
found = flat(run(CASES["everything"], Diary(files=files).journal))
tensors = {k: v.clone() for k, v in found.items() if isinstance(v, torch.Tensor)}
safetensors.torch.save_file(tensors, place / "result.safetensors")
"""
    where = [str(here), str(here.parents[1]), str(tmp_path)]
    subprocess.run([sys.executable, "-c", program, *where], check=True, timeout=240)
    found = safetensors.torch.load_file(tmp_path / "result.safetensors")
    for name, value in flat(result).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name], value), name


@functools.cache
def saved_state():
    """One from within a sample's solve."""
    diary = Diary(every=1)
    run(functools.partial(alone, 4), diary.journal)
    return next(
        restored(f) for f in diary.files.values() if "sample 3 of 4/cg/restart" in f[1]
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("inference/generator", None, "inference/generator .* found nothing"),
        (
            "inference/weights",
            torch.ones(3),
            r"weights .*float64.*\(40\), found.*\(3\)",
        ),
        ("inference/common", 0, r"inference/common should be one float, found one int"),
        ("inference/sketch.total", None, "sketch.total .* found nothing"),
        ("inference/mode.eps", torch.zeros(2), "mode.eps should be .* found"),
        (
            "inference/samples/eps",
            torch.zeros(2, 210),
            "samples/eps .* found a float32",
        ),
        ("inference/samples/sample 3 of 4/cg/x", None, "cg/x should be"),
        (
            "inference/samples/sample 3 of 4/eps",
            None,
            "4/eps should be .* found nothing",
        ),
        ("inference/samples/left", 1.0, "samples/left should be nothing"),
        ("inference/elsewhere/x", 1.0, "elsewhere/x should be nothing"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(name, value, said):
    state = {**saved_state(), name: value}
    state = {key: value for key, value in state.items() if value is not None}
    diary = Diary(files=stored(state), every=1)
    with pytest.raises(ValueError, match=said):
        run(functools.partial(alone, 4), diary.journal)
    assert not diary.files


@pytest.mark.parametrize(
    "case", [functools.partial(alone, 6), functools.partial(linear, None)]
)
def test_a_state_of_other_settings_or_another_model_is_refused(case):
    diary = Diary(files=stored(saved_state()), every=1)
    with pytest.raises(ValueError, match="the saved state does not fit: inference/"):
        run(case, diary.journal)
    assert not diary.files


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
        return self._spoilt("apply", super().apply(eps))

    def linearise(self, eps):
        tangent = super().linearise(eps)
        operator = tangent.operator
        return replace(
            tangent,
            prediction=self._spoilt("prediction", tangent.prediction),
            variance=self._spoilt("variance", tangent.variance),
            operator=FunctionOperator(
                operator.shape,
                operator.matvec,
                lambda y: self._spoilt("operator", operator.rmatvec(y)),
                dtype=operator.dtype,
                device=operator.device,
            ),
        )


@pytest.mark.parametrize(
    ("what", "call", "said"),
    [
        ("prediction", 0, "inference/mode, step 0: prediction is not finite"),
        ("prediction", 3, "inference/mode, step 3: prediction is not finite"),
        ("prediction", 20, "inference/.*sample.*, step .: prediction is not finite"),
        ("variance", 2, "inference/mode, step 2: unresolved variance is not finite"),
        ("operator", 0, "inference/mode/cg, iteration 0: residual is not finite"),
        ("operator", 4, "inference/mode/cg, iteration .* is not finite"),
        ("operator", 60, "inference/.*cg, iteration .*not finite"),
        ("operator", 150, "inference/samples/sample .*cg, iteration .*not finite"),
        ("apply", 2, "inference/mode, after the shortest step: objective is not fin"),
        ("apply", 40, "inference/samples/sample .*objective is not finite"),
    ],
)
def test_a_number_that_is_none_ends_the_fit_before_it_is_saved(what, call, said):
    model, y, noise, settings = alone(4)
    spoilt = copy.copy(model)
    spoilt.__class__ = Spoilt
    spoilt.spoil(what, call)
    diary = Diary(every=1)
    with pytest.raises(FloatingPointError, match=said):
        infer(
            spoilt,
            y,
            noise,
            settings=settings,
            generator=rng(7),
            journal=diary.journal,
        )
    for tensors, rest in diary.files.values():
        assert "NaN" not in rest
        json.loads(rest)
        for value in safetensors.torch.load(tensors).values():
            assert bool(value.isfinite().all())
