"""What a fit shows of its stages, samples and iterations."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest

from dustmap.inference.full_batch.gauss_newton import Task
from pipelines.base.progress import Pulse, doing
from pipelines.fit.fitting import STAGES
from pipelines.fit.progress import WORDS, FitProgress
from pipelines.saving.stopping import StopFlag

NAMES = ["learn_prior", "first_map", "map_and_samples", "judge"]
SAMPLES = Task(name="refined samples", first=9, last=16, total=32)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """The time, to set."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    return clock


def test_every_stage_of_a_fit_has_words():
    assert {stage.__name__ for stage in STAGES} == set(WORDS)
    assert not re.search("misfit|nats|residual|prior", " ".join(WORDS.values()))


def test_a_log_has_a_line_by_stage_and_every_half_minute_and_answers_a_signal(clock):
    stream, stop = io.StringIO(), StopFlag()
    progress = FitProgress(NAMES, stop, stream)
    progress.begin(1)
    for clock.now in (5.0, 29.0, 31.0, 45.0):
        progress.update(task=Task(name="mean"), iteration=int(clock.now))
        progress.tick()
    progress.begin(2)
    for clock.now in (60.0, 76.0):
        progress.update(task=SAMPLES, iteration=12)
    first, second = (WORDS[name] for name in NAMES[1:3])
    assert stream.getvalue().splitlines() == [
        f"stage 2 of 4: {first}, 0 s so far",
        f"stage 2 of 4: {first}, iteration 31, 31 s so far",
        f"stage 3 of 4: {second}, 45 s so far",
        f"stage 3 of 4: {second}, refined samples 9-16 of 32, 76 s so far",
    ]
    stop.name = "SIGINT"
    progress.tick()
    progress.tick()
    (answer,) = stream.getvalue().splitlines()[4:]
    assert "SIGINT" in answer and "--resume" in answer


def test_a_terminal_has_a_bar_of_stages_and_samples(clock):
    stream = Terminal()
    progress = FitProgress(NAMES, StopFlag(), stream)
    progress.begin(2)
    clock.now = 1.0
    progress.update(task=SAMPLES, iteration=1)
    bars = re.findall("(#+)-", stream.getvalue())
    assert list(map(len, bars)) == [10, 11]


def test_a_command_that_takes_long_says_so_and_what_it_does(clock):
    stream = io.StringIO()
    with Pulse("export", stream=stream) as pulse:
        clock.now = 4.0
        pulse.tick()
        assert not stream.getvalue()
        doing("map.zarr")
        for clock.now in (6.0, 7.0, 17.0):
            pulse.tick()
    assert stream.getvalue().splitlines() == [
        "export: map.zarr, 6 s so far",
        "export: map.zarr, 17 s so far",
    ]
