"""Timings of a device at their small size on the CPU; what they and its checks need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "bench" / "gpu.py"
# Not on a machine that has the mathematics alone.
ABSENT = (
    "astropy", "click", "duckdb", "h5py", "healpy", "hypothesis", "matplotlib",
    "pipelines", "psutil", "pyarrow", "pydantic", "safetensors", "tqdm", "zarr",
)  # fmt: skip
BARE = "import sys; sys.modules |= dict.fromkeys({absent!r})\n"


def python(*words, **environment):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=ROOT,
        env=os.environ | environment,
    )


@pytest.mark.slow
def test_every_part_is_measured_on_a_cpu():
    done = python(SCRIPT, "--device", "cpu", "--minutes", 10)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"- torch: {torch.__version__}" in done.stdout
    _, *parts = re.split(r"^## ", done.stdout, flags=re.M)
    tables = dict(part.split("\n", 1) for part in parts)
    assert list(tables) == [
        *("The prior's square root", "Nested grids", "Sight lines, 4·10⁶ points"),
        *("One iteration of conjugate gradients", "Stages that solve neighbourhoods"),
        *("Mode and eight samples", "The published solve for every star"),
        "Several processes",
    ]
    assert "note" not in done.stdout
    names, _, *maps = tables["Mode and eight samples"].strip().splitlines()
    assert len(maps) == 3
    for line in maps:
        row = dict(zip(*(each.split(" | ") for each in (names, line)), strict=True))
        assert row["converged"] == "yes"
        assert float(row["RMSE [mag]"]) < float(row["scatter [mag]"])
    assert "2 ranks" in tables["Several processes"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("words", [[SCRIPT], ["-m", "pytest", "tests/gpu"]])
def test_without_cuda_it_is_said(words):
    done = python(*words, "--device", "cuda")
    assert done.returncode != 0
    assert "torch sees no CUDA device here" in done.stdout + done.stderr


def test_timings_need_the_mathematics_alone():
    program = BARE.format(absent=(*ABSENT, "pytest"))
    program += f"sys.path.insert(0, {str(SCRIPT.parent)!r}); import gpu"
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


def test_checks_need_the_mathematics_and_pytest_alone():
    few = "sight_lines or published or (neighbourhoods and systems)"
    program = BARE.format(absent=ABSENT)
    program += f"import pytest; sys.exit(pytest.main(['tests/gpu', '-k', {few!r}]))"
    done = python("-c", program, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == 0, done.stdout + done.stderr
