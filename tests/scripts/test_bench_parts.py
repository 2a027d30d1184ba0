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
    import measured

    size = 300 * 2**20
    held = np.ones(size // 8)  # what the asking process holds must not count
    code = "import sys; x = b'x' * int(sys.argv[1]); print(len(x))"
    monkeypatch.setattr(measured, "_PROGRAM", (sys.executable, "-S", "-c", code))
    peaks = [
        measured.dustmap([str(n)], tmp_path / "log.txt").peak for n in (1, size // 2)
    ]
    assert peaks[0] < held.nbytes / 4
    assert peaks[1] - peaks[0] == pytest.approx(size / 2, rel=0.05)


def test_a_verb_that_fails_is_reported_with_its_last_line(tmp_path):
    from measured import dustmap

    with pytest.raises(RuntimeError, match="No such option"):
        dustmap(["fit", "--no-such-option"], tmp_path / "fit.log")


def test_quantiles_are_preferred_and_stretched_in_the_logarithm():
    from scoring import read_prediction

    columns = {f"density_{n}": np.array([v]) for n, v in (("mean", 2.0), ("std", 9.0))}
    columns |= {
        f"density_{n}": np.exp([v]) for n, v in (("p16", -1), ("p50", 0), ("p84", 2))
    }
    columns |= {"extinction_mean": np.array([1.0]), "extinction_std": np.array([0.5])}
    found = read_prediction(columns)
    np.testing.assert_allclose(
        np.log(found["density_interval"][:, 0]), [-1, 2, -1.96, 3.92]
    )
    np.testing.assert_allclose(
        found["extinction_interval"][:, 0], [0.5, 1.5, 0.02, 1.98]
    )
    assert found["density"] == 2.0


def test_coverages_of_a_known_error():
    from scoring import coverage, normal_interval

    truth = np.array([1.0, 2, 3, 4])
    mean = truth + np.array([1.5, -1.5, 0.5, 2.5])
    assert coverage(normal_interval(mean, np.ones(4)), truth) == (0.25, 0.75)


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
