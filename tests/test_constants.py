"""Constants of modules: one assignment, one line, one meaning."""

import ast
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
