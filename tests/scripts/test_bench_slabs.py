"""The benchmark of grids in slabs in its smallest size."""

import pytest
from test_bench import run

pytestmark = pytest.mark.slow


def test_slabs(tmp_path):
    ((whole, one, *several),) = run("slabs", tmp_path).values()
    assert [row["ranks"] for row in (whole, one, *several)] == [1, 1, 2, 4]
    assert one["bytes an iteration"] == 0
    for row in several:
        assert row["bytes an iteration"] == row["by formula"] > 0
        assert row["W [MiB]"] < 0.8 * one["W [MiB]"]
