"""A fit that was interrupted goes on where it stopped, or says why it cannot."""

import errno
import functools
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import weakref

import interrupted
import numpy as np
import one_cloud
import pytest
from safetensors import SafetensorError

import pipelines.fit.fitting
import pipelines.fit.judging
import pipelines.fit.mapping
import pipelines.fit.writing
import pipelines.saving.identity
import pipelines.saving.state_file
from pipelines.base.errors import InputError
from pipelines.catalog.schema import write_stars
from pipelines.config import FitConfig, to_toml
from pipelines.fit.state import FitState
from pipelines.run.folder import read_run
from pipelines.saving.state_file import read_state

MAP = "map and samples, under way"


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    """A fit that nothing interrupted, and the stages of the states that it saved."""
    cases = interrupted.cases(tmp_path_factory.mktemp("whole"))

    @functools.cache
    def fitted(name):
        stages = []
        with interrupted.saved(stages.append):
            cases[name].fit()
        assert not cases[name].workspace.exists()
        return cases[name], stages

    return fitted


@pytest.fixture(scope="module")
def whole(wholes):
    return wholes("lognormal")


@pytest.fixture(scope="module")
def stopped(whole, tmp_path_factory):
    """The lognormal fit, stopped in the middle of its inference."""
    folder = tmp_path_factory.mktemp("stopped")
    shutil.copy(whole[0].source, folder / "stars.parquet")
    case = interrupted.case_in(folder)
    case.stop(after=len(whole[1]) // 2)
    assert case.state["stage"] == MAP
    return case


@pytest.fixture
def again(stopped, tmp_path):
    """A copy of it, to go on with."""
    folder = tmp_path / "again"
    shutil.copytree(stopped.source.parent, folder)
    return interrupted.case_in(folder)


def test_stages_are_saved_in_their_order(wholes):
    stages = list(dict.fromkeys(wholes("shared")[1]))
    assert stages == [
        "plan",
        "first map, under way",
        "first map",
        "learn residual",
        "second map, under way",
        "second map",
        MAP,
        "map and samples",
        "judge",
    ]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("lognormal", 0.4),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                *(("lognormal", part) for part in (0.0, 0.7, 1.0)),
                *(("gaussian", 0.5), ("svi", 0.6)),
                *(("shared", part) for part in (0.1, 0.3, 0.8)),
            ]
        ),
    ],
)
def test_a_fit_stopped_anywhere_ends_with_the_same_bits(wholes, tmp_path, name, part):
    case, stages = wholes(name)
    own = interrupted.cases(tmp_path)[name]
    inner = [n for n, stage in enumerate(stages) if "under way" in stage]
    at = inner[round(part * (len(inner) - 1))]
    if part in (0.0, 1.0):
        at = round(part * (len(stages) - 1))
    message = own.stop(after=at + 1)
    assert "SIGTERM" in message and "--resume" in message
    assert not own.output.exists()
    own.fit(resume=True)
    assert not own.workspace.exists()
    interrupted.require_same(case.output, own.output)
    (taken_up,) = read_run(own.output).provenance["resumed"]
    assert taken_up["stage"] == stages[at]


@pytest.mark.parametrize("iteration", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_signal_within_a_step_costs_this_step_alone(whole, tmp_path, iteration):
    shutil.copy(whole[0].source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)
    # Nothing else makes it save itself.
    own.plain["checkpoint"] = {"minutes": 60.0}
    message = own.stop_within(iteration)
    last = own.state
    assert own.state_file.name in message
    if iteration == 3:
        # Within the first step: the stage before is what there is.
        assert last["stage"] == "plan"
    else:
        # Within the first pair of batches: the last step to the mode is there.
        assert last["stage"] == MAP
        assert 3 < len(json.loads(last["records"])) <= iteration
    own.fit(resume=True)
    interrupted.require_same(whole[0].output, own.output)


@pytest.mark.parametrize(
    "by", [signal.SIGUSR1, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_fit_is_stopped_again_and_again_by_any_of_its_signals(whole, tmp_path, by):
    shutil.copy(whole[0].source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)
    for at in (3, 4):
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
    assert "finished" in capsys.readouterr().err
    assert (own.output / "run.json").stat().st_mtime_ns == before
    assert str(again) == str(report)
    damage(own.output / "posterior.safetensors", "flipped")
    with pytest.raises(InputError, match="posterior"):
        own.fit(resume=True)


def test_without_resume_an_unfinished_fit_is_refused_and_overwrite_begins_anew(again):
    with pytest.raises(InputError, match="--resume, or start again with --overwrite"):
        again.fit()
    assert again.state_file.is_file()
    again.fit(overwrite=True)
    assert read_run(again.output).provenance["resumed"] == []


def test_the_old_run_stays_until_the_new_one_is_whole(whole, again):
    shutil.copytree(whole[0].output, again.output)
    shutil.rmtree(again.workspace)
    again.stop(after=4, overwrite=True)
    before = read_run(whole[0].output).provenance["fit"]
    assert read_run(again.output).provenance["fit"] == before
    again.fit(resume=True)
    assert len(read_run(again.output).provenance["resumed"]) == 1


def test_a_fit_killed_while_it_cleared_up_is_finished(again, capsys):
    status = again.workspace / "status.json"
    text = status.read_text()
    again.fit(resume=True)
    again.workspace.mkdir()
    status.write_text(text)
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
    monkeypatch.setattr(pipelines.saving.identity.dustmap, "__version__", "9.9")
    return r"version was .*, is \"9.9\""


@pytest.mark.parametrize("kind", ["configuration", "catalogue", "version"])
def test_a_state_of_another_fit_is_refused_with_the_difference(
    again, kind, monkeypatch
):
    message = another(again, kind, monkeypatch)
    with pytest.raises(InputError, match=message) as refused:
        again.fit(resume=True)
    assert "--overwrite" in str(refused.value)
    assert again.state["stage"] == MAP


def test_a_state_that_was_resumed_leaves_memory_once_there_is_another(
    again, monkeypatch
):
    restore, read, kept = FitState.restore, [], []

    def restored(*given):
        state = restore(*given)
        read.append(weakref.ref(state.progress.generator))
        return state

    def judge(state, stars, at):
        gc.collect()
        kept.extend(tensor() is not None for tensor in read)
        return pipelines.fit.judging.judge(state, stars, at)

    judge.__name__ = "judge"
    stages = pipelines.fit.fitting.STAGES
    changed = [judge if stage.__name__ == "judge" else stage for stage in stages]
    monkeypatch.setattr(pipelines.fit.fitting, "STAGES", tuple(changed))
    monkeypatch.setattr(FitState, "restore", restored)
    again.fit(resume=True)
    assert kept == [False]


def test_a_state_that_does_not_fit_the_settings_is_refused_by_name(again, monkeypatch):
    another(again, "configuration", monkeypatch)
    monkeypatch.setattr("pipelines.fit.opening.differences", lambda *_: [])
    with pytest.raises(InputError, match="the saved state does not"):
        again.fit(resume=True)


def damage(path, kind, place=0.5):
    content = bytearray(path.read_bytes())
    if kind == "truncated":
        path.write_bytes(content[: int(place * len(content))])
    else:
        content[min(int(place * len(content)), len(content) - 1)] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(("flipped", place) for place in (0, 0.01, 0.6, 1.0)),
        *(("truncated", place) for place in (0, 0.7)),
    ],
)
def test_a_damaged_state_is_found_and_not_used(again, kind, place):
    read_state(again.state_file)
    damage(again.state_file, kind, place)
    with pytest.raises(InputError, match=again.state_file.name):
        again.fit(resume=True)
    assert again.state_file.is_file() and not again.output.exists()


@pytest.mark.slow
def test_a_full_disk_costs_a_state_and_not_the_fit(
    whole, tmp_path, monkeypatch, capsys
):
    shutil.copy(whole[0].source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)
    save, calls = pipelines.saving.state_file.save_file, []

    def full(tensors, path, metadata):
        calls.append(path)
        if len(calls) in (3, 4):
            path.write_bytes(b"half of it")
            raise SafetensorError("No space left on device (os error 28)")
        save(tensors, path, metadata)

    monkeypatch.setattr(pipelines.saving.state_file, "save_file", full)
    own.fit()
    said = capsys.readouterr().err
    assert said.count("could not be written, the last one stays") == 2
    assert "No space left" in said
    interrupted.require_same(whole[0].output, own.output)


def test_a_full_disk_at_the_end_leaves_the_map_to_go_on_with(
    whole, tmp_path, monkeypatch, capsys
):
    shutil.copy(whole[0].source, tmp_path / "stars.parquet")
    own = interrupted.case_in(tmp_path)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(pipelines.fit.writing, "write_posterior", full)
        with pytest.raises(OSError, match="No space"):
            own.fit()
    assert "--resume" in capsys.readouterr().err
    assert not own.output.exists()
    assert sorted(p.name for p in own.workspace.glob(".*")) == []
    assert own.state["stage"] == "judge"
    monkeypatch.setattr(pipelines.fit.mapping, "run_engine", None)
    monkeypatch.setattr(pipelines.fit.judging, "predict_columns", None)
    own.fit(resume=True)
    interrupted.require_same(whole[0].output, own.output)


def test_numbers_that_are_none_end_the_fit_and_not_the_state(
    again, monkeypatch, command, tmp_path
):
    def broken(*_, **__):
        raise FloatingPointError("mode, step 3: direction is not finite")

    config = tmp_path / "config.toml"
    config.write_text(to_toml(FitConfig.model_validate(again.plain)))
    with monkeypatch.context() as patch:
        patch.setattr(pipelines.fit.mapping, "run_engine", broken)
        line = f"fit {again.source} -o {again.output} -c {config} --resume"
        said = command(line)
    assert said.exit_code == 1
    assert "failed: FloatingPointError: mode, step 3" in said.output
    assert "stays" in said.output
    assert "failed" in command(f"status {again.output}").output


HOLDER = """
import sys, time
from pathlib import Path
from pipelines.saving.workspace import claimed
with claimed(Path(sys.argv[1]), overwrite=False, resume=True):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_fit_into_the_same_folder_is_refused_and_a_dead_one_is_no_obstacle(
    again,
):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(again.output)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=rf"process {process.pid} on \S+"):
            again.fit(resume=True)
        with pytest.raises(InputError, match="is in use by"):
            again.fit(overwrite=True)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    again.fit(resume=True)
    assert np.isfinite(read_run(again.output).posterior.mean.numpy()).all()
