"""The stages of a fit, and the time to its end by the pace so far."""

from __future__ import annotations

import io
import math
import re
from types import SimpleNamespace

import pytest

from pipelines.base.progress import Pulse, doing
from pipelines.config import FitConfig
from pipelines.fit.fitting import STAGES
from pipelines.fit.pace import WORDS, Pace
from pipelines.model.cost import SECONDS_BESIDE, Work
from pipelines.saving.stopping import StopFlag

NAMES = ["learn_prior", "first_map", "map_and_samples", "judge"]
FORESEEN = dict(zip(NAMES, [10.0, 20.0, 100.0, 30.0]))


@pytest.fixture
def clock(monkeypatch):
    """The time, to set."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    return clock


def begin(pace, number, left=math.inf, seen=FORESEEN):
    pace.begin(number, seen, samples=32, left=left)


def test_every_stage_of_a_fit_has_words():
    assert {stage.__name__ for stage in STAGES} == set(WORDS)
    assert not re.search("misfit|nats|residual|prior", " ".join(WORDS.values()))


def test_times_are_foreseen_by_the_names_of_stages():
    size = {"points": 10**5, "transformed": 10**5, "stars": 10**4, "ray_cells": 15.0}
    for model in ({}, {"residual": False}, {"density": "gaussian"}):
        work = Work(config=FitConfig.model_validate({"model": model}), **size)
        assert set(work.seconds_by_stage() | SECONDS_BESIDE) <= set(WORDS)


def test_the_rest_takes_as_much_longer_as_the_first_stages_took(clock):
    pace = Pace(NAMES, StopFlag(), io.StringIO())
    begin(pace, 0)
    assert pace.left() == pytest.approx(160)
    clock.now = 40.0
    begin(pace, 1)
    # 45 s for 15 s: of ten foreseen seconds, and five that count as foreseen.
    assert pace.left() == pytest.approx(3 * 150)
    clock.now = 45.0
    begin(pace, 2)
    # The second took a quarter of what was foreseen.
    assert pace.left() == pytest.approx((45 + 5) / (15 + 20) * 130)


def test_a_stage_that_was_left_out_says_nothing_of_the_pace(clock):
    pace = Pace(NAMES, StopFlag(), io.StringIO())
    begin(pace, 0)
    begin(pace, 1)
    assert pace.left() == pytest.approx(150)


def test_a_resumed_fit_goes_by_the_pace_before_its_stop(clock):
    pace = Pace(NAMES, StopFlag(), io.StringIO(), taken=[40.0])
    begin(pace, 1)
    assert pace.left() == pytest.approx(3 * 150)


def test_samples_are_counted_by_their_own_pace(clock):
    pace = Pace(NAMES, StopFlag(), io.StringIO())
    begin(pace, 2)
    clock.now = 10.0
    pace.show(stage="samples 1-8")
    clock.now = 40.0
    pace.show(stage="samples 9-16")
    assert pace.left() == pytest.approx(3 * 30 + 30)


def test_a_limit_of_time_holds_and_an_unknown_time_is_not_told(clock):
    stream = io.StringIO()
    pace = Pace(NAMES, StopFlag(), stream)
    begin(pace, 0, seen={})
    assert math.isnan(pace.left())
    begin(pace, 1, left=12.0)
    assert pace.left() == 12.0
    first, second = stream.getvalue().splitlines()
    assert first == f"stage 1 of 4: {WORDS['learn_prior']}"
    assert second == f"stage 2 of 4: {WORDS['first_map']}, about 15 s left"


def test_a_log_has_a_line_every_half_minute_and_the_answer_to_a_signal(clock):
    stream, stop = io.StringIO(), StopFlag()
    pace = Pace(NAMES, stop, stream)
    begin(pace, 0)
    for clock.now in (5.0, 29.0, 31.0, 45.0, 62.0):
        pace.tick()
    assert len(stream.getvalue().splitlines()) == 3
    stop.name = "SIGINT"
    pace.tick()
    pace.tick()
    (answer,) = stream.getvalue().splitlines()[3:]
    assert "SIGINT" in answer and "--resume" in answer


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
