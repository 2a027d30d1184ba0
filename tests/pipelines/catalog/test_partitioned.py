"""A folder of partitions holds what one file would, by any number of threads."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import healpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_catalogue import MAP, write_csv

from pipelines.base.errors import InputError
from pipelines.catalog import formats, staging
from pipelines.catalog import ingest as ingestion
from pipelines.catalog.ingest import ingest
from pipelines.catalog.report import IngestReport
from pipelines.catalog.schema import Stars, read_stars
from pipelines.catalog.staging import Staging
from pipelines.run.status import status_of
from pipelines.storage.atomic import check_manifest
from pipelines.storage.digests import input_digests

ROWS = 6000
MAPS = ["ra=ra:deg", "dec=dec:deg", "parallax=p:mas", "parallax_error=pe:mas"]
MAPS += ["extinction=a:mag", "extinction_error=s:mag"]
Ingest = Callable[..., tuple[Stars, IngestReport]]
PLAIN = {"mappings": ["source_id=source_id"], "where": None}
# Kills itself after some rows, as an outage would.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from pipelines.catalog import formats
from pipelines.catalog.ingest import ingest

formats.ROWS_PER_BATCH = 300
maps, output = sys.argv[3:], Path(sys.argv[2])
seen = 0

def progress(rows):
    global seen
    seen += rows
    if seen > 3000:
        os.kill(os.getpid(), signal.SIGKILL)

ingest([Path(sys.argv[1])], output, mappings=maps, progress=progress, overwrite=True)
"""


def sky_order(stars: Stars) -> np.ndarray:
    return healpy.ang2pix(2**29, stars.l, stars.b, nest=True, lonlat=True)


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    """A folder of files with faulty rows, cut rows, and repeated stars far apart."""
    rng = np.random.default_rng(4)
    name = rng.permutation(ROWS)
    name[rng.permutation(ROWS)[:500]] = 7
    a = rng.normal(0.5, 0.3, ROWS)
    a[::50] = np.nan
    table = pa.table(
        {
            "source_id": name,
            "ra": rng.uniform(0, 360, ROWS),
            "dec": np.rad2deg(np.arcsin(rng.uniform(-1, 1, ROWS))),
            "p": rng.uniform(0.5, 5, ROWS),
            "pe": np.full(ROWS, 0.15),
            "a": a,
            "s": rng.uniform(0.02, 0.1, ROWS),
            "ruwe": np.where(rng.random(ROWS) < 0.1, 2.0, 1.0),
            "colour": rng.choice(np.array(["red", "blue"], dtype=object), ROWS),
        }
    )
    (tmp_path / "survey").mkdir()
    for part in range(12):
        piece = table.slice(500 * part, 500)
        pq.write_table(piece, tmp_path / "survey" / f"{part:02d}.parquet")
    return tmp_path / "survey"


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ingest:
    """Ingest in small batches and partitions, so that few rows make many."""
    monkeypatch.setattr(formats, "ROWS_PER_BATCH", 300)
    monkeypatch.setattr(ingestion, "STARS_PER_PARTITION", 200)

    def run(source: Path, name: str, **options) -> tuple[Stars, IngestReport]:
        chosen = {"mappings": MAPS, "where": "ruwe < 1.4", "keep": ["colour"]}
        report = ingest([source], tmp_path / name, **{**chosen, **options})
        return read_stars(tmp_path / name), report

    return run


def same(a: Stars, b: Stars) -> None:
    assert list(a.columns()) == list(b.columns()) and a.units == b.units
    for name, column in a.columns().items():
        np.testing.assert_array_equal(column, b.columns()[name], err_msg=name)


def test_a_folder_holds_the_rows_of_one_file_sorted_over_the_sky(
    survey: Path, taken: Ingest, tmp_path: Path
) -> None:
    one, counted = taken(survey, "one.parquet")
    folder, report = taken(survey, "stars")
    same(folder, one.select(np.argsort(sky_order(one), kind="stable")))
    assert report.faults == counted.faults and report.faults["source_id repeated"] > 300
    assert report.cuts == counted.cuts and len(report.cuts) == 2
    assert report.rows_kept == counted.rows_kept == len(folder)
    assert report.negative_extinctions == counted.negative_extinctions > 0
    assert set(counted.notes) < set(report.notes)
    assert folder.meta["report"]["rows_kept"] == report.rows_kept
    assert len(folder.meta["inputs"]) == 12
    # One file is in the order of the sources.
    files = pa.concat_tables(map(pq.read_table, sorted(survey.iterdir())))
    names = files["source_id"].to_numpy()
    assert (np.diff([np.argmax(names == n) for n in one.source_id if n != 7]) > 0).all()


@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), rows=st.integers(90, 900), files=st.integers(1, 4)
)
def test_any_order_of_rows_in_any_batches_gives_the_same_stars_and_counts(
    seed: int, rows: int, files: int
) -> None:
    rng, n = np.random.default_rng(7), 900
    name = rng.integers(0, 600, n)
    extinction = np.where(name < 300, 0.01, 20.0) * rng.uniform(0.5, 1.5, n)
    error = rng.uniform(0.01, 0.1, n)
    # Absurd beside the whole table's median, 20 mag: not beside that of faint stars.
    error[:40], error[40:45] = 1e-5, np.nan
    columns = {
        "source_id": name,
        "ra": rng.uniform(0, 360, n),
        "dec": rng.uniform(-90, 90, n),
        "p": rng.uniform(0.5, 5, n),
        "pe": np.full(n, 0.1),
        "a": extinction,
        "s": error,
    }
    order = np.random.default_rng(seed).permutation(n)
    shuffled = {name: column[order] for name, column in columns.items()}

    def taken(columns: dict[str, np.ndarray], files: int) -> tuple[Stars, IngestReport]:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(formats, "ROWS_PER_BATCH", rows)
            place = Path(folder, "survey")
            place.mkdir()
            for number, part in enumerate(np.array_split(np.arange(n), files)):
                table = pa.table({name: c[part] for name, c in columns.items()})
                pq.write_table(table, place / f"{number}.parquet")
            output = Path(folder, "stars.parquet")
            report = ingest([place], output, mappings=[*MAPS, "source_id=source_id"])
            stars = read_stars(output)
        return stars.select(np.argsort(stars.source_id)), report

    (whole, counted), (stars, report) = taken(columns, 1), taken(shuffled, files)
    same(whole, stars)
    assert report.faults == counted.faults and report.cuts == counted.cuts
    assert report.faults["extinction_error absurdly small"] == 40
    assert report.faults["source_id repeated"] > 200
    assert report.ranges == counted.ranges


@pytest.mark.parametrize("name", ["stars", "one.parquet"])
def test_two_threads_write_the_same_bytes_as_one(
    name: str, survey: Path, taken: Ingest, tmp_path: Path
) -> None:
    _, alone = taken(survey, f"a_{name}")
    _, together = taken(survey, f"b_{name}", workers=2)
    assert str(alone) == str(together)
    pair = [tmp_path / f"{which}_{name}" for which in "ab"]
    if pair[0].is_file():
        assert pair[0].read_bytes() == pair[1].read_bytes()
        return
    files = sorted(path.name for path in pair[0].iterdir())
    assert len(files) > 10
    for file in files:
        assert (pair[0] / file).read_bytes() == (pair[1] / file).read_bytes(), file


def test_an_ingest_that_was_killed_is_repeated_with_the_same_rows(
    survey: Path, taken: Ingest, tmp_path: Path
) -> None:
    whole = {"where": None, "keep": []}
    expected, _ = taken(survey, "stars", **whole)
    before = {path.name for path in tmp_path.iterdir()}
    (tmp_path / "again").mkdir()
    output = tmp_path / "again" / "stars"
    words = [sys.executable, "-c", PROGRAM, str(survey), str(output), *MAPS]
    killed = subprocess.run(words, env=dict(os.environ), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not output.exists()
    again, _ = taken(survey, "again/stars", **whole)
    same(again, expected)
    assert {path.name for path in tmp_path.iterdir()} == before | {"again"}


def test_partitions_are_small_in_order_and_read_only_as_they_were_written(
    survey: Path, taken: Ingest, tmp_path: Path
) -> None:
    taken(survey, "stars")
    parts = sorted((tmp_path / "stars").glob("*.parquet"))
    last = -1
    for path in parts:
        assert 0 < pq.read_metadata(path).num_rows <= 200
        place = sky_order(read_stars(path))
        assert (np.diff(place) >= 0).all() and place[0] >= last
        last = place[-1]
    assert len(check_manifest(tmp_path / "stars")) == len(parts) + 1
    for change, match in (
        (lambda folder: (folder / parts[3].name).unlink(), "missing"),
        (lambda folder: os.truncate(folder / parts[3].name, 99), "altered"),
        (lambda folder: shutil.copy(parts[3], folder / "z.parquet"), "not written"),
        (lambda folder: (folder / "COMPLETE").unlink(), "incomplete"),
    ):
        copy = tmp_path / match
        shutil.copytree(tmp_path / "stars", copy)
        change(copy)
        with pytest.raises(InputError, match=match):
            read_stars(copy)


def test_names_are_compared_whole_and_capitals_matter(tmp_path: Path) -> None:
    columns = {name: np.linspace(10, 80, 8) for name in ("l", "b")}
    columns |= {"distance": np.linspace(100, 900, 8), "extinction": np.ones(8)}
    columns["extinction_error"] = np.full(8, 0.1)
    columns["L"] = np.arange(8)
    columns["l "] = np.array(["x", "X"] * 4, dtype=object)
    names = ["a", "A", "a ", "é", "e", "a", "", "b" * 300]
    columns["source_id"] = np.array(names, dtype=object)
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), source)
    options = {"mappings": MAP, "keep": ["L", "l "]}
    report = ingest([source], tmp_path / "o.parquet", **options)
    stars = read_stars(tmp_path / "o.parquet")
    assert report.faults == {"source_id repeated": 1}
    assert list(stars.source_id) == [n for i, n in enumerate(names) if i != 5]
    assert list(stars.extra) == ["L", "l "] and stars.extra["L"].dtype == np.int64


def test_want_of_memory_is_an_error_and_leaves_nothing(
    survey: Path, taken: Ingest, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(staging, "MEMORY", 1)
    with pytest.raises(RuntimeError, match="fewer --workers"):
        taken(survey, "stars")
    assert [path.name for path in tmp_path.iterdir()] == ["survey"]


def test_rows_beyond_the_memory_are_sorted_on_disk(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(staging, "MEMORY", 64)
    rng, n, found = np.random.default_rng(0), 100_000, []
    for threads in (1, 2):
        (folder := tmp_path / str(threads)).mkdir()
        with Staging(folder, threads) as stars:
            for file in range(8):
                columns = {
                    "source_id": rng.permutation(n) + (n - 10) * file,
                    "l": rng.uniform(0, 360, n),
                    "b": rng.uniform(-90, 90, n),
                    "distance": rng.uniform(10, 20, n),
                }
                columns |= {f"x{i}": rng.uniform(0, 1, n) for i in range(12)}
                stars.add(
                    np.arange(n),
                    columns,
                    file=file,
                    catalogue=file // 4,
                    suspects={},
                )
            repeats = stars.drop_repeats(across=False)
            assert repeats == (60, 10, {(0, 1): 10})
            digest = hashlib.sha256()
            for part in stars.partitions(70_000):
                digest.update(part["x3"].to_numpy().tobytes())
            found.append((stars.quantiles("distance", (1, 50, 99)), digest.hexdigest()))
        rng = np.random.default_rng(0)
    assert found[0] == found[1]


def test_hidden_files_beside_partitions_are_no_part_of_the_table(
    survey: Path, taken: Ingest, tmp_path: Path
) -> None:
    stars, _ = taken(survey, "stars")
    before = input_digests(tmp_path / "stars")
    for folder in (survey, tmp_path / "stars"):
        for name in (".DS_Store", "._part-00000.parquet", ".hidden.parquet"):
            (folder / name).write_bytes(b"\0Bud1")
    same(read_stars(tmp_path / "stars"), stars)
    assert input_digests(tmp_path / "stars") == before
    assert status_of(tmp_path / "stars")["state"] == "finished"
    same(taken(tmp_path / "stars", "again.parquet", **PLAIN)[0], stars)
    same(taken(survey, "more")[0], stars)


def test_only_a_folder_of_stars_is_replaced(catalogue, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "a.csv", catalogue)
    ingest([source], tmp_path / "o", mappings=MAP)
    with pytest.raises(InputError, match="--overwrite"):
        ingest([source], tmp_path / "o", mappings=MAP)
    ingest([source], tmp_path / "o", mappings=MAP, overwrite=True)
    with pytest.raises(InputError, match="holds no COMPLETE"):
        ingest([source], tmp_path, mappings=MAP, overwrite=True)
    assert source.exists()
