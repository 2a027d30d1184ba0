"""When a fit saves itself, what it notes of its steps, and who may work where."""

import errno
import fcntl
import os
import shutil
import signal
from contextlib import ExitStack

import pytest
import torch

from dustmap.distributed.group import Group
from dustmap.inference.full_batch.gauss_newton import Task
from pipelines.base.errors import InputError, Stopped
from pipelines.config import FitConfig
from pipelines.fit.context import Context
from pipelines.saving.state_file import write_state
from pipelines.saving.stopping import StopFlag
from pipelines.saving.workspace import Workspace, claimed, unfinished

SAMPLES = Task(name="samples", first=1, last=16, total=32)


class Turned:
    """A clock that shows what it was told."""

    now = 50.0

    def __call__(self):
        return self.now


@pytest.fixture
def written(monkeypatch):
    """The states that a fit writes."""
    states = []

    def write(self):
        states.append(self._latest)
        self._latest, self._since, self._steps = None, self.now(), 0

    monkeypatch.setattr(Context, "_write", write)
    return states


def context(folder, clock, stop=None, **settings):
    alone = Group()
    config = FitConfig.model_validate({"checkpoint": settings})
    return Context(
        config=config,
        device={
            "device": torch.device("cpu"),
            "dtype": torch.float64,
            "generator": torch.Generator(),
        },
        group=alone,
        team=alone,
        teams=alone,
        work=Workspace(output=folder / "run"),
        inputs=[],
        stop=stop or StopFlag(),
        now=clock,
    )


def test_a_state_is_due_after_minutes_or_steps(tmp_path, written):
    clock = Turned()
    own = context(tmp_path, clock, minutes=2.0)
    for passed, state in ((0.0, "a"), (119.0, "b"), (1.0, "c"), (0.0, "d")):
        clock.now += passed
        own.offer(state)
    assert written == [("c", 0)]
    own = context(tmp_path, Turned(), iterations=3)
    for step in range(1, 8):
        own.offer(step)
    assert written[1:] == [(3, 0), (6, 0)]


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_after_a_signal_it_ends_and_a_second_one_ends_at_once(tmp_path, written, by):
    before = signal.getsignal(by)
    with StopFlag() as stop:
        own = context(tmp_path, Turned(), stop)
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


@pytest.mark.parametrize(
    ("task", "stage", "kind", "tolerance"),
    [
        (Task(name="mean"), "mean", "residual", 1e-4),
        (SAMPLES, "samples", "residual", 1e-2),
        (Task(name="scales mean"), "scales mean", "residual", None),
        (Task(name="misfit"), "misfit", "misfit", None),
        (Task(name="svi bound"), "svi bound", "bound", None),
    ],
)
def test_a_step_is_recorded_by_its_kind_with_its_tolerance(
    tmp_path, task, stage, kind, tolerance
):
    own, shown = context(tmp_path, Turned()), []
    own.follow = lambda **given: shown.append(given)
    own.metrics.append({"seconds": 40.0})
    on_step = own.recorder({"samples": 1e-2, "mean": 1e-4, "misfit": 1.0})
    on_step(task, 3, 0.5)
    # What has no value leaves no record.
    on_step(task, 4, float("nan"))
    _, record = own.metrics
    assert record["iteration"] == 3 and record["value"] == 0.5
    assert (record["stage"], record["kind"]) == (stage, kind)
    numbers = (record.get("first"), record.get("last"))
    assert numbers == ((1, 16) if task is SAMPLES else (None, None))
    seen = [{"task": task, "iteration": 3}]
    assert shown == ([] if kind == "misfit" else seen)
    assert record.get("tolerance") == tolerance
    # Time goes on from the records before.
    assert 40.0 <= record["seconds"] < 100.0


def test_a_workspace_is_held_by_one_process(tmp_path):
    run = tmp_path / "run"
    with claimed(run, overwrite=False, resume=False) as work:
        assert work.is_held
        message = f"process {os.getpid()} on"
        with (
            pytest.raises(InputError, match=message),
            claimed(run, overwrite=True, resume=False),
        ):
            pytest.fail("the block must not run")
    assert not work.is_held and not work.folder.exists()


@pytest.mark.parametrize("whole", [False, True])
def test_a_fit_whose_lock_was_removed_ends_and_leaves_the_next_one_alone(
    tmp_path, whole
):
    run = tmp_path / "run"

    def lose():
        with claimed(run, overwrite=False, resume=False) as work:
            if whole:
                shutil.rmtree(work.folder)
            else:
                (work.folder / "lock").unlink()
            begin.append(second.enter_context(claimed(run, **again)))
            work.note(state="solving")
            pytest.fail("another process works here")

    again, begin = {"overwrite": True, "resume": False}, []
    with ExitStack() as second:
        with pytest.raises(InputError, match="was removed"):
            lose()
        (other,) = begin
        assert other.is_own and other.is_held
        other.note(state="planning")
        write_state(other.state, {"x": torch.ones(2)})
    assert not other.folder.exists()


def test_a_workspace_is_not_begun_where_files_cannot_be_locked(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(InputError, match="without locks"),
        claimed(tmp_path / "run", overwrite=False, resume=False),
    ):
        pytest.fail("the block must not run")


def test_what_fails_before_a_checkpoint_leaves_no_workspace(tmp_path):
    def fail():
        with claimed(tmp_path / "run", overwrite=False, resume=False):
            assert unfinished(tmp_path / "run") is not None
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_note_does_not_cost_the_states(tmp_path):
    folder = tmp_path / "run.unfinished"
    folder.mkdir()
    write_state(folder / "state.safetensors", {"x": torch.ones(2)})
    (folder / "status.json").write_text("{")
    with (
        pytest.raises(InputError, match="is not finished"),
        claimed(tmp_path / "run", overwrite=False, resume=False),
    ):
        pytest.fail("the block must not run")
    with claimed(tmp_path / "run", overwrite=False, resume=True) as work:
        assert work.facts["fit"] and work.state.is_file()


def test_a_run_moved_aside_by_a_killed_process_comes_back(tmp_path):
    folder = tmp_path / "run.unfinished"
    aside = folder / ".run.abc.part.old"
    aside.mkdir(parents=True)
    (aside / "run.json").write_text("{}")
    (folder / ".run.abc.part").mkdir()
    with claimed(tmp_path / "run", overwrite=True, resume=True):
        assert (tmp_path / "run" / "run.json").is_file()
        assert sorted(p.name for p in folder.glob(".*")) == []
