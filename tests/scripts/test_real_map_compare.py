"""The comparison of the real map says in one line what is missing."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "real_map_compare.sh"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name the folder with the references"),
        (["data", "nowhere"], "nowhere has no run: make it with scripts/real_map.sh"),
    ],
)
def test_what_is_missing_is_told_in_one_line(tmp_path, words, message):
    done = subprocess.run(
        [SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
