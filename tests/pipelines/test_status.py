"""How far a fit is, whether it lives, has ended, or was killed."""

import json
import os
import shutil

import interrupted
import pytest

from pipelines.base.errors import InputError
from pipelines.run.status import describe, read_metrics, status_of

KEYS = {
    "run",
    "state",
    "message",
    "stage",
    "iteration",
    "value",
    "seconds",
    "checkpoint",
    "peak_memory_bytes",
    "pid",
    "host",
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    case = interrupted.case_in(tmp_path_factory.mktemp("status"))
    case.stop(after=6)
    return case


def test_a_stopped_fit_says_what_it_knows(stopped):
    found = status_of(stopped.output)
    assert found["state"] == "stopped" and "SIGTERM" in found["message"]
    assert found["checkpoint"]["stage"] == "map and samples, under way"
    assert 0 <= found["checkpoint"]["age_seconds"] < 3600
    assert found["iteration"] >= 1 and found["value"] and found["stage"]
    assert {"read", "plan", "map and samples"} <= set(found["seconds"])
    assert found["pid"] == os.getpid()
    said = describe(found)
    assert "last checkpoint: map and samples, under way" in said
    assert said.endswith("--resume")


def test_a_fit_that_ended_without_a_word_is_dead(stopped):
    path = stopped.workspace / "status.json"
    text = path.read_text()
    path.write_text(json.dumps({**json.loads(text), "state": "running"}))
    assert status_of(stopped.output)["state"] == "dead"
    path.unlink()
    dead = status_of(stopped.workspace)
    path.write_text(text)
    assert dead["state"] == "dead"


def test_a_fit_under_way_and_one_that_is_finished(stopped, command):
    seen = []
    with interrupted.saved(lambda _: seen.append(status_of(stopped.output))):
        stopped.fit(resume=True)
    assert {found["state"] for found in seen} == {"running"}
    assert all(found.keys() == KEYS for found in seen)
    assert describe(seen[-1])
    found = status_of(stopped.output)
    assert found["state"] == "finished" and found.keys() == KEYS
    assert found["seconds"]["checkpoints"] > 0
    assert found["peak_memory_bytes"] > 2**26
    said = command(f"status {stopped.output} --json")
    assert json.loads(said.output) == found
    assert "files match their SHA-256" in command(f"status {stopped.output}").output


def test_a_finished_run_that_was_altered_is_refused_by_name(
    cloud_run, command, tmp_path
):
    for name in ("posterior.safetensors", "metrics.jsonl"):
        copy = tmp_path / name
        shutil.copytree(cloud_run.path, copy)
        assert command(f"status {copy}").exit_code == 0
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
        said = command(f"status {copy}")
        assert said.exit_code == 2 and f"altered: {name}" in said.output
        (copy / "COMPLETE").unlink()
        assert "no COMPLETE" in command(f"status {copy}").output


def test_where_there_is_nothing_it_says_so(tmp_path):
    with pytest.raises(InputError, match="neither a run nor a fit under way"):
        status_of(tmp_path / "run")


def test_records_of_earlier_versions_have_kind_and_value(tmp_path):
    now = {"stage": "samples", "first": 1, "last": 8, "kind": "residual", "value": 0.1}
    before = {"stage": "samples 1-8", "iteration": 3, "residual": 0.1, "seconds": 2.0}
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{json.dumps(before)}\n{json.dumps(now)}\n")
    found, same = read_metrics(path)
    assert (found["kind"], found["value"]) == ("residual", 0.1) and same == now
