"""Time that was spent, by a clock that tests turn."""

import pytest

from pipelines.base.progress import StageClock, in_words


class Turned:
    """A clock that shows what it was told."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Turned()


def test_what_is_put_aside_is_no_time_of_its_stage(monkeypatch, clock):
    monkeypatch.setattr("pipelines.base.progress.time.perf_counter", clock)
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


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0 s"), (41.0, "45 s"), (200.0, "3 min"), (9e3, "2.5 h")],
)
def test_times_are_told_as_roughly_as_they_are_known(seconds, said):
    assert in_words(seconds) == said
