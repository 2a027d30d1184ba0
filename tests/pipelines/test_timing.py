"""Time that is allowed, and time that is left, by a clock that tests turn."""

import pytest

from pipelines.base.timing import Countdown, StageClock, in_words


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


PARTS = {"scales": 10.0, "first map": 20.0, "map": 30.0, "samples": 40.0}


def test_the_time_left_counts_down_over_all_parts(clock):
    left = Countdown(PARTS, clock)
    left.enter("scales")
    assert left.left() == 100.0
    clock.now += 4.0
    assert left.left() == 96.0
    clock.now += 6.0
    left.enter("first map")
    assert left.left() == 90.0
    clock.now += 20.0
    # A part that is not expected changes nothing.
    left.enter("residual")
    left.enter("map")
    assert left.left() == 70.0


def test_a_slow_machine_is_noticed_by_the_parts_that_have_ended(clock):
    left = Countdown(PARTS, clock)
    left.enter("scales")
    clock.now += 40.0
    left.enter("first map")
    # 40 s instead of 10, beside 10 s that the estimate is believed.
    assert left.left() == pytest.approx(90 * 50 / 20)
    clock.now += 20 * 4.0
    left.enter("map")
    assert left.left() == pytest.approx(70 * 130 / 40)


def test_what_follows_a_part_takes_as_much_longer_as_the_parts_before(clock):
    left = Countdown(PARTS, clock)
    assert left.after("map") == 40.0 and left.after("samples") == 0.0
    left.enter("scales")
    clock.now += 30.0
    left.enter("first map")
    assert left.after("map") == pytest.approx(40 * 40 / 20)


def test_no_more_is_left_than_is_allowed(clock):
    left = Countdown(PARTS, clock, ceiling=lambda: 150.0 - clock.now)
    assert left.left() == 50.0
    clock.now += 60.0
    assert left.left() > 0


def test_what_is_overdue_does_not_take_nothing(clock):
    left = Countdown({"map": 10.0}, clock)
    left.enter("map")
    clock.now += 50.0
    assert left.left() == pytest.approx(5.0)


def test_blocks_of_samples_tell_the_time_left_better_than_the_estimate(clock):
    left = Countdown({"map": 5.0, "samples": 40.0, "refined samples": 40.0}, clock)
    left.enter("map")
    clock.now += 5.0
    assert left.at("samples 1-16", 32) == pytest.approx(80.0)
    clock.now += 60.0
    # Half of the samples took 60 s.
    assert left.at("samples 17-32", 32) == pytest.approx(40 + 60)
    clock.now += 40.0
    assert left.at("refined samples 1-32", 32) == pytest.approx(40 * 115 / 55)
    assert left.at("first samples 1-8", 32) == left.left()


def test_parts_are_revised_and_those_that_are_not_made_are_left_out(clock):
    left = Countdown(PARTS, clock)
    left.enter("map")
    assert left.left() == 70.0
    left.expect({"scales": 1.0, "samples": 400.0})
    assert left.left() == 430.0


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0 s"), (41.0, "45 s"), (200.0, "3 min"), (9e3, "2.5 h")],
)
def test_times_are_told_as_roughly_as_they_are_known(seconds, said):
    assert in_words(seconds) == said
