"""One page of all experiments: the right run of each, and nothing made up."""

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "scripts/paper"


@pytest.fixture
def gather(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import gather

    return gather


def written(folder, name, here, *, date="2026-01-01 00:00 UTC", **settings):
    """A record as the scripts write it."""
    record = {
        "name": name,
        "command": f"python {name}.py --output /somewhere/of/mine",
        "about": "What was done.",
        "settings": {
            "output": "/somewhere/of/mine",
            "quick": False,
            "seed": 1,
            **settings,
        },
        "machine": {
            "processor": "A",
            "date": date,
            "commit": "c",
        },
        "seconds": 90.0,
        "comparisons": [
            {"what": "w", "source": "Fig. 1", "paper": 0.25, "here": here, "remark": ""}
        ],
        "tables": {"More": [{"x": 1}]},
        "notes": ["a note"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record))


def gathered(gather, folder, monkeypatch):
    page = folder / "page.md"
    arguments = ["gather", str(folder), "--output", str(page)]
    monkeypatch.setattr(sys, "argv", arguments)
    gather.main()
    return page.read_text()


def test_every_script_has_a_section_in_the_papers_order(gather, tmp_path, monkeypatch):
    written(tmp_path / "one", "road3d", 0.5, file="/of/mine/3droad.txt")
    written(tmp_path / "two", "pcg_vs_cg", None, quick=True)
    written(tmp_path, "another", 1.5)
    (tmp_path / "foreign.json").write_text('{"name": "x"}')
    page = gathered(gather, tmp_path, monkeypatch)
    places = [page.index(f"## {n}\n") for n in ("pcg_vs_cg", "road3d", "another")]
    assert places == sorted(places)
    assert "| w | Fig. 1 | 0.25 | 0.5 |  |" in page
    assert "| w | Fig. 1 | 0.25 | not run |  |" in page
    assert "- a note" in page
    assert page.count("A smoke run") == 1
    assert "mine" not in page
    command = "python scripts/paper/road3d.py --seed 1 --file FILE"
    assert command in page


def test_whole_runs_count_and_of_these_the_latest(gather, tmp_path, monkeypatch):
    later = "2026-02-01 00:00 UTC"
    written(tmp_path / "a", "dust", 1.0, date=later)
    written(tmp_path / "b", "dust", 2.0)
    written(tmp_path / "c", "dust", 3.0, date="2026-03-01 00:00 UTC", quick=True)
    page = gathered(gather, tmp_path, monkeypatch)
    assert "| 0.25 | 1 |" in page and page.count("## dust\n") == 1


@pytest.mark.parametrize(
    ("text", "message"), [(None, "hold no report"), ("{", "is no JSON")]
)
def test_a_folder_without_reports_is_one_line_and_status_2(
    gather, tmp_path, monkeypatch, capsys, text, message
):
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        gathered(gather, tmp_path, monkeypatch)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "page.md").exists()
