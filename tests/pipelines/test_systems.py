"""Linux and macOS are supported; elsewhere one sentence says so."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.base.allocation import peak_memory
from pipelines.cli import main
from pipelines.fit.launch import own_threads

ROOT = Path(__file__).parents[2]
# Modules of the standard library that Windows lacks.
WITHOUT = """
import sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
"""
VERBS = (
    WITHOUT
    + """
from click.testing import CliRunner
from pipelines.cli import main
for verb in main.commands:
    for line in ([verb], [verb, "--help"]):
        found = CliRunner().invoke(main, line)
        assert isinstance(found.exception, SystemExit), (verb, found.exception)
        print(found.exit_code, len(found.output.splitlines()), found.output.strip())
"""
)
DOORS = (
    WITHOUT
    + """
import dustmap
print(dustmap.Grid(shape=(9, 9), spacing=(1, 1), origin=(0, 0)).size)
from pipelines.base.errors import InputError
for name in ("fit", "open_map", "ingest", "predict", "simulate", "regress"):
    try:
        getattr(dustmap, name)
    except InputError as error:
        print(error)
"""
)


def test_macos_counts_memory_in_bytes_and_binds_no_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=3 * 2**20)
    )
    monkeypatch.setattr(sys, "platform", "linux")
    assert peak_memory() == 3 * 2**30
    monkeypatch.setattr(sys, "platform", "darwin")
    assert peak_memory() == 3 * 2**20
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert own_threads(3) == 2


@pytest.mark.parametrize("place", ["dustmap", "pipelines"])
def test_what_only_linux_has_is_named_where_another_way_is_beside_it(
    place: str,
) -> None:
    linux = r"sched_|ru_maxrss|/proc/|libc_ver|posix_fadvise|fallocate|O_TMPFILE|fcntl"
    known = {"allocation.py", "launch.py", "errors.py"}
    found = {
        file.name
        for file in (ROOT / place).rglob("*.py")
        if re.search(linux, file.read_text())
    }
    assert found <= known


def test_without_fcntl_every_verb_ends_with_one_sentence_and_a_status() -> None:
    lines = run(VERBS)
    assert len(lines) == 2 * len(main.commands)
    for line in lines:
        status, count, text = line.split(" ", 2)
        assert (status, count) == ("2", "1") and text.startswith("dustmap: ")
        assert "Linux and macOS" in text


def test_without_fcntl_the_doors_of_python_say_so_and_the_mathematics_works() -> None:
    size, *said = run(DOORS)
    assert size == "81" and len(said) == 6
    assert all("Linux and macOS" in line for line in said)


def run(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
