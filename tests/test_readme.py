"""What the README says exists, and its examples run."""

import doctest
import re
from pathlib import Path

import healpy
import numpy as np
import pytest
from click.testing import CliRunner
from documents import (
    ROOT,
    blocks,
    commands,
    given,
    missing_files,
    missing_names,
    options,
    require_command,
    require_settings,
)

from pipelines.catalog.presets import list_presets
from pipelines.catalog.schema import read_stars
from pipelines.cli import main
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import SkyMaps
from pipelines.formats.healpix import write_healpix
from pipelines.formats.zarr import write_zarr

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "scripts/docs/reference.md").read_text(encoding="utf-8")


DUSTMAP = commands(TEXT)
INLINE = sorted(set(re.findall(r"`dustmap ([a-z]+)`", TEXT)))


def test_the_readme_is_short_and_shows_the_commands():
    assert len(TEXT.splitlines()) <= 160
    assert len(DUSTMAP) > 8
    assert {words[1] for words in DUSTMAP} >= {"ingest", "fit", "export", "plot"}


def test_every_verb_has_its_row_in_the_reference():
    assert set(re.findall(r"^\| `dustmap ([a-z]+)` ", REFERENCE, re.M)) == set(
        main.commands
    )


@pytest.mark.parametrize("words", DUSTMAP, ids=" ".join)
def test_a_command_of_the_readme_exists_with_its_options(words):
    require_command(words)


@pytest.mark.parametrize("verb", INLINE)
def test_a_verb_in_the_text_exists(verb):
    assert CliRunner().invoke(main, [verb, "--help"]).exit_code == 0


def test_the_presets_and_settings_named_exist():
    presets = {name for words in DUSTMAP for name in given(words, "--preset")}
    assert presets
    assert presets <= set(list_presets())
    assert any(given(words, "--set") for words in DUSTMAP)
    assert require_settings(TEXT)


def test_every_option_in_the_text_belongs_to_some_verb():
    known = set().union(*map(options, main.commands))
    # Of pip.
    elsewhere = {"--index-url"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    assert named - known <= elsewhere


def test_every_file_linked_or_run_exists():
    linked = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    run = re.findall(r"(?<![\w/])(scripts/[\w.]+)", TEXT)
    assert len(linked) > 4
    assert len(run) > 4
    assert [name for name in [*linked, *run] if not (ROOT / name).exists()] == []
    assert missing_files(TEXT) == []
    assert missing_names(TEXT) == []


def test_figures_are_small():
    for figure in (ROOT / "notebooks" / "figures").iterdir():
        assert figure.stat().st_size < 300_000, figure.name


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with files of the names that the README uses."""
    monkeypatch.chdir(tmp_path)
    axis = np.arange(-2500.0, 2501.0, 50.0)
    z = np.arange(-600.0, 601.0, 50.0)
    mean = np.zeros((len(z), len(axis), len(axis)), dtype=np.float32)
    write_zarr("map.zarr", Cube(x=axis, y=axis, z=z, arrays={"mean": mean}))
    maps = np.zeros((2, healpy.nside2npix(16)))
    distances = np.array([500.0, 1000.0])
    write_healpix(
        "map.healpix.fits",
        SkyMaps(distances=distances, arrays={"mean": maps, "std": maps}),
    )
    rows = ["glon,glat,dist_pc,av,e_av,snr"]
    rows += [f"{36 * i},{i},{100 + 50 * i},0.{i},0.05,{18 + i}" for i in range(10)]
    Path("my_stars.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_the_ingest_command_of_the_readme_reads_such_a_file(desk):
    (words,) = [w for w in DUSTMAP if w[1] == "ingest" and "my_stars.csv" in w]
    result = CliRunner().invoke(main, words[1:])
    assert result.exit_code == 0, result.output
    stars = read_stars(desk / given(words, "-o")[0])
    assert len(stars) == 7 and stars.distance.min() >= 100


def test_the_python_examples_run(desk):
    examples = "\n".join(blocks(REFERENCE, "pycon"))
    test = doctest.DocTestParser().get_doctest(examples, {}, "README", "README.md", 0)
    assert test.examples
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0
