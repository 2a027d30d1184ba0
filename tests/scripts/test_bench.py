"""Every benchmark runs in its smallest size and records what it is for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[2] / "scripts/bench"


def run(name, output, *arguments):
    """The record of a smoke run; its tables and machine are there."""
    command = [sys.executable, str(BENCH / f"{name}.py"), "--quick", "--output"]
    done = subprocess.run(
        [*command, str(output), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((output / f"{name}.json").read_text())
    assert (output / f"{name}.md").read_text().strip() == done.stdout.strip()
    assert record["machine"]["cores"] >= 1 and record["settings"]["quick"]
    return record["tables"]


def test_ingest(tmp_path):
    (rows,) = run("ingest", tmp_path).values()
    assert [row["threads"] for row in rows] == [1, 2, 1, 2]
    assert all(row["stars"] == 5000 and row["stars/s"] > 0 for row in rows)
    sizes = [row["output [byte/star]"] for row in rows]
    assert sizes[0] == sizes[1] and sizes[2] == sizes[3]


@pytest.mark.data
def test_growth(tmp_path, data_dir):
    given = ("--data", data_dir)
    rows, stages = run("growth", tmp_path, *given).values()
    assert [row["stars"] for row in rows] == [2000, 4000]
    assert all(row["RMSE map"] > 0 and row["grade"] for row in rows)
    assert all(stage["memory [GiB]"] > 0 for stage in stages)
    found, timed = run("growth", tmp_path, "--products", *given).values()
    assert all(1 < row["total"] < 1.06 for row in found[-1:])
    assert [row["distance errors"] for row in timed] == [False, True] * 2


@pytest.mark.data
def test_development(tmp_path, data_dir):
    sets = "galaxy_dev_defects", "clusters_hunt2023"
    named = [word for name in sets for word in ("--set", name)]
    tables = run("development", tmp_path, "--data", data_dir, *named)
    rows, cells = tables.values()
    assert [row["set"] for row in rows] == list(sets)
    assert all(0 < row["judged"] <= 400 and row["CPU [s]"] > 0 for row in rows)
    for row in rows:
        ratio = row["RMSE map"] / row["RMSE kriging"]
        assert row["map / kriging"] == pytest.approx(ratio)
        assert 0.3 < row["A in 68%"] < row["A in 95%"] <= 1
    # Only where the truth is known is there a density to judge.
    assert "density r" in rows[0] and "density r" not in rows[1]
    assert {row["set"] for row in cells} == {"galaxy_dev_defects"}
    assert all(row["mass / true"] > 0 for row in cells)


@pytest.mark.data
def test_regress(tmp_path, data_dir):
    words = ("--data", data_dir, "--case", "April 1948", "--method", "neighbours")
    (rows,) = run("regress", tmp_path, *words).values()
    (row,) = rows
    assert row["method"] == "neighbours" and row["rows"] == 320
    assert 0 < row["RMSE"] < 1 and row["NLL"] < 1.5 and row["CPU [s]"] > 0


def test_regress_refuses_an_unknown_method(tmp_path):
    words = ("--quick", "--output", str(tmp_path), "--method", "neighbour")
    done = subprocess.run(
        [sys.executable, str(BENCH / "regress.py"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'neighbour'" in done.stderr and "'neighbours'" in done.stderr
