"""What the papers' scripts share says what was run, and what was not, on one page."""

import json
import platform
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "scripts/paper"


@pytest.fixture(autouse=True)
def paper(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def written(folder, *arguments, name="one", here=0.25, date=None):
    """The record and the text of a report with one row run and one not."""
    import paper_report

    parser = paper_report.parser("About\n  this.")
    parser.add_argument("--file")
    options = parser.parse_args(["--output", str(folder), *arguments])
    made = paper_report.Report.of(name, "About\n  this.", options)
    made.machine |= {} if date is None else {"date": date}
    made.compare("run", "Fig. 1", "< 0.1", here)
    made.compare("left out", "Tab. 2", 7.5, None)
    made.compare("unstated", "Sec. 3", None, "a|b")
    made.tables = {"More": [{"x": 1, "y": float("nan")}, {"z": True}]}
    made.notes = ["a note"]
    rows = [{"M": 1, "y": 1}, {"M": 2, "y": 2}]
    made.figure = paper_report.plot(rows, lambda row: "a", "y")
    made.write(folder)
    record = json.loads((folder / f"{name}.json").read_text())
    return record, (folder / f"{name}.md").read_text()


def test_the_paper_and_this_run_have_columns_of_their_own(tmp_path, capsys):
    record, text = written(tmp_path / "out")
    assert "| run | Fig. 1 | < 0.1 | 0.25 |  |" in text
    assert "| left out | Tab. 2 | 7.5 | not run |  |" in text
    assert "| unstated | Sec. 3 | not stated | a\\|b |  |" in text
    assert "- a note" in text and "About this." in text
    assert record["comparisons"][1]["here"] is None
    assert record["tables"]["More"][0]["y"] is None
    assert capsys.readouterr().out == text
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"one.json", "one.md", "one.png"}


def test_the_machine_is_told_but_not_named(tmp_path):
    record, text = written(tmp_path)
    machine = record["machine"]
    assert machine["cores"] >= 1 and machine["threads"] == 1
    assert machine["date"].endswith("UTC")
    assert len(machine["commit"]) >= 7
    assert platform.node() not in text or len(platform.node()) < 4


def test_a_smoke_run_says_so(tmp_path):
    _, text = written(tmp_path, "--quick")
    assert text.startswith("**A smoke run")
    assert not written(tmp_path)[1].startswith("**A smoke run")


def test_rows_that_agree_are_averaged():
    from paper_report import averaged, cell, ratio

    rows = [
        {"engine": "b", "M": 9, "RMSE": 1.0, "NLL": 3.0},
        {"engine": "a", "M": 9, "RMSE": 5.0, "NLL": 6.0},
        {"engine": "b", "M": 9, "RMSE": 3.0, "NLL": 3.0},
    ]
    given = {"by": ("engine", "M"), "columns": ("RMSE", "NLL"), "count": "splits"}
    two, one = averaged(rows, **given)
    assert one == {"engine": "a", "M": 9, "splits": 1, "RMSE": 5.0, "NLL": 6.0}
    assert two == {"engine": "b", "M": 9, "splits": 2, "RMSE": 2.0, "NLL": 3.0}
    assert cell(rows, "NLL", engine="a") == 6.0
    assert cell(rows, "NLL", engine="a", M=8) is None
    assert ratio(3.0, 2.0) == 1.5 and ratio(3.0, 2.0, ".2f") == "1.50"
    assert ratio(3.0, None) is ratio(None, 2.0) is None


def gathered(folder, monkeypatch):
    import gather

    page = folder / "page.md"
    arguments = ["gather", str(folder), "--output", str(page)]
    monkeypatch.setattr(sys, "argv", arguments)
    gather.main()
    return page.read_text()


def test_every_script_has_a_section_in_the_papers_order(tmp_path, monkeypatch):
    mine = "/of/mine/3droad.txt"
    written(tmp_path / "one", "--file", mine, name="road3d", here=0.5)
    written(tmp_path / "two", "--quick", name="pcg_vs_cg", here=None)
    written(tmp_path, name="another")
    (tmp_path / "foreign.json").write_text('{"name": "x"}')
    page = gathered(tmp_path, monkeypatch)
    places = [page.index(f"## {n}\n") for n in ("pcg_vs_cg", "road3d", "another")]
    assert places == sorted(places)
    assert "| run | Fig. 1 | < 0.1 | 0.5 |  |" in page
    assert "| run | Fig. 1 | < 0.1 | not run |  |" in page
    assert "- a note" in page
    assert page.count("A smoke run") == 1
    assert "mine" not in page and str(tmp_path) not in page
    assert "python scripts/paper/road3d.py --seed 1 --threads 1 --file FILE" in page


def test_whole_runs_count_and_of_these_the_latest(tmp_path, monkeypatch):
    days = [f"2026-0{month}-01 00:00 UTC" for month in (1, 2, 3)]
    written(tmp_path / "a", name="dust", here=1.0, date=days[1])
    written(tmp_path / "b", name="dust", here=2.0, date=days[0])
    written(tmp_path / "c", "--quick", name="dust", here=3.0, date=days[2])
    page = gathered(tmp_path, monkeypatch)
    assert "| < 0.1 | 1 |" in page and page.count("## dust\n") == 1


@pytest.mark.parametrize(
    ("text", "message"), [(None, "hold no report"), ("{", "is no JSON")]
)
def test_a_folder_without_reports_is_one_line_and_status_2(
    tmp_path, monkeypatch, capsys, text, message
):
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        gathered(tmp_path, monkeypatch)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "page.md").exists()
