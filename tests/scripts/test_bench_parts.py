"""What the benchmarks share scores, counts and measures what it says."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts/bench"


@pytest.fixture(autouse=True)
def bench(monkeypatch):
    """The folder of the scripts on the path, as Python puts it for a script."""
    monkeypatch.syspath_prepend(str(BENCH))


def test_peak_memory_is_that_of_the_command(tmp_path, monkeypatch):
    import verbs

    size = 300 * 2**20
    held = np.ones(size // 8)  # what the asking process holds must not count
    code = "import sys; x = b'x' * int(sys.argv[1]); print(len(x))"
    monkeypatch.setattr(verbs, "_PROGRAM", (sys.executable, "-S", "-c", code))
    peaks = [verbs.dustmap([str(n)], tmp_path / "log.txt").peak for n in (1, size // 2)]
    assert peaks[0] < held.nbytes / 4
    assert peaks[1] - peaks[0] == pytest.approx(size / 2, rel=0.05)


def test_a_verb_that_fails_is_reported_with_its_last_line(tmp_path):
    from verbs import dustmap

    with pytest.raises(RuntimeError, match="No such option"):
        dustmap(["fit", "--no-such-option"], tmp_path / "fit.log")


def test_rows_outside_the_map_are_counted_and_left_out():
    from scoring import named, score_inside

    truth = {"extinction": np.arange(5.0), "density": np.arange(1.0, 6.0)}
    columns = {"inside": np.array([True, True, True, True, False])}
    for name, values in truth.items():
        shifted = values + 0.5
        shifted[-1] = np.nan
        columns |= {f"{name}_mean": shifted, f"{name}_std": np.full(5, 0.4)}
    found = score_inside(columns, truth)
    assert (found["test_stars"], found["outside"]) == (4, 1)
    assert found["rmse"] == found["mae"] == 0.5
    assert found["density_coverage_68"] == found["extinction_coverage_68"] == 0
    assert found["density_coverage_95"] == found["extinction_coverage_95"] == 1
    assert found["density_r"] == pytest.approx(1)
    assert named(found)["RMSE [mag]"] == 0.5


def test_a_logarithm_is_correlated_where_both_are_positive():
    from scoring import correlations

    true = np.array([0.0, 1.0, 10.0, 100.0, 5.0])
    found = correlations(np.array([3.0, 2.0, 20.0, 200.0, -1.0]), true)
    assert found["density_log_r"] == pytest.approx(1)
    assert found["density_negative"] == 0.2


def test_a_report_is_strict_json_and_a_table(tmp_path, capsys):
    from report import Report

    options = argparse.Namespace(output=tmp_path, seed=3)
    report = Report.of("one", "What  was\ndone.", options)
    rows = [{"a": 1, "b [s]": 0.25}, {"a": 20000, "c": float("nan")}]
    report.tables["Things"] = rows
    report.notes = ["a note"]
    report.write(tmp_path)
    record = json.loads((tmp_path / "one.json").read_text())
    assert record["tables"]["Things"] == [rows[0], {"a": 20000, "c": None}]
    assert record["settings"]["seed"] == 3
    assert {"cores", "threads"} <= set(record["machine"])
    text = (tmp_path / "one.md").read_text()
    assert text.strip() == capsys.readouterr().out.strip()
    assert "| a | b [s] | c |" in text and "| 1 | 0.25 | – |" in text
    assert "| 20,000 | – | nan |" in text and "What was done." in text
