"""Every script parses, starts, and is known to some test."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


def first_line(path):
    return path.read_text(encoding="utf-8").partition("\n")[0]


FILES = sorted(p for p in SCRIPTS.rglob("*") if p.is_file() and p.suffix != ".pyc")
SHELL = [p for p in FILES if "bash" in first_line(p)]


def call(*arguments, **options):
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    environment.update(options.pop("env", {}))
    return subprocess.run(
        [str(argument) for argument in arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        **options,
    )


@pytest.mark.parametrize("path", [*SHELL, ROOT / ".ci" / "run"], ids=str)
def test_shell_scripts_parse_and_stop_at_the_first_failure(path):
    done = call("bash", "-n", path)
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    assert "set -euo pipefail" in text or "exec " in text


def test_every_dependency_is_pinned_exactly():
    lines = (SCRIPTS / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line.strip() and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.\[\]-]+==[\w.+]+(\s*;.*)?", pin) for pin in pins)
    assert any(pin.startswith("torch==2.13.0") for pin in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(each for part in parts for each in part)]
    names = {re.split(r"==", pin)[0].lower().replace("_", "-") for pin in pins}
    for requirement in wanted:
        name = re.split(r"[><=\[]", requirement)[0].lower().replace("_", "-")
        assert name in {*names, "dustmap"}, f"{name} has no pin"


def test_pins_hold_from_the_oldest_python_on():
    pins = (SCRIPTS / "constraints.txt").read_text()
    assert "python_full_version" in pins and "://" not in pins
    assert "install $resolves" in (SCRIPTS / "test").read_text()
    assert call(SCRIPTS / "install", "--chek", cwd=ROOT).returncode == 2


WITHOUT_EXTRAS = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {missing}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from pipelines.cli import main
for verb in main.commands:
    main([verb, "--help"], standalone_mode=False)
"""


def test_every_verb_starts_without_the_extras():
    missing = {"plotly", "dust_extinction", "dustmaps", "pyvista", "xarray"}
    done = call(sys.executable, "-c", WITHOUT_EXTRAS.format(missing=missing), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") >= 12


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo at a small size, in a copy whose installation is this interpreter's."""
    copy = tmp_path_factory.mktemp("copy")
    (copy / "scripts").mkdir()
    for path in FILES:
        if path.name.startswith("demo"):
            shutil.copy(path, copy / "scripts")
    (copy / "scripts" / "install").write_text("#!/bin/sh\n")
    (copy / "scripts" / "install").chmod(0o755)
    (copy / ".venv").symlink_to(sys.prefix)
    small = "box.spacing=200 inference.learn=false "
    small += "inference.samples=4"
    done = call(
        copy / "scripts" / "demo",
        cwd=copy,
        env={"DUSTMAP_DEMO_STARS": "2000", "DUSTMAP_DEMO_FIT": small},
    )
    assert done.returncode == 0, done.stderr
    return copy / "demo", done


@pytest.mark.slow
def test_the_demo_ends_with_a_summary_against_the_truth(demo):
    _, done = demo
    summary = done.stdout.partition("== the map against the truth")[2]
    for part in (
        "held-out extinction",
        "RMSE",
        "correlation",
        "68% intervals hold",
        "95% intervals hold",
        "GiB at the peak",
        "files: ",
    ):
        assert part in summary
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_demo_leaves_map_files_figures_and_truth(demo):
    folder, _ = demo
    maps = ("run/map.zarr", "run/map.fits", "run/map.healpix.fits")
    for name in ("truth.zarr", "run", *maps, "map.html"):
        assert (folder / name).exists()
    assert len(list((folder / "figures").glob("*.png"))) == 5
