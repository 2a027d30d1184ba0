"""Time that is allowed, and time that is left, by a clock that tests turn."""

import pytest

from pipelines.base.timing import StageClock, TimeLeft


class Turned:
    """A clock that shows what it was told."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Turned()


def test_what_is_put_aside_is_no_time_of_its_stage(monkeypatch, clock):
    monkeypatch.setattr("pipelines.base.timing.time.perf_counter", clock)
    stages = StageClock({"plan": 2.0}, clock())
    clock.now += 7.0
    stages.aside("checkpoints", 3.0)
    assert stages.so_far("inference") == {
        "plan": 2.0,
        "checkpoints": 3.0,
        "inference": 4.0,
    }
    assert stages.so_far("") == {"plan": 2.0, "checkpoints": 3.0}
    clock.now += 1.0
    stages.lap("inference")
    assert stages.seconds["inference"] == 5.0


def test_time_is_left_by_the_estimate_until_it_has_passed(clock):
    left = TimeLeft(60.0, 32, clock)
    assert left.at("mean") == "60 s"
    clock.now = 145.0
    assert left.at("mean over samples") == "15 s"
    clock.now = 175.0
    assert left.at("samples") == "unknown (75 s so far, 60 s expected)"


def test_blocks_of_samples_tell_the_time_left_better_than_the_estimate(clock):
    left = TimeLeft(60.0, 40, clock)
    clock.now = 190.0
    assert "90 s so far" in left.at("samples 1-16")
    clock.now = 210.0
    assert "110 s so far" in left.at("samples 1-16")
    # 16 samples took 32 s; there are 24 left.
    clock.now = 222.0
    assert left.at("samples 17-32") == "48 s"
    clock.now = 232.0
    assert left.at("samples 17-32") == "38 s"
    clock.now = 254.0
    assert left.at("samples 33-40") == "16 s"
    clock.now = 300.0
    assert left.at("samples 33-40") == "0 s"


def test_samples_that_are_refined_after_all_count_twice(clock):
    left = TimeLeft(5.0, 10, clock, refined=True)
    clock.now += 2.0
    assert left.at("rough samples 1-2") == "3 s"
    assert left.at("samples 1-5") == "3 s"
    clock.now += 10.0
    assert left.at("samples 6-10") == "30 s"
    clock.now += 10.0
    assert left.at("refined samples 1-5") == "20 s"
    # These are slower, which the next tell.
    clock.now += 20.0
    assert left.at("refined samples 6-10") == "13 s"
