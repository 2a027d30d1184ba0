"""`dustmap compare`: stars and maps, and the folder it makes."""

from __future__ import annotations

import csv
import json

import numpy as np
import one_cloud
import pytest
from matplotlib.image import imread

from pipelines.catalog.schema import write_stars
from pipelines.storage.atomic import check_manifest


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with references of every kind."""
    monkeypatch.chdir(tmp_path)
    write_stars("new.parquet", one_cloud.catalogue(60, seed=9), overwrite=False)
    axis = np.linspace(-1, 1, 11)
    density = np.random.default_rng(0).random((11, 11, 11))
    np.savez(tmp_path / "map.npz", density=density, grid_kpc=axis)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    return tmp_path


REFERENCES = {"held-out": "stars", "new.parquet": "stars", "map.npz": "map"}


@pytest.mark.parametrize("name", REFERENCES)
def test_each_makes_a_whole_folder(desk, positive_run, command, name):
    few = "--points 60" if REFERENCES[name] == "map" else ""
    result = command(f"compare {positive_run.path} {name} -o found {few}")
    assert result.exit_code == 0, result.output
    check_manifest(desk / "found")
    found = json.loads((desk / "found" / "comparison.json").read_text())
    assert found["kind"] == REFERENCES[name]
    assert all(sentence in result.output for sentence in found["words"])
    figures = list((desk / "found").glob("*.png"))
    assert len(figures) == 1
    assert imread(figures[0]).std() > 0.05
    for path in (desk / "found").glob("*.csv"):
        with path.open() as file:
            rows = list(csv.reader(file))
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("new.parquet --factor 2", "not for stars"),
        ("map.npz --factor -1", "x>0"),
        ("other.csv", "dustmap ingest"),
        ("nothing.csv", "does not exist"),
        ("dustmaps:sfd --integrated --factor 1", "dustmaps:sfd.CLASS"),
        ("map.npz --query mode", "KEY=VALUE"),
        ("map.npz --points 0", "x>=1"),
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
    line = f"compare {positive_run.path} map.npz -o found --points 60"
    (desk / "found").mkdir()
    (desk / "found" / "precious").write_text("")
    assert "exists" in command(line).output
    assert "holds no COMPLETE" in command(f"{line} --overwrite").output
    assert (desk / "found" / "precious").exists()
    (desk / "found" / "precious").unlink()
    assert command(f"{line} --overwrite").exit_code == 0
    assert "exists" in command(line).output
    assert command(f"{line} --overwrite").exit_code == 0
