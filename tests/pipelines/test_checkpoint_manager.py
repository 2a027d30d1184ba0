"""When a fit saves itself, and who may work where."""

import json
import os
import signal
import socket

import pytest

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError, Stopped
from pipelines.base.timing import StageClock
from pipelines.config.fitting import CheckpointConfig
from pipelines.saving.checkpoint_manager import CheckpointManager
from pipelines.saving.lock import is_held, locked
from pipelines.saving.stopping import StopFlag
from pipelines.saving.workspace import Workspace, claimed, unfinished
from pipelines.storage.metrics import Metrics


class Turned:
    """A clock that shows what it was told."""

    now = 50.0

    def __call__(self):
        return self.now


@pytest.fixture
def written(monkeypatch):
    """The states that a manager writes."""
    states = []
    monkeypatch.setattr(
        CheckpointManager,
        "_write_here",
        lambda self, state, records, stage: states.append((state, records)),
    )
    return states


def manager(folder, clock, stop=None, **settings):
    work = Workspace(output=folder / "run", identifier="a", overwrite=False)
    return CheckpointManager(
        work=work,
        identity=None,
        settings=CheckpointConfig(**settings),
        stop=stop or StopFlag(),
        clock=StageClock(),
        metrics=Metrics(),
        group=Group(),
        now=clock,
    )


def test_it_is_due_after_so_many_minutes(tmp_path, written):
    clock = Turned()
    own = manager(tmp_path, clock, minutes=2.0)
    own.offer("a")
    clock.now += 119.0
    own.offer("b")
    assert not written
    clock.now += 1.0
    own.offer("c")
    own.offer("d")
    assert written == [("c", 0)]


def test_it_is_due_after_so_many_steps(tmp_path, written):
    own = manager(tmp_path, Turned(), iterations=3)
    for step in range(1, 8):
        own.offer(step)
    assert written == [(3, 0), (6, 0)]


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_after_a_signal_it_ends_and_a_second_one_ends_at_once(tmp_path, written, by):
    before = signal.getsignal(by)
    with StopFlag() as stop:
        own = manager(tmp_path, Turned(), stop)
        own.offer("a")
        own.metrics.append({})
        own.stop_if_asked()
        os.kill(os.getpid(), by)
        with pytest.raises(Stopped, match=f"stopped by {by.name}.*--resume"):
            own.stop_if_asked()
        # The last step, with the records that there were after it.
        assert written == [("a", 0)]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), by)
    assert signal.getsignal(by) is before


def test_a_lock_is_held_by_one_and_named(tmp_path):
    path = tmp_path / "lock"
    assert is_held(path) is False
    with locked(path):
        assert is_held(path) is True
        held = {"pid": os.getpid(), "host": socket.gethostname()}
        assert json.loads(path.read_text()) == held
        with (
            pytest.raises(InputError, match=f"process {os.getpid()} on"),
            locked(path),
        ):
            pytest.fail("the block must not run")
    assert is_held(path) is False
    # What a dead process left is no obstacle.
    with locked(path):
        pass


def test_what_fails_before_a_checkpoint_leaves_no_workspace(tmp_path):
    def fail():
        with claimed(tmp_path / "run", overwrite=False, resume=False):
            assert unfinished(tmp_path / "run") is not None
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_note_does_not_cost_the_checkpoints(tmp_path):
    folder = tmp_path / "run.unfinished"
    (folder / "checkpoints" / "000001").mkdir(parents=True)
    (folder / "begun.json").write_text("{")
    with (
        pytest.raises(InputError, match="is not finished"),
        claimed(tmp_path / "run", overwrite=False, resume=False),
    ):
        pytest.fail("the block must not run")
    with claimed(tmp_path / "run", overwrite=False, resume=True) as work:
        assert work.identifier
        assert (work.checkpoints / "000001").is_dir()


def test_a_run_moved_aside_by_a_killed_process_comes_back(tmp_path):
    folder = tmp_path / "run.unfinished"
    aside = folder / ".run.abc.part.old"
    aside.mkdir(parents=True)
    (aside / "run.json").write_text("{}")
    (folder / ".run.abc.part").mkdir()
    with claimed(tmp_path / "run", overwrite=True, resume=True):
        assert (tmp_path / "run" / "run.json").is_file()
        assert sorted(p.name for p in folder.glob(".*")) == []
