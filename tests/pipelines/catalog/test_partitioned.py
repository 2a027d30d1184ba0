"""A folder of partitions holds what one file would, whoever wrote it."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hats_tree import write_hats
from small_catalogue import MAP, write_csv

from pipelines.base.errors import InputError
from pipelines.catalog import ingest as ingestion
from pipelines.catalog import repeats, valid_rows
from pipelines.catalog.ingest import ingest
from pipelines.catalog.report import IngestReport
from pipelines.catalog.schema import Stars, read_stars, write_stars
from pipelines.catalog.sorted_runs import sky_order
from pipelines.verify import verify

ROWS = 6000
MAPS = ["ra=ra:deg", "dec=dec:deg", "parallax=p:mas", "parallax_error=pe:mas"]
MAPS += ["extinction=a:mag", "extinction_error=s:mag"]
Ingest = Callable[..., tuple[Stars, IngestReport]]


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    """A HATS catalogue with faulty rows, cut rows, and repeated stars far apart."""
    rng = np.random.default_rng(4)
    name = rng.permutation(ROWS)
    name[rng.permutation(ROWS)[:500]] = 7
    a = rng.normal(0.5, 0.3, ROWS)
    a[::50] = np.nan
    return write_hats(
        tmp_path / "survey",
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
        },
    )


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ingest:
    """Ingest in small pieces and partitions, so that few rows make many."""
    monkeypatch.setattr(valid_rows, "ROWS_PER_PIECE", 300)
    monkeypatch.setattr(ingestion, "STARS_PER_PARTITION", 200)
    monkeypatch.setattr(repeats, "_HASHES_AT_ONCE", 700)

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
    survey: Path, taken: Ingest
) -> None:
    one, counted = taken(survey, "one.parquet")
    folder, report = taken(survey, "stars")
    order = np.argsort(sky_order(one.l, one.b), kind="stable")
    same(folder, one.select(order))
    assert report.faults == counted.faults and report.faults["source_id repeated"] > 300
    assert report.cuts == counted.cuts and len(report.cuts) == 2
    assert report.rows_kept == counted.rows_kept == len(folder)
    assert report.negative_extinctions == counted.negative_extinctions > 0
    assert set(counted.notes) < set(report.notes)


def test_two_processes_write_the_same_bytes_as_one(
    survey: Path, taken: Ingest, tmp_path: Path
) -> None:
    _, alone = taken(survey, "alone")
    _, together = taken(survey, "together", workers=2)
    assert str(alone) == str(together)
    files = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert len(files) > 40
    for name in files:
        written = [(tmp_path / f / name).read_bytes() for f in ("alone", "together")]
        assert written[0] == written[1], name


def test_a_worker_that_dies_is_an_error_and_leaves_nothing(
    survey: Path, taken: Ingest, tmp_path: Path
) -> None:
    def kill_one(_: int) -> None:
        multiprocessing.active_children()[0].kill()

    with pytest.raises(RuntimeError, match="a worker process died"):
        taken(survey, "stars", workers=2, progress=kill_one)
    assert {path.name for path in tmp_path.iterdir()} == {"survey"}


def test_partitions_are_of_bounded_size_and_stand_in_the_order_of_the_sky(
    survey: Path, taken: Ingest, tmp_path: Path
) -> None:
    taken(survey, "stars")
    parts = sorted((tmp_path / "stars").glob("*.parquet"))
    last = -1
    for path in parts:
        table = pq.read_table(path)
        assert 0 < len(table) <= 200
        written = pq.read_metadata(path).metadata[b"dustmap"]
        meta = json.loads(written)["meta"]
        place = sky_order(table["l"].to_numpy(), table["b"].to_numpy())
        assert (np.diff(place) >= 0).all() and place[0] > last
        assert (place >> 2 * (29 - meta["order"]) == meta["pixel"]).all()
        last = place[-1]
    said = verify(tmp_path / "stars")
    assert "folder of partitions" in said and said.count("in full") == len(parts)
    parts[0].unlink()
    with pytest.raises(InputError, match=f"missing: {parts[0].name}"):
        verify(tmp_path / "stars")


def test_provenance_is_that_of_the_folder(
    survey: Path, taken: Ingest, tmp_path: Path
) -> None:
    stars, report = taken(survey, "stars")
    assert stars.meta["report"]["rows_kept"] == report.rows_kept
    assert len(stars.meta["inputs"]) == 12
    assert all(len(item["sha256"]) == 64 for item in stars.meta["inputs"])


@pytest.mark.parametrize("damage", ["delete", "truncate", "add", "unmark"])
def test_a_changed_folder_is_not_read(
    damage: str, survey: Path, taken: Ingest, tmp_path: Path
) -> None:
    taken(survey, "stars")
    part = sorted((tmp_path / "stars").glob("*.parquet"))[3]
    if damage == "delete":
        part.unlink()
    elif damage == "truncate":
        part.write_bytes(part.read_bytes()[:-1])
    elif damage == "add":
        part.with_name("zzz.parquet").write_bytes(part.read_bytes())
    else:
        (tmp_path / "stars" / "COMPLETE").unlink()
    with pytest.raises(InputError, match=r"missing|altered|not written|incomplete"):
        read_stars(tmp_path / "stars")


def test_any_format_fills_a_folder(catalogue, taken: Ingest, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "a.csv", catalogue)
    options = {"mappings": MAP, "where": None, "keep": []}
    stars, report = taken(source, "stars", **options)
    order = np.argsort(sky_order(catalogue["l"], catalogue["b"]))
    np.testing.assert_array_equal(stars.source_id, catalogue["source_id"][order])
    assert report.rows_kept == 20


def test_sources_that_do_not_fit_together_are_refused(
    catalogue, tmp_path: Path
) -> None:
    a = write_csv(tmp_path / "a.csv", catalogue)
    names = np.array([f"star {i}" for i in range(20)])
    b = write_csv(tmp_path / "b.csv", {**catalogue, "source_id": names})
    with pytest.raises(InputError, match=r"b\.csv: source_id is text here"):
        ingest([a, b], tmp_path / "o", mappings=MAP)
    del catalogue["source_id"]
    c = write_csv(tmp_path / "c.csv", catalogue)
    with pytest.raises(InputError, match="do not fit together"):
        ingest([a, c], tmp_path / "o", mappings=MAP)
    assert not (tmp_path / "o").exists()


def test_mostly_faulty_input_leaves_nothing(catalogue, tmp_path: Path) -> None:
    catalogue["distance"][:15] = -1
    source = write_csv(tmp_path / "a.csv", catalogue)
    with pytest.raises(InputError, match="15 of 20 rows are faulty"):
        ingest([source], tmp_path / "o", mappings=MAP)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_only_a_folder_of_stars_is_replaced(catalogue, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "a.csv", catalogue)
    ingest([source], tmp_path / "o", mappings=MAP)
    with pytest.raises(InputError, match="--overwrite"):
        ingest([source], tmp_path / "o", mappings=MAP)
    ingest([source], tmp_path / "o", mappings=MAP, overwrite=True)
    with pytest.raises(InputError, match="other things in it"):
        ingest([source], tmp_path, mappings=MAP, overwrite=True)
    assert source.exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"workers": 0}, "at least 1"),
        ({"workers": 2}, "name a folder"),
        ({"merge": "8,10"}, "name a folder"),
    ],
)
def test_one_file_is_written_by_one_process(
    options, match: str, catalogue, tmp_path: Path
) -> None:
    source = write_csv(tmp_path / "a.csv", catalogue)
    with pytest.raises(InputError, match=match):
        ingest([source], tmp_path / "o.parquet", mappings=MAP, **options)


def test_stars_are_merged_on_the_way_in(tmp_path: Path, taken: Ingest) -> None:
    rng = np.random.default_rng(3)
    n = 5000
    stars = Stars(
        l=rng.uniform(0, 90, n),
        b=rng.uniform(-20, 20, n),
        distance=rng.uniform(100, 1000, n),
        extinction=np.full(n, 0.5),
        extinction_error=np.full(n, 0.1),
    )
    write_stars(tmp_path / "all.parquet", stars, overwrite=False)
    plain = {"mappings": (), "where": None, "keep": []}
    merged, report = taken(tmp_path / "all.parquet", "merged", merge="16,9", **plain)
    finer, _ = taken(tmp_path / "all.parquet", "finer", merge="16,111pc", **plain)
    assert merged.extra["members"].sum() == n and len(merged) < 0.9 * n
    np.testing.assert_allclose(
        merged.extinction_error, 0.1 / np.sqrt(merged.extra["members"]), rtol=1e-9
    )
    assert merged.source_id is None and merged.meta["merge"] == "16,9"
    assert f"{len(merged):,} pseudo-observations" in str(report)
    assert abs(len(finer) - len(merged)) < 0.05 * n
    with pytest.raises(InputError, match="merged already"):
        taken(tmp_path / "merged", "again", merge="16,9", **plain)
    with pytest.raises(InputError, match="cannot be merged"):
        taken(tmp_path / "all.parquet", "x", merge="8,9", positions_only=True, **plain)
