"""The whitening experiment: its three ways agree, and are timed on what it says."""

import json
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread

from dustmap.functionals import PointValues
from dustmap.grid import Grid
from dustmap.kernels import Matern32

FOLDER = Path(__file__).resolve().parents[2] / "scripts/paper"
SIZE = 60


@pytest.fixture(autouse=True)
def paper(monkeypatch):
    """The folder of the scripts on the path, as Python puts it for a script."""
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def problem(generator):
    """A kernel of two spacings, its grid and places of rows."""
    grid = Grid(shape=(SIZE,), spacing=(1 / (SIZE - 1),), origin=(0.0,))
    kernel = Matern32(lengthscale=2 / SIZE, variance=0.1)
    return kernel, grid, torch.rand(30, 1, generator=generator, dtype=torch.float64)


def dense_gram(kernel, points, at):
    """``k_unᵀ K⁻¹ k_un'`` by a dense solve."""
    cross = kernel(at[:, None, :] - points[None, :, :])
    K = kernel(points[:, None, :] - points[None, :, :])
    return cross @ torch.linalg.solve(K, cross.mT)


def test_features_of_every_method_have_the_dense_inner_products(problem):
    from whitening_methods import CHOLESKY, PCG, TORUS, prepare

    from dustmap.covariance import inducing_covariance

    kernel, grid, at = problem
    for name in (PCG, CHOLESKY, TORUS):
        method = prepare(name, kernel, grid)
        cross = inducing_covariance(method.kernel, PointValues(at), method.points)
        features, _ = method.features(cross)
        dense = dense_gram(method.kernel, method.points, at)
        torch.testing.assert_close(features @ features.mT, dense, rtol=1e-8, atol=1e-11)
    # Points beyond the grid hardly tell more of it, and the period is far.
    torch.testing.assert_close(
        dense, dense_gram(kernel, grid.points(), at), rtol=1e-3, atol=1e-5
    )


def test_all_rows_are_whitened_in_chunks_and_counted(problem, monkeypatch):
    import whitening_methods
    from whitening_methods import CHECKED, PCG, TORUS, whiten_rows

    kernel, grid, at = problem
    monkeypatch.setattr(whitening_methods, "_CHUNK", 2 * SIZE * 7)
    seen = {PCG: 0, TORUS: 0}
    original = whitening_methods._whiten

    def counting(timed, method, part, start):
        seen[PCG if timed.rows == 30 else TORUS] += len(part)
        assert len(part) <= 7
        original(timed, method, part, start)

    monkeypatch.setattr(whitening_methods, "_whiten", counting)
    found = whiten_rows({PCG: 30, TORUS: 10}, kernel, grid, at)
    assert seen == {PCG: 30, TORUS: 10}
    expected = dense_gram(kernel, grid.points(), at[:CHECKED])
    torch.testing.assert_close(found[PCG].gram, expected, rtol=1e-8, atol=1e-11)
    assert (found[PCG].unconverged, found[TORUS].iterations) == (0, None)


def test_times_are_in_proportion_and_the_fastest_of_all_repeats():
    from whitening_methods import Timed, fastest

    slow = {"a": Timed(setup=1.0, rows=10, cross=4.0, seconds=2.0)}
    quick = {"a": Timed(setup=3.0, rows=10, cross=5.0, seconds=1.0)}
    best = fastest([slow, quick])["a"]
    assert (best.setup, best.cross, best.seconds) == (1.0, 4.0, 1.0)
    assert best.total(200) == 1.0 + 20.0


def test_a_smoke_run_compares_methods_and_leaves_open_what_it_did_not_run(
    tmp_path, monkeypatch
):
    import whitening_time

    arguments = ["whitening_time", "--quick", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    whitening_time.main()
    record = json.loads((tmp_path / "whitening_time.json").read_text())
    rows = record["tables"]["Every method"]
    for row in rows:
        if (row["kernel"], row["lengthscale / spacing"]) != ("SE", 3):
            assert row["k·k' against PCG"] < 1e-6
            if row["method"] == "PCG (Toeplitz)":
                assert row["iterations"] <= 4
    first, second, third, *_ = record["comparisons"]
    assert (first["paper"], second["paper"], third["paper"]) == ("1.95", "8.11", "n/a")
    assert first["here"] > 0
    assert second["here"] is None and third["here"] is None
    assert "| not run |" in (tmp_path / "whitening_time.md").read_text()
    assert imread(tmp_path / "whitening_time.png").shape[1] > 1000
