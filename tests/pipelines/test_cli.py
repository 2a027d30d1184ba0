"""The contract of the command line: verbs, options, exit codes, messages."""

import json
import os
import re
import shutil
import subprocess
import sys

import click
import numpy as np
import pytest
from PIL import Image

from pipelines.catalog.presets import list_presets, load_preset
from pipelines.catalog.schema import Stars, read_stars, read_table, write_stars
from pipelines.cli import main
from pipelines.config import FitConfig, load_config
from pipelines.cubes.cube import truth_extinction
from pipelines.formats.zarr import read_zarr
from pipelines.query import open_map
from pipelines.run.folder import read_run
from pipelines.run.verdict import Grade, Verdict

VERBS = tuple(main.commands)
QUICK = "--set inference.learn=false --set box.spacing=200 --set inference.samples=2"


def furnish(folder, chain):
    """Put sound and unsound files of every kind into a working folder."""
    for name in ("stars.parquet", "mock.parquet", "run"):
        (folder / name).symlink_to(chain.folder / name)
    stars = read_stars(folder / "stars.parquet")
    write_stars(folder / "few.parquet", stars.select(slice(4)), overwrite=False)
    places = Stars(l=stars.l, b=stars.b, distance=stars.distance)
    write_stars(folder / "positions.parquet", places, overwrite=False)
    (folder / "text.csv").write_text("a,b\n1,2\n")
    (folder / "notes").mkdir()
    (folder / "notes" / "diary.txt").write_text("dear diary\n")
    for name in ("unfinished", "altered"):
        shutil.copytree(chain.folder / "run", folder / name)
    (folder / "unfinished" / "COMPLETE").unlink()
    with (folder / "altered" / "metrics.jsonl").open("a") as stream:
        stream.write("{}\n")
    return folder


@pytest.fixture(scope="module")
def untouched(tmp_path_factory, chain):
    return furnish(tmp_path_factory.mktemp("untouched"), chain)


@pytest.fixture
def desk(tmp_path, monkeypatch, chain):
    monkeypatch.chdir(tmp_path)
    return furnish(tmp_path, chain)


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_gives_a_purpose_to_it_and_to_every_option(command, verb):
    result = command(f"{verb} --help")
    assert result.exit_code == 0 and verb in command("--help").output
    assert max(map(len, result.output.splitlines())) <= 80
    assert main.commands[verb].help
    options = [p for p in main.commands[verb].params if isinstance(p, click.Option)]
    for option in options:
        assert option.opts[-1] in result.output
        assert option.help or option.name in ("form", "dpi", "seed"), option.opts
        with click.Context(main.commands[verb], show_default=True) as context:
            _, said = option.get_help_record(context)
        assert said.count("default:") <= 1, said


@pytest.mark.parametrize(("verb", "headings"), [("query", 5)])
def test_many_options_stand_under_headings_each_once(command, verb, headings):
    _, *parts = re.split(r"\n(?=\S.*:\n  )", command(f"{verb} --help").output)
    assert len(parts) >= headings
    listed = re.findall(r"\n  (?:-\w, )?(--[\w-]+)", "".join(parts))
    options = [p for p in main.commands[verb].params if isinstance(p, click.Option)]
    names = [next(o for o in p.opts if o.startswith("--")) for p in options]
    assert sorted(listed) == sorted([*names, "--help"])


@pytest.mark.parametrize("kind", ["UserWarning", "astropy.wcs.FITSFixedWarning"])
def test_a_warning_of_a_library_is_a_note_of_one_line(kind):
    # In a process of its own, whose warnings pytest does not catch.
    code = (
        "import click\nfrom pipelines.cli.reporting import reporting\n"
        "@click.command()\n@reporting\ndef verb():\n"
        "    import warnings, astropy.wcs\n"
        f"    warnings.warn('more axes (2)\\n  than (0)', {kind})\nverb()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == "note: more axes (2) than (0)\n"


def test_help_of_fit_names_five_keys_that_it_takes(command):
    keys = re.findall(r"\n    (\w+\.\w+=\S+)", command("fit --help").output)
    assert len(keys) == 5
    assert load_config(FitConfig, None, keys) != FitConfig()


def test_help_of_ingest_names_every_preset_with_its_survey(command):
    _, presets = command("ingest --help").output.split("Presets:")
    said = "".join(presets.split())  # Lines may be broken anywhere.
    for name in list_presets():
        assert name + load_preset(name).title.replace(" ", "") in said


MISTAKES = {
    "fit text.csv -o x": "use `dustmap ingest`",
    "fit positions.parquet -o x": "has positions only",
    "fit few.parquet -o x": "4 usable stars, a map needs at least 5",
    "fit stars.parquet -o run": "run exists: choose another output",
    "fit stars.parquet -o text.csv --overwrite": "text.csv holds no run.json",
    "fit stars.parquet -o absent/x": "absent is not a folder",
    "fit stars.parquet -o x --set prior.std=wide": "prior.std: input",
    "fit stars.parquet -o x --set box.x=[-9,9] --set box.y=[-9,9] --set box.z=[-9,9]": (
        "stars to fit lie in the box"
    ),
    "fit stars.parquet -o x --set box.spacing=0.1": ("in a box of"),
    "fit stars.parquet": "Missing option '-o'",
    "predict notes stars.parquet -o x": "notes is not a run folder",
    "predict unfinished stars.parquet -o x": "unfinished is incomplete",
    "predict altered stars.parquet -o x": "altered: metrics.jsonl",
    "predict run text.csv -o x.fits": "text.csv gives no position",
    "export run --zarr notes --overwrite": "notes holds no COMPLETE",
    "export run --fits x --healpix ./x": "name the same path",
    "export run --healpix x --nside 3": "nside must be a power of 2, got 3",
    "export run --healpix x --distances 100,far": "'far' is no length",
    "export run --healpix x --distances 100,1e9": "no sight line is still inside",
    "plot absent -o x": "absent does not exist",
    "plot run -o text.csv": "text.csv is a file",
    "compare run stars.parquet -o x --query mode": "KEY=VALUE",
    "status altered": "not what was written",
    "simulate -o x --stars 0": "greater than or equal to 1, got 0",
    "ingest mock.parquet --preset moc -o x": "there is no preset 'moc'",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_explained_with_exit_2_and_leaves_no_file(
    command, untouched, monkeypatch, line
):
    monkeypatch.chdir(untouched)
    before = sorted(untouched.rglob("*"))
    result = command(line)
    assert result.exit_code == 2, result.output
    assert MISTAKES[line] in result.output
    assert sorted(untouched.rglob("*")) == before


@pytest.mark.parametrize(
    "fault",
    [
        OSError(28, "No space left on device"),
        MemoryError("8 GiB"),
        RuntimeError("odd"),
        KeyError("column"),
    ],
)
def test_what_is_nobodys_mistake_fails_with_exit_1_and_one_line(
    command, desk, monkeypatch, fault
):
    def fail(*args, **kwargs):
        raise fault

    monkeypatch.setattr("pipelines.query.table.write_answers", fail)
    result = command("predict run stars.parquet -o x.csv")
    assert result.exit_code == 1
    assert result.output.startswith("dustmap: failed: ")
    assert str(fault) in result.output and len(result.output.splitlines()) == 1


@pytest.mark.slow
def test_the_installed_program_replaces_a_run_and_exports_go_into_it(
    command, desk, chain
):
    (desk / "run").unlink()
    shutil.copytree(chain.folder / "run", desk / "run")
    first = (desk / "run" / "run.json").read_bytes()
    line = f"fit stars.parquet -o run {QUICK}"
    assert command(line).exit_code == 2
    assert (desk / "run" / "run.json").read_bytes() == first
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *line.split(), "--overwrite"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert (desk / "run" / "run.json").read_bytes() != first
    # Plain lines where there is no terminal.
    assert "\r" not in done.stderr and "\x1b" not in done.stderr
    told = re.findall(r"stage (\d) of 9: .*, \d+ s so far$", done.stderr, re.M)
    numbers = [int(number) for number in told]
    assert numbers == sorted(numbers) and set(numbers) == set(range(1, 10))
    assert not re.search(r"\bmisfit|\bnats\b(?! \()", done.stderr + done.stdout)
    assert "grid: " in done.stderr and "memory: " in done.stderr
    *_, run, verdict = done.stdout.splitlines()
    assert run == "run: run" and verdict.startswith(("Usable", "Not usable"))
    result = command("export run --nside 8 --distances 100,300")
    assert result.exit_code == 0
    for name in ("map.zarr", "map.fits", "map.healpix.fits"):
        assert (desk / "run" / name).exists()
    assert command("export run --nside 8").exit_code == 2
    assert "files match" in command("status run").output
    plotted = command("plot run -o drawn --kind sky")
    assert "sky maps" not in plotted.output, "the stored maps were not used"


def test_the_chain_finds_extinctions_far_better_than_their_mean(chain):
    columns, _, _ = read_table(chain.folder / "predicted.parquet")
    mock, _, _ = read_table(chain.folder / "mock.parquet")
    # At the places that were asked for, which are those that were measured.
    truth = read_zarr(chain.folder / "truth.zarr")
    true = truth_extinction(truth, mock["l"], mock["b"], columns["distance"])
    known = np.isfinite(true)
    error = (columns["extinction_mean"] - true)[known]
    assert known.mean() > 0.9
    assert np.sqrt(np.mean(error**2)) < 0.6 * true[known].std()


def test_the_chain_finds_where_the_dust_is(chain):
    truth = read_zarr(chain.folder / "truth.zarr")
    cube = read_zarr(chain.folder / "map.zarr")
    z, y, x = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
    true = truth.sample("density", np.stack([x, y, z], axis=-1))
    known = np.isfinite(true) & (cube.arrays["support"] > 0)
    assert np.corrcoef(true[known], cube.arrays["mean"][known])[0, 1] > 0.4


@pytest.mark.parametrize(
    ("grade", "required", "status"),
    [
        ("usable", "usable", 0),
        ("with care", "usable", 1),
        ("with care", "care", 0),
        ("not usable", "care", 1),
    ],
)
def test_a_verdict_that_is_required_decides_the_status_of_whole_files(
    command, desk, monkeypatch, grade, required, status
):
    judged = Verdict(grade=Grade(grade), reason="so", advice="do")
    monkeypatch.setattr("pipelines.fit.writing.verdict", lambda *_: judged)
    done = command(f"fit stars.parquet -o run --resume --require {required}")
    assert done.exit_code == status and str(judged) in done.output
    assert (f"--require {required}" in done.output) is bool(status)
    assert command("status run").exit_code == 0


def test_one_verdict_stands_in_the_run_its_exports_and_figures(chain):
    folder = chain.folder
    sentence = str(read_run(folder / "run").verdict)
    said = json.loads((folder / "run" / "run.json").read_text())["summary"]
    assert said["verdict"] == sentence and said["grade"] in list(Grade)
    assert sentence in chain.said["fit"]
    assert open_map(folder / "run").verdict == sentence
    # Exports have a verdict on their own predictions.
    for name in ("run", "map.zarr", "map.fits", "map.healpix.fits"):
        found = open_map(folder / name)
        assert found.verdict.lower().startswith(("usable", "not usable"))
        assert found.verdict in repr(found)
    with Image.open(folder / "figures" / "sky.png") as figure:
        assert figure.text["Description"] == sentence
