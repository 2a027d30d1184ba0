"""A fit that was interrupted goes on where it stopped, or says why it cannot."""

import errno
import gc
import math
import os
import shutil
import signal
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import interrupted
import numpy as np
import one_cloud
import pytest
import torch
from safetensors import SafetensorError

import pipelines.fit.fitting
import pipelines.fit.writing
import pipelines.saving.checkpoint
import pipelines.saving.checkpoint_manager
import pipelines.saving.identity
from pipelines.base.errors import InputError
from pipelines.catalog.schema import write_stars
from pipelines.config import FitConfig, to_toml
from pipelines.fit import correlated_noise
from pipelines.run.folder import read_run
from pipelines.saving.checkpoint import checkpoints, read_checkpoint
from pipelines.saving.fit_state import FitState
from pipelines.verify import verify

SOURCES = Path(str(pipelines.__file__)).parent.parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The fit that nothing interrupted, and how many checkpoints it wrote."""
    case = interrupted.case_in(tmp_path_factory.mktemp("whole"))
    written, count = pipelines.saving.checkpoint_manager.write_checkpoint, []

    def write(*args, **named):
        count.append(args[1]["stage"])
        return written(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines.saving.checkpoint_manager, "write_checkpoint", write)
        case.fit()
    assert not case.workspace.exists()
    return case, count


@pytest.fixture(scope="module")
def stopped(whole, tmp_path_factory):
    """The same, stopped in the middle of its inference."""
    folder = tmp_path_factory.mktemp("stopped")
    shutil.copy(whole[0].source, folder / "stars.parquet")
    case = interrupted.case_in(folder)
    case.stop(after=len(whole[1]) // 2)
    return case


@pytest.fixture
def again(stopped, tmp_path):
    """A copy of it, to go on with."""
    folder = tmp_path / "again"
    shutil.copytree(stopped.source.parent, folder)
    return interrupted.case_in(folder)


def test_stages_are_saved_in_their_order(whole):
    stages = list(dict.fromkeys(whole[1]))
    assert stages == ["planned", "learnt", "inferring", "inferred"]


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 1.0])
def test_a_fit_stopped_anywhere_ends_with_the_same_bits(whole, tmp_path, part):
    case, count = whole
    shutil.copy(case.source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)
    at = 1 + round(part * (len(count) - 1))
    message = own.stop(after=at)
    assert "SIGTERM" in message and "--resume" in message
    assert not own.output.exists()
    own.fit(resume=True)
    assert not own.workspace.exists()
    interrupted.require_same(case.output, own.output)
    taken_up = read_run(own.output).provenance["resumed"]
    assert [one["stage"] for one in taken_up] == [count[at - 1]]
    assert taken_up[0]["differences"] == []


@pytest.mark.parametrize("iteration", [3, 60])
def test_a_signal_within_a_step_costs_this_step_alone(whole, tmp_path, iteration):
    shutil.copy(whole[0].source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)
    # Nothing else makes it save itself.
    own.plain["checkpoint"] = {"minutes": 60.0}
    message = own.stop_within(iteration)
    last = checkpoints(own.workspace / "checkpoints")[-1]
    found = read_checkpoint(last).content
    assert last.name in message
    if iteration == 3:
        # Within the first step: the stage before is what there is.
        assert found["stage"] == "learnt"
    else:
        assert found["stage"] == "inferring"
        assert iteration - 30 < found["records"] <= iteration
    own.fit(resume=True)
    interrupted.require_same(whole[0].output, own.output)


def test_what_neighbours_share_is_learnt_once(tmp_path, monkeypatch):
    # One smooth cloud: neighbours hardly tell anything of one another.
    monkeypatch.setattr(correlated_noise, "_LEAST_GAIN", -math.inf)
    learnt, fit_residual = [], correlated_noise.fit_residual

    def learn(*given, known=None):
        learnt.append(known is None)
        return fit_residual(*given, known=known)

    monkeypatch.setattr(correlated_noise, "fit_residual", learn)
    outputs = []
    for name, after in (("whole", None), ("first map", 4), ("last map", 36)):
        folder = tmp_path / name
        folder.mkdir()
        stars = one_cloud.catalogue(200)
        write_stars(folder / "stars.parquet", stars, overwrite=False)
        own = interrupted.case_in(folder)
        own.plain["data"] = {"validation": 0.4}
        own.plain["model"]["residual"] = True
        own.plain["checkpoint"] = {"iterations": 1}
        learnt.clear()
        if after is not None:
            own.stop(after=after)
            content = read_checkpoint(checkpoints(own.workspace / "checkpoints")[-1])
            assert content.content["stage"] == "inferring"
            assert ("residual" in content.content) == (name == "last map")
        own.fit(resume=True)
        assert learnt == [True, False]
        outputs.append(own.output)
    for output in outputs[1:]:
        interrupted.require_same(outputs[0], output)


def other_models():
    """A gaussian density with outliers, and the published engine."""
    gaussian = one_cloud.settings(samples=2)
    gaussian["box"]["spacing"] = 140.0
    gaussian["model"]["outliers"] = True
    gaussian["checkpoint"] = {"iterations": 1}
    svi = one_cloud.settings(engine="svi", samples=2)
    svi["box"]["spacing"], svi["prior"]["lengthscale"] = 175.0, 260.0
    svi["svi"] = {"epochs": 2, "nodes": 8, "quadrature": "gauss-legendre"}
    svi["checkpoint"] = {"iterations": 1}
    return {"gaussian": gaussian, "svi": svi}


@pytest.mark.parametrize("name", ["gaussian", "svi"])
def test_other_models_go_on_in_the_middle_of_their_inference(tmp_path, name):
    runs = []
    for how in ("whole", "stopped"):
        folder = tmp_path / how
        folder.mkdir()
        own = replace(interrupted.case_in(folder), plain=other_models()[name])
        if how == "stopped":
            own.stop(after=4)
            last = checkpoints(own.workspace / "checkpoints")[-1]
            assert read_checkpoint(last).content["stage"] == "inferring"
        own.fit(resume=True)
        runs.append(own.output)
    interrupted.require_same(*runs)


@pytest.mark.parametrize("by", [signal.SIGUSR1, signal.SIGINT])
def test_a_fit_is_stopped_again_and_again_by_any_of_its_signals(whole, tmp_path, by):
    shutil.copy(whole[0].source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)
    for at in (3, 2):
        assert by.name in own.stop(after=at, by=by, resume=True)
    own.fit(resume=True)
    interrupted.require_same(whole[0].output, own.output)
    assert len(read_run(own.output).provenance["resumed"]) == 2


def test_resume_begins_where_there_is_nothing_and_ends_where_all_is_done(
    whole, tmp_path, capsys
):
    shutil.copy(whole[0].source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)
    report = own.fit(resume=True)
    interrupted.require_same(whole[0].output, own.output)
    before = (own.output / "run.json").stat().st_mtime_ns
    again = own.fit(resume=True)
    assert "finished: nothing is left to do" in capsys.readouterr().err
    assert (own.output / "run.json").stat().st_mtime_ns == before
    assert str(again) == str(report)


def test_without_resume_an_unfinished_fit_is_refused_and_overwrite_begins_anew(again):
    with pytest.raises(InputError, match="--resume, or start again with --overwrite"):
        again.fit()
    assert checkpoints(again.workspace / "checkpoints")
    again.fit(overwrite=True)
    assert read_run(again.output).provenance["resumed"] == []


def test_the_old_run_stays_until_the_new_one_is_whole(whole, again):
    shutil.copytree(whole[0].output, again.output)
    shutil.rmtree(again.workspace)
    again.stop(after=4, overwrite=True)
    assert (
        read_run(again.output).provenance["fit"]
        == (read_run(whole[0].output).provenance["fit"])
    )
    again.fit(resume=True)
    assert len(read_run(again.output).provenance["resumed"]) == 1


def test_a_fit_killed_while_it_cleared_up_is_finished(whole, again, capsys):
    begun = again.workspace / "begun.json"
    text = begun.read_text()
    again.fit(resume=True)
    again.workspace.mkdir()
    begun.write_text(text)
    again.fit(resume=True)
    assert "finished" in capsys.readouterr().err
    assert not again.workspace.exists()


@pytest.mark.parametrize(
    "verb", ["export {}", "plot {} -o figures", "predict {} s -o p"]
)
def test_other_verbs_say_that_it_is_not_finished(again, command, verb):
    said = command(verb.format(again.output))
    assert said.exit_code == 2
    assert "not finished" in said.output and "--resume" in said.output


def another(case, kind, monkeypatch):
    """The same case with one thing changed; what is said of it."""
    if kind == "configuration":
        case.plain["inference"]["samples"] = 6
        return "inference.samples was 2, is 6"
    if kind == "catalogue":
        write_stars(case.source, one_cloud.catalogue(100, seed=6), overwrite=True)
        return r"stars.parquet, was \"\w{64}\", is \"\w{64}\""
    if kind == "version":
        monkeypatch.setattr(pipelines.saving.identity.dustmap, "__version__", "9.9")
        return r"version was .*, is \"9.9\""
    code = {**pipelines.saving.identity.code_digests(SOURCES)}
    code["pipelines/fit.py"] = "0" * 64
    monkeypatch.setattr(pipelines.saving.identity, "code_digests", lambda _: code)
    return "code: pipelines/fit.py was"


@pytest.mark.parametrize("kind", ["configuration", "catalogue", "version", "sources"])
def test_a_checkpoint_of_another_fit_is_refused_with_the_difference(
    again, kind, monkeypatch
):
    message = another(again, kind, monkeypatch)
    with pytest.raises(InputError, match=message) as refused:
        again.fit(resume=True)
    assert "--resume-anyway" in str(refused.value)
    assert len(checkpoints(again.workspace / "checkpoints")) == 2


def test_it_is_resumed_all_the_same_if_that_is_asked_for(again, monkeypatch, capsys):
    another(again, "version", monkeypatch)
    again.fit(anyway=True)
    assert "warning: resumed all the same, code: version" in capsys.readouterr().err
    (taken_up,) = read_run(again.output).provenance["resumed"]
    assert "version" in taken_up["differences"][0]


def test_how_often_it_saves_is_no_difference(whole, again):
    again.plain["checkpoint"] = {"minutes": 60.0}
    again.fit(resume=True)
    interrupted.require_same(whole[0].output, again.output)


def damage(path, kind, place=0.5):
    content = bytearray(path.read_bytes())
    if kind == "deleted":
        path.unlink()
    elif kind == "truncated":
        path.write_bytes(content[: int(place * len(content))])
    else:
        content[min(int(place * len(content)), len(content) - 1)] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "kind", "place"),
    [
        *(("state.safetensors", "flipped", place) for place in (0, 0.01, 0.6, 1.0)),
        *(("checkpoint.json", "flipped", place) for place in (0, 0.4, 1.0)),
        ("manifest.json", "flipped", 0.5),
        ("COMPLETE", "flipped", 0.5),
        *((name, "truncated", 0.7) for name in ("state.safetensors", "COMPLETE")),
        *((name, "deleted", 0) for name in ("state.safetensors", "checkpoint.json")),
        *((name, "deleted", 0) for name in ("manifest.json", "COMPLETE")),
    ],
)
def test_a_damaged_checkpoint_is_found_and_the_one_before_is_used(
    again, name, kind, place
):
    before, newest = checkpoints(again.workspace / "checkpoints")
    verify(again.output)
    damage(newest / name, kind, place)
    for path in (again.output, again.workspace, newest):
        with pytest.raises(InputError, match=newest.name):
            verify(path)
    found, faults = pipelines.saving.checkpoint.newest_checkpoint(newest.parent)
    assert found.path == before and newest.name in faults[0]


def test_it_goes_on_from_the_one_before_and_says_so(whole, again, capsys):
    before, newest = checkpoints(again.workspace / "checkpoints")
    damage(newest / "state.safetensors", "flipped")
    again.fit(resume=True)
    said = capsys.readouterr().err
    assert f"warning: {newest} is not what was written" in said
    assert f"resumed from {before}" in said
    interrupted.require_same(whole[0].output, again.output)


def test_a_newest_checkpoint_that_is_gone_is_missed(again):
    before, newest = checkpoints(again.workspace / "checkpoints")
    shutil.rmtree(newest)
    with pytest.raises(InputError, match=f"{newest.name} is missing"):
        verify(again.output)
    found, faults = pipelines.saving.checkpoint.newest_checkpoint(newest.parent)
    assert found.path == before and "is missing" in faults[0]


def test_without_a_whole_checkpoint_it_does_not_guess(again):
    for path in checkpoints(again.workspace / "checkpoints"):
        damage(path / "state.safetensors", "truncated")
    with pytest.raises(InputError, match=r"no checkpoint can be used.*--overwrite"):
        again.fit(resume=True)
    assert not again.output.exists()


def test_a_full_disk_costs_a_checkpoint_and_not_the_fit(
    whole, tmp_path, monkeypatch, capsys
):
    shutil.copy(whole[0].source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)
    save, calls = pipelines.saving.checkpoint.save_file, []

    def full(tensors, path):
        calls.append(path)
        if len(calls) in (3, 4):
            path.write_bytes(b"half of it")
            raise SafetensorError("No space left on device (os error 28)")
        save(tensors, path)

    monkeypatch.setattr(pipelines.saving.checkpoint, "save_file", full)
    own.fit()
    said = capsys.readouterr().err
    assert said.count("a checkpoint could not be written, 000002 stays") == 2
    assert "No space left" in said
    interrupted.require_same(whole[0].output, own.output)


def test_a_full_disk_at_the_end_leaves_the_posterior_to_go_on_with(
    whole, tmp_path, monkeypatch, capsys
):
    shutil.copy(whole[0].source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(pipelines.fit.writing, "write_state", full)
        with pytest.raises(OSError, match="No space"):
            own.fit()
    assert "--resume" in capsys.readouterr().err
    assert not own.output.exists()
    assert sorted(p.name for p in own.workspace.glob(".*")) == []
    last = checkpoints(own.workspace / "checkpoints")[-1]
    assert read_checkpoint(last).content["stage"] == "inferred"
    monkeypatch.setattr(pipelines.fit.fitting, "run_engine", None)
    own.fit(resume=True)
    interrupted.require_same(whole[0].output, own.output)


def test_numbers_that_are_none_end_the_fit_and_not_the_checkpoint(
    again, monkeypatch, command, tmp_path
):
    def broken(*_, **__):
        raise FloatingPointError("mode, step 3: direction is not finite")

    config = tmp_path / "config.toml"
    config.write_text(to_toml(FitConfig.model_validate(again.plain)))
    with monkeypatch.context() as patch:
        patch.setattr(pipelines.fit.fitting, "run_engine", broken)
        line = f"fit {again.source} -o {again.output} -c {config} --resume"
        said = command(line)
    assert said.exit_code == 1
    assert "failed: FloatingPointError: mode, step 3" in said.output
    assert "stays" in said.output
    assert "not finished" in verify(again.output)
    assert "failed" in command(f"status {again.output}").output


def test_a_catalogue_that_cannot_be_fitted_leaves_nothing(tmp_path):
    write_stars(
        tmp_path / "stars.parquet", one_cloud.catalogue(4, seed=1), overwrite=False
    )
    own = interrupted.case_in(tmp_path)
    with pytest.raises(InputError, match="at least"):
        own.fit()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["stars.parquet"]


def test_a_read_only_folder_is_refused_before_the_work(whole, monkeypatch, tmp_path):
    shutil.copy(whole[0].source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)
    # Root may write anywhere: the system's answer stands for the mode.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="read-only"):
        own.fit()
    assert not own.workspace.exists()


HOLDER = """
import sys, time
from pathlib import Path
from pipelines.saving.workspace import claimed
with claimed(Path(sys.argv[1]), overwrite=False, resume=True):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_fit_into_the_same_folder_is_refused_and_a_dead_one_is_no_obstacle(
    again, command
):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(again.output)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=rf"process {process.pid} on \S+"):
            again.fit(resume=True)
        with pytest.raises(InputError, match="is in use by"):
            again.fit(overwrite=True)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    again.fit(resume=True)
    assert np.isfinite(read_run(again.output).posterior.mean.numpy()).all()


def test_a_fit_that_goes_on_lets_go_of_what_it_was_taken_up_from(again, monkeypatch):
    taken, alive = {}, []
    restore, write_run = FitState.restore, pipelines.fit.fitting.write_run

    def watched(*args):
        state = restore(*args)
        tensors = {k: v for k, v in state.inference.items() if torch.is_tensor(v)}
        taken.update({name: weakref.ref(value) for name, value in tensors.items()})
        return state

    def written(*args):
        gc.collect()
        alive.extend(name for name, value in taken.items() if value() is not None)
        return write_run(*args)

    monkeypatch.setattr(FitState, "restore", watched)
    monkeypatch.setattr(pipelines.fit.fitting, "write_run", written)
    again.fit(resume=True)
    assert len(taken) > 3
    # The mode is part of the result.
    assert set(alive) <= {"mode.eps"}
