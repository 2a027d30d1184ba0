"""The benchmark of queries in its smallest size."""

import pytest
from test_bench import run

pytestmark = pytest.mark.slow


def test_query(tmp_path):
    taken, against = run("query", tmp_path).values()
    assert {row["map"] for row in taken} == {"of a fit", "of noise"}
    assert all(row["wall [s]"] > 0 and row["read [MB]"] > 0 for row in taken)
    assert len(against) == 6
    assert all(row["no answer"] == 0 for row in against)
    for row in against:
        assert row["mean off, rms [std]"] < 0.5
        # Between the cell centres the density is interpolated as its own fit does it.
        assert row["quantity"] == "extinction" or row["mean off, rms [std]"] < 1e-5
