"""What the scripts of the paper share says what was run, and what was not."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "scripts/paper"


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import paper_report

    return paper_report


def written(report, folder, *arguments):
    """The record and the text of a report with one row run and one not."""
    options = report.parser("About\n  this.").parse_args(
        ["--output", str(folder), *arguments]
    )
    made = report.Report.of("one", "About\n  this.", options)
    made.compare("run", "Fig. 1", "< 0.1", 0.25)
    made.compare("left out", "Tab. 2", 7.5, None)
    made.compare("unstated", "Sec. 3", None, "a|b")
    made.tables = {"More": [{"x": 1, "y": float("nan")}, {"z": True}]}
    rows = [{"M": 1, "y": 1}, {"M": 2, "y": 2}]
    made.figure = report.plot(rows, lambda row: "a", "y")
    made.write(folder)
    return json.loads((folder / "one.json").read_text()), (
        folder / "one.md"
    ).read_text()


def test_the_paper_and_this_run_have_columns_of_their_own(report, tmp_path, capsys):
    record, text = written(report, tmp_path / "out")
    assert "| run | Fig. 1 | < 0.1 | 0.25 |  |" in text
    assert "| left out | Tab. 2 | 7.5 | not run |  |" in text
    assert "| unstated | Sec. 3 | not stated | a\\|b |  |" in text
    assert record["comparisons"][1]["here"] is None
    assert record["tables"]["More"][0]["y"] is None
    assert capsys.readouterr().out == text
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "one.json",
        "one.md",
        "one.png",
    }


def test_the_machine_is_told_but_not_named(report, tmp_path):
    import platform

    record, text = written(report, tmp_path)
    machine = record["machine"]
    assert machine["cores"] >= 1 and machine["threads"] == 1
    assert machine["date"].endswith("UTC")
    assert len(machine["commit"]) >= 7
    assert platform.node() not in text or len(platform.node()) < 4


def test_a_smoke_run_says_so(report, tmp_path):
    _, text = written(report, tmp_path, "--quick")
    assert text.startswith("**A smoke run")
    assert not written(report, tmp_path)[1].startswith("**A smoke run")
