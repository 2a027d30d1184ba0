"""The workflow from a catalogue to pictures makes again what is not whole."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SNAKEFILE = Path(__file__).resolve().parents[2] / "scripts/workflow/Snakefile"
FIT = "--set box.spacing=400 --set inference.samples=2"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("snakemake") is None, reason="needs snakemake"),
]


def workflow(folder: Path) -> str:
    """One run of it in the folder, and what it said."""
    words = ["snakemake", "-s", SNAKEFILE, "-c", "1", "-C", "source=mock.parquet"]
    words += ["out=map", f"fit={FIT}", "export=--nside 4", "plot=--nside 4"]
    # The program of this environment, whichever snakemake is of.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_only_what_is_whole_is_skipped(tmp_path):
    words = [sys.executable, "-m", "pipelines.cli", "simulate", "--stars", "400"]
    subprocess.run([*words, "-o", "mock.parquet"], cwd=tmp_path, check=True)
    workflow(tmp_path)
    made = tmp_path / "map"
    state = made / "run" / "posterior.safetensors"
    first, content = state.stat().st_mtime_ns, state.read_bytes()
    cube = (made / "map.zarr").stat().st_mtime_ns

    workflow(tmp_path)
    assert state.stat().st_mtime_ns == first
    assert (made / "map.zarr").stat().st_mtime_ns == cube

    flip(made / "map.zarr" / "zarr.json")
    assert "altered: zarr.json" in workflow(tmp_path)
    assert state.stat().st_mtime_ns == first

    flip(state)
    workflow(tmp_path)
    assert state.read_bytes() == content
    assert len(list(made.glob("run.aside.*"))) == 1
    assert not (made / ".steps").exists()
    assert (made / "map.html").stat().st_size > 2_000_000
