"""Constants of modules: one assignment, one line, one meaning."""

import ast
from collections import defaultdict
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


def rivals(sources: dict[str, str]) -> set[str]:
    """Return names of constants with more than one value in the same folder."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path, source in sources.items():
        for statement in ast.parse(source).body:
            match statement:
                case ast.Assign([ast.Name(name)], value) if name.isupper():
                    values[path.rpartition("/")[0], name].add(ast.unparse(value))
                case ast.AnnAssign(ast.Name(name), _, ast.expr() as value) if (
                    name.isupper()
                ):
                    values[path.rpartition("/")[0], name].add(ast.unparse(value))
    return {f"{folder}: {name}" for (folder, name), v in values.items() if len(v) > 1}


def test_a_name_has_one_meaning_in_its_folder():
    found = rivals({str(f.relative_to(ROOT)): f.read_text("utf-8") for f in FILES})
    assert not found


def test_names_of_two_meanings_are_found():
    one, other = "_ROWS = 3\nLEVELS = (1, 2)\n", "_ROWS: int = 4\nLEVELS = (1, 2)\n"
    assert rivals({"a/one.py": one, "a/other.py": other}) == {"a: _ROWS"}
    assert not rivals({"a/one.py": one, "b/other.py": other})
