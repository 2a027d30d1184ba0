"""Every script parses, starts, and is known to some test."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from pipelines.config import FitConfig

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


def first_line(path):
    return path.read_text(encoding="utf-8").partition("\n")[0]


FILES = sorted(p for p in SCRIPTS.rglob("*") if p.is_file() and p.suffix != ".pyc")
SHELL = [p for p in FILES if "bash" in first_line(p)]
# What others import is no program: programs say where they begin.
PROGRAMS = [
    p
    for p in FILES
    if p.suffix == ".py"
    and '"__main__"' in p.read_text()
    and ("ArgumentParser" in p.read_text() or "from report import" in p.read_text())
]


def name_of(path):
    return path.relative_to(SCRIPTS).as_posix()


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


def test_every_shell_script_is_found_and_may_be_executed():
    assert {"demo", "install", "test"} <= {name_of(path) for path in SHELL}
    for path in SHELL:
        assert path.suffix or os.access(path, os.X_OK), f"chmod +x {path}"


@pytest.mark.parametrize("path", [*SHELL, ROOT / ".ci" / "run"], ids=str)
def test_shell_scripts_parse_and_stop_at_the_first_failure(path):
    done = call("bash", "-n", path)
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    assert "set -euo pipefail" in text or "exec " in text


@pytest.mark.parametrize("path", PROGRAMS, ids=name_of)
def test_programs_start_and_explain_themselves(path):
    done = call(sys.executable, path, "--help", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout and len(done.stdout.splitlines()) > 4


def test_pre_commit_calls_the_commands_of_scripts_test():
    configuration = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repository,) = configuration["repos"]
    assert repository["repo"] == "local"
    tested = (SCRIPTS / "test").read_text()
    tools = {hook["entry"].split()[0] for hook in repository["hooks"]}
    assert tools == {f".venv/bin/{n}" for n in ("ruff", "basedpyright", "lint-imports")}
    for tool in tools:
        assert f"$bin/{Path(tool).name} " in tested + " "


def test_ci_calls_scripts_test_with_at_most_a_browser_before():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands[-1].startswith("exec") and "scripts/test" in commands[-1]
    assert all("chromium" in line for line in commands[:-1])


def test_every_dependency_is_pinned_exactly():
    lines = (SCRIPTS / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line.strip() and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.\[\]-]+==[\w.+]+(\s*;.*)?", pin) for pin in pins)
    assert any(pin.startswith("torch==2.13.0") for pin in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    parts = (extras[name] for name in extras if name != "bench")
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
    missing = {"plotly", "dust_extinction", "dustmaps", "mwdust", "pyvista", "xarray"}
    done = call(sys.executable, "-c", WITHOUT_EXTRAS.format(missing=missing), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") > 12


def test_the_wheel_has_three_top_level_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["dustmap", "pipelines", "catalogs"]}


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


def test_the_demo_leaves_map_files_figures_and_truth(demo):
    folder, _ = demo
    maps = ("run/map.zarr", "run/map.fits", "run/map.healpix.fits")
    for name in ("truth.zarr", "run", *maps, "report.html"):
        assert (folder / name).exists()
    assert len(list((folder / "figures").glob("*.png"))) == 5


def test_the_demo_at_full_size_is_as_large_as_it_claims():
    config = FitConfig.model_validate(
        tomllib.loads((SCRIPTS / "demo.toml").read_text())
    )
    box, spacing = config.box, config.box.spacing
    assert box.x is not None and box.y is not None and box.z is not None
    assert spacing is not None
    sides = zip((box.x, box.y, box.z), spacing, strict=True)
    points = 1
    for (low, high), step in sides:
        points *= -(-(high - low) // step) + 1
    assert points >= 100_000
    stars = re.search(r"DUSTMAP_DEMO_STARS:-(\d+)", (SCRIPTS / "demo").read_text())
    assert stars is not None and int(stars.group(1)) >= 50_000
