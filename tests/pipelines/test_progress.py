"""Progress: a bar for people, few lines for logs; and time by stage."""

from __future__ import annotations

import io

import pytest

from pipelines.base.progress import Progress, StageClock, say


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines(stream):
    return stream.getvalue().splitlines()


def test_a_log_has_the_first_the_last_and_one_line_per_ten_seconds(monkeypatch):
    now, stream = 0.0, io.StringIO()
    monkeypatch.setattr("pipelines.base.progress.time.monotonic", lambda: now)
    with Progress(description="solve", total=100, stream=stream) as work:
        for step in range(1, 101):
            now = 0.25 * step
            work.update(residual=1 / step)
    assert [line.split(" it")[0] for line in lines(stream)] == [
        "solve: 1/100",
        "solve: 41/100",
        "solve: 81/100",
        "solve: 100/100",
    ]
    assert lines(stream)[-1] == "solve: 100/100 it (100%), 25.0 s, residual=0.01"


def test_a_failure_passes_through_and_says_how_far_it_came():
    stream = io.StringIO()

    def read():
        with Progress(description="read", stream=stream, unit="rows") as work:
            for _ in range(15):
                work.update()
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        read()
    assert lines(stream)[-1].startswith("read: 15 rows, ")


def test_a_terminal_gets_one_line_that_messages_do_not_break():
    stream = Terminal()
    with Progress(description="solve", total=4, stream=stream) as work:
        work.update(residual=0.125)
        say("half way", stream=stream)
        work.update(3)
    parts = stream.getvalue().split("\r\033[K")
    assert "solve: 1/4" in parts[1] and parts[2] == "half way\n"
    assert "100%" in parts[-1] and parts[-1].endswith("residual=0.125\n")


@pytest.mark.parametrize(("own", "mark"), [("0", "[rank 0/4] "), ("1", "")])
def test_of_several_processes_the_first_one_talks_and_says_which_it_is(
    monkeypatch, own, mark
):
    monkeypatch.setenv("RANK", own)
    monkeypatch.setenv("WORLD_SIZE", "4")
    stream = io.StringIO()
    say("planned", stream=stream)
    with Progress(description="solve", total=1, stream=stream) as work:
        work.update()
    assert lines(stream)[:1] == ([f"{mark}planned"] if mark else [])
    assert all(line.startswith(mark) for line in lines(stream))


def test_time_is_counted_by_stage(monkeypatch):
    now = 100.0
    monkeypatch.setattr("pipelines.base.progress.time.perf_counter", lambda: now)
    stages = StageClock({"plan": 2.0}, now)
    now += 7.0
    stages.lap("inference")
    now += 1.0
    stages.lap("plan")
    assert stages.seconds == {"plan": 3.0, "inference": 7.0}
