"""`dustmap compare`: what a reference is taken for, and the folder it makes."""

from __future__ import annotations

import csv
import dataclasses
import json

import numpy as np
import one_cloud
import pytest
from matplotlib.image import imread

from pipelines.base.errors import InputError
from pipelines.catalog.schema import write_stars
from pipelines.compare.comparison import Comparison
from pipelines.compare.references import kind_of
from pipelines.verify import verify


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with references of every kind."""
    monkeypatch.chdir(tmp_path)
    write_stars("new.parquet", one_cloud.catalogue(60, seed=9), overwrite=False)
    rows = [f"18,-9,{dm},{0.01 * dm}" for dm in np.arange(5.0, 10.0, 0.5)]
    (tmp_path / "lines.csv").write_text("\n".join(["l,b,dm,ebv", *rows]) + "\n")
    (tmp_path / "clouds.csv").write_text(
        "name,dist_pc,e_dist_pc,l_approx,b_approx\none,448,10,18.4,-9\ntwo,300,,,\n"
    )
    axis = np.linspace(-1, 1, 11)
    density = np.random.default_rng(0).random((11, 11, 11))
    np.savez(tmp_path / "map.npz", density=density, grid_kpc=axis)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    return tmp_path


REFERENCES = {
    "held-out": "stars",
    "new.parquet": "stars",
    "lines.csv": "lines",
    "clouds.csv": "clouds",
    "map.npz": "map",
}


def test_references_are_told_apart(desk, positive_run):
    assert {name: kind_of(name) for name in REFERENCES} == REFERENCES
    assert kind_of("dustmaps:bayestar") == kind_of(str(positive_run.path)) == "map"
    with pytest.raises(InputError, match="neither lines of sight"):
        kind_of("other.csv")
    with pytest.raises(InputError, match="does not exist"):
        kind_of("nothing.csv")


@pytest.mark.parametrize("name", [n for n in REFERENCES if n != "new.parquet"])
def test_each_makes_a_whole_folder(desk, positive_run, command, name):
    result = command(f"compare {positive_run.path} {name} -o found --points 60")
    assert result.exit_code == 0, result.output
    assert ": comparison, " in verify(desk / "found")
    found = json.loads((desk / "found" / "comparison.json").read_text())
    assert found["kind"] == REFERENCES[name]
    assert all(sentence in result.output for sentence in found["words"])
    first = result.output.splitlines()[0]
    assert first.startswith(f"{name} is taken for ")
    assert ("--kind" in first) == name.endswith(".csv")
    figures = list((desk / "found").glob("*.png"))
    assert len(figures) == 1
    assert imread(figures[0]).std() > 0.05
    for path in (desk / "found").glob("*.csv"):
        with path.open() as file:
            rows = list(csv.reader(file))
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1


def test_the_scale_is_said(desk, positive_run, command):
    said = command(f"compare {positive_run.path} lines.csv -o found --r-v 2.0").output
    found = json.loads((desk / "found" / "comparison.json").read_text())
    assert found["factor"] == 2.0
    assert "extinction of the map = 2 E(B-V)" in said
    with (desk / "found" / "profiles.csv").open() as file:
        row = next(csv.DictReader(file))
    assert float(row["reference"]) == pytest.approx(2.0 * 0.01 * 5.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("new.parquet --kind clouds", "clouds need"),
        ("new.parquet --kind nonsense", "--kind is one of"),
        ("new.parquet --factor 2", "not for stars"),
        ("lines.csv --factor -1", "must be positive"),
        ("dustmaps:bayestar --integrated", "say with --factor"),
        ("map.npz --query mode", "KEY=VALUE"),
        ("map.npz --points 0", "at least 1"),
    ],
)
def test_usage_that_makes_no_sense_is_refused(
    desk, positive_run, command, options, message
):
    result = command(f"compare {positive_run.path} {options} -o found")
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert not (desk / "found").exists()


def test_folders_of_others_are_left_alone(desk, positive_run, command):
    line = f"compare {positive_run.path} clouds.csv -o found"
    (desk / "found").mkdir()
    (desk / "found" / "precious").write_text("")
    assert "exists" in command(line).output
    assert "holds no comparison.json" in command(f"{line} --overwrite").output
    assert (desk / "found" / "precious").exists()
    (desk / "found" / "precious").unlink()
    assert command(f"{line} --overwrite").exit_code == 0
    assert "exists" in command(line).output
    assert command(f"{line} --overwrite").exit_code == 0


def test_of_a_long_table_the_first_rows_are_shown():
    rows = [{"name": f"cloud {n}"} for n in range(746)]
    found = Comparison(
        kind="clouds", numbers={}, tables={"clouds": rows}, shown=("clouds",), words=()
    )
    assert "cloud 19 " in str(found) and "cloud 20 " not in str(found)
    assert "20 of 746 rows; all are in clouds.csv" in str(found)
    short = dataclasses.replace(found, tables={"clouds": rows[:20]})
    assert "cloud 19 " in str(short) and "clouds.csv" not in str(short)
