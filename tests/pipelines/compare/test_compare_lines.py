"""Published lines of sight: read, judged where they can be, on the stated scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import one_cloud
import pytest

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.compare import compare_lines
from pipelines.compare.tables import Line, read_lines
from pipelines.products.integrated import last_star

L, B = 18.4, -9.0
SCALE = "times one"


def line(factor: float = 1.0, *, near: float = 0.0, far: float = np.inf) -> Line:
    """The truth through the cloud, as if published, with 2% of spread."""
    distance = np.linspace(50, 900, 18)
    ends = distance[:, None] * unit_vectors(np.array(L), np.array(B))
    best = factor * one_cloud.extinction(ends)
    samples = best * np.array([[0.98], [1.0], [1.02]])
    return Line(
        name="cloud",
        l=L,
        b=B,
        distance=distance,
        best=best,
        samples=samples,
        near=near,
        far=far,
    )


def test_the_map_agrees_with_the_truth_within_its_errors(positive_run):
    numbers = compare_lines(positive_run, [line()], factor=1.0, scale=SCALE).numbers
    assert numbers["map / reference"] == pytest.approx(1, abs=0.1)
    assert numbers["RMS z"] < 2


def test_a_factor_is_applied_to_reference_and_spread_alike(positive_run):
    plain = compare_lines(positive_run, [line()], factor=1.0, scale=SCALE)
    ebv = compare_lines(positive_run, [line(1 / 3.1)], factor=3.1, scale=SCALE)
    for one, other in zip(plain.tables["profiles"], ebv.tables["profiles"]):
        for column in ("map", "reference", "reference_std"):
            np.testing.assert_allclose(one[column], other[column], rtol=1e-9)


def test_a_reference_of_other_dust_is_named(positive_run):
    found = compare_lines(positive_run, [line(2.0)], factor=1.0, scale=SCALE)
    assert found.numbers["map / reference"] == pytest.approx(0.5, abs=0.05)
    (row,) = found.tables["by_line"]
    assert row["z at the end"] < -3
    assert "sigma off at its end: cloud" in " ".join(found.words)


def test_only_what_both_were_told_is_judged(positive_run):
    support = positive_run.support.clone()
    support[11:] = 0
    shorter = replace(positive_run, support=support)
    found = compare_lines(shorter, [line(near=200, far=500)], factor=1.0, scale=SCALE)
    last = last_star(shorter, unit_vectors(np.array([L]), np.array([B])))[0]
    assert 350 < last < 450
    for row in found.tables["profiles"]:
        trusted = 200 <= row["distance"] <= min(500, last)
        assert row["judged"] == trusted
        assert np.isfinite(row["map"]) == (row["distance"] < 740)
    with pytest.raises(InputError, match="none of 1 lines of sight"):
        compare_lines(positive_run, [line(near=2000)], factor=1.0, scale=SCALE)


@pytest.fixture
def published(tmp_path):
    """Two lines as in Bayestar's file, rows shuffled."""
    rows = [
        f"{los},{30 * los},5,{sample},{dm},{0.1 * (sample + 2) * dm + los},6.0,11.0"
        for los in (1, 2)
        for sample in (-1, 0, 1, 2)
        for dm in (5.0, 7.5, 10.0)
    ]
    order = np.random.default_rng(0).permutation(len(rows))
    path = tmp_path / "lines.csv"
    head = "los,l,b,sample,dm,ebv,dm_min,dm_max"
    path.write_text("\n".join([head, *(rows[i] for i in order)]) + "\n")
    return path


def test_lines_are_read_whatever_the_order_of_rows(published):
    (first, second), value = read_lines(published)
    assert value == "ebv"
    assert (first.l, second.l) == (30, 60)
    np.testing.assert_allclose(first.distance, [100, 10**2.5, 1000])
    np.testing.assert_allclose(second.best, [2.5, 2.75, 3.0])
    assert first.samples.shape == (3, 3)
    np.testing.assert_allclose(first.spread, [0.5, 0.75, 1.0])
    np.testing.assert_allclose([first.near, first.far], [10**2.2, 10**3.2])


def test_plain_columns_do_as_well(tmp_path):
    path = tmp_path / "plain.csv"
    path.write_text("l,b,distance,extinction\n1,2,300,0.3\n1,2,100,0.1\n")
    (only,), value = read_lines(path)
    assert value == "extinction"
    np.testing.assert_allclose(only.best, [0.1, 0.3])
    np.testing.assert_allclose(only.spread, 0)


def test_a_sample_at_other_distances_is_refused(published):
    text = published.read_text().splitlines()
    published.write_text("\n".join(text[:-1]) + "\n")
    with pytest.raises(InputError, match="not at the same distances"):
        read_lines(published)


@pytest.mark.data
def test_the_published_file_is_read(data_dir):
    lines, value = read_lines(data_dir / "bayestar2015_lines_of_sight.csv")
    assert value == "ebv"
    assert len(lines) == 8
    assert {each.samples.shape for each in lines} == {(20, 31)}
    assert lines[0].near == pytest.approx(10 ** (6.78 / 5 + 1))
