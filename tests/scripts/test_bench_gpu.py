"""The benchmark of a device, at its small size on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
# Not on a machine that has the mathematics alone.
ABSENT = (
    "astropy", "click", "h5py", "healpy", "matplotlib", "pipelines", "psutil",
    "pyarrow", "pydantic", "pytest", "safetensors", "tqdm", "zarr",
)  # fmt: skip


def gpu(*arguments):
    command = [BENCH / "gpu.sh", *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=1200,
        env=os.environ | {"PYTHON": sys.executable},
    )


@pytest.mark.slow
def test_every_part_is_measured_on_a_cpu(tmp_path):
    done = gpu("--device", "cpu", "--minutes", 20, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "gpu.json").read_text())
    rows = content["rows"]
    parts = ["checks", "whitening", "levels", "sight_lines", "iteration"]
    parts += ["stages", "inference", "rows", "ranks"]
    assert list(dict.fromkeys(row["part"] for row in rows)) == parts
    assert not [row for row in rows if "note" in row]
    maps = [row for row in rows if row["part"] == "inference"]
    assert all(row["converged"] for row in maps)
    assert all(row["RMSE [mag]"] < row["scatter [mag]"] for row in maps)
    page = (tmp_path / "gpu.md").read_text()
    assert all(f"## {part.replace('_', ' ')}" in page for part in parts)
    assert content["machine"]["torch"] == torch.__version__


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_it_says_so_and_ends_well(tmp_path):
    done = gpu("--out", tmp_path / "none")
    assert done.returncode == 0 and "no CUDA" in done.stdout
    assert not (tmp_path / "none").exists()


def test_it_needs_the_mathematics_alone():
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT!r}:
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Absent())
sys.path.insert(0, {str(BENCH)!r})
import gpu_checks, gpu_maps, gpu_parts, gpu_ranks, gpu_stages, gpu_table
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
