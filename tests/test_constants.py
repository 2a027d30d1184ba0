"""Constants of modules: one assignment, one line, one meaning."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    f for room in ("dustmap", "pipelines") for f in (ROOT / room).rglob("*.py")
)


def packed(source: str) -> list[int]:
    """Return the lines of assignments to several names at once, outside functions."""
    statements = ast.parse(source).body
    targets = ((s.lineno, s.targets) for s in statements if isinstance(s, ast.Assign))
    return [n for n, names in targets if any(isinstance(t, ast.Tuple) for t in names)]


def test_no_assignment_names_several_constants():
    found = {str(f.relative_to(ROOT)): packed(f.read_text("utf-8")) for f in FILES}
    assert len(found) > 200
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize("line", ["A, B = 1, 2", "(A, B) = (i for i in (1, 2))"])
def test_packed_assignments_are_found(line):
    assert packed(f"C = 3\n{line}\n") == [2]


def doubled(files: Iterable[Path]) -> list[str]:
    """Return constants with several values in the modules of one folder."""
    values = defaultdict(set)
    for file in files:
        for s in ast.parse(file.read_text("utf-8")).body:
            if isinstance(s, ast.Assign | ast.AnnAssign) and s.value is not None:
                for target in s.targets if isinstance(s, ast.Assign) else [s.target]:
                    if isinstance(target, ast.Name) and target.id.isupper():
                        values[file.parent, target.id].add(ast.unparse(s.value))
    return [name for (_, name), found in values.items() if len(found) > 1]


def test_a_name_has_one_meaning_in_a_room_of_the_library():
    assert not doubled(f for f in FILES if f.is_relative_to(ROOT / "dustmap"))


def test_a_name_with_two_meanings_is_found(tmp_path):
    for number, line in enumerate(["_ROWS = 3", "_ROWS: int = 4", "_ROWS = 3"]):
        (tmp_path / str(number % 2)).mkdir(exist_ok=True)
        (tmp_path / str(number % 2) / f"{number}.py").write_text(line)
    assert not doubled(tmp_path.rglob("*.py"))
    (tmp_path / "0" / "other.py").write_text("_ROWS = 5")
    assert doubled(tmp_path.rglob("*.py")) == ["_ROWS"]
