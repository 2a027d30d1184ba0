"""The benchmark against peers runs, and gives them what it says it does."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dustmap.functionals import FixedStep, LineIntegrals, PointValues, Stack
from dustmap.grid import Grid, Torus
from dustmap.projection import projection

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/bench/peers.py"


@pytest.fixture
def bench(monkeypatch):
    """The folder of the script on the path, as Python puts it for a script."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A smoke run of `dustmap` and of a peer whose interpreter does not exist."""
    folder = tmp_path_factory.mktemp("peers")
    arguments = ("--peers-python", folder / "absent", "-o", folder)
    done = run("--quick", "--methods", "dustmap,nifty", *arguments)
    assert done.returncode == 0, done.stderr
    return done, folder


@pytest.mark.slow
def test_a_quick_run_writes_a_record_and_a_table(quick):
    done, folder = quick
    record = json.loads((folder / "peers.json").read_text())
    (row,) = record["rows"]
    assert (row["method"], row["grid"]) == ("dustmap", "16×16×8")
    assert record["stars"] == 2000 and record["threads"] == 1
    assert 0 < row["rmse"] < 0.5 * record["extinction_scatter"]
    assert 0 < row["mae"] < row["rmse"]
    assert 0.4 < row["extinction_coverage_68"] < row["extinction_coverage_95"] <= 1
    assert 0.3 < row["density_coverage_68"] < row["density_coverage_95"] <= 1
    assert row["density_r"] > 0.4 and row["density_log_r"] > 0.4
    assert row["cpu_seconds"] > 1 and row["cpu_ratio"] == row["rmse_ratio"] == 1
    assert (folder / "peers.md").read_text().strip() == done.stdout.strip()


@pytest.mark.slow
def test_a_peer_that_is_not_there_is_left_out_with_the_reason(quick):
    done, folder = quick
    record = json.loads((folder / "peers.json").read_text())
    assert "No such file" in record["skipped"]["nifty"]
    assert "skipped: nifty" in done.stdout


@pytest.mark.slow
def test_tables_for_the_methods_hold_no_truth(quick):
    from pipelines.catalog.schema import read_table

    for name in ("stars", "targets"):
        columns, _, _ = read_table(quick[1] / f"work/{name}.parquet")
        assert not [column for column in columns if "true" in column]


def test_the_peers_matrix_is_the_one_of_dustmap(bench):
    from peers_problem import interpolation

    grid = Grid(shape=(5, 4, 3), spacing=(2.0, 3.0, 4.0), origin=(-4.0, -5.0, -3.0))
    torus = Torus(grid=grid, shape=(6, 6, 4))
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor(grid.lower), torch.tensor(grid.upper)
    ends = low + (high - low) * torch.rand((40, 3), generator=generator)
    ends = torch.cat([ends, high[None], low[None]]).to(torch.float64)
    both = Stack([LineIntegrals(ends, FixedStep(step=0.7)), PointValues(ends)])
    x = torch.randn(torus.size, generator=generator, dtype=torch.float64)
    expected = projection(torus, both).matvec(x).numpy()
    np.testing.assert_allclose(
        interpolation(torus, both) @ x.numpy(), expected, rtol=1e-10, atol=1e-10
    )


def test_the_gaussian_prior_has_the_scales_of_the_stars(bench):
    """One lengthscale, the mean function along rays as its closed form."""
    from peers_problem import learnt_prior

    from tests.pipelines import one_cloud

    rng = np.random.default_rng(0)
    positions = rng.uniform(-500, 500, (200, 3))
    length = np.linalg.norm(positions, axis=1)
    stars = one_cloud.at(positions, 1e-3 * length, 0.02)
    found = learnt_prior(stars, positions[:5], FixedStep(step=10.0))
    np.testing.assert_allclose(found["mean_train"], 1e-3 * length, atol=0.05)
    np.testing.assert_allclose(found["mean_test"], found["mean_train"][:5])
    assert found["gaussian_prior"].shape == (3,)


def test_scores_of_a_known_error(bench):
    from scoring import normal_interval, score

    truth = {"extinction": np.array([1.0, 2, 3, 4]), "density": np.arange(1.0, 5)}
    mean = truth["extinction"] + np.array([1.5, -1.5, 0.5, 2.5])
    prediction = {
        "extinction": mean,
        "density": np.array([-1.0, 2, 3, 4]),
        "extinction_interval": normal_interval(mean, np.ones(4)),
    }
    found = score(prediction, truth)
    assert found["rmse"] == pytest.approx(np.sqrt((2.25 * 2 + 0.25 + 6.25) / 4))
    assert found["mae"] == 1.5
    assert found["extinction_coverage_68"] == 0.25
    assert found["extinction_coverage_95"] == 0.75
    assert found["density_negative"] == 0.25
    assert found["density_log_r"] == pytest.approx(1)
    assert "density_coverage_68" not in found
    with pytest.raises(ValueError, match="not finite"):
        score({**prediction, "density": np.array([np.nan, 1, 1, 1])}, truth)


def test_quantiles_are_preferred_and_stretched_in_the_logarithm(bench):
    from peers_run import read_prediction

    columns = {f"density_{n}": np.array([v]) for n, v in (("mean", 2.0), ("std", 9.0))}
    columns |= {
        f"density_{n}": np.exp([v]) for n, v in (("p16", -1), ("p50", 0), ("p84", 2))
    }
    columns |= {"extinction_mean": np.array([1.0]), "extinction_std": np.array([0.5])}
    found = read_prediction(columns)
    np.testing.assert_allclose(
        np.log(found["density_interval"][:, 0]), [-1, 2, -1.96, 3.92]
    )
    np.testing.assert_allclose(
        found["extinction_interval"][:, 0], [0.5, 1.5, 0.02, 1.98]
    )
    assert found["density"] == 2.0


def test_mirrored_samples_hold_what_they_should(bench):
    """Few pairs have a poor standard deviation: Student's quantiles make up for it."""
    from peers_worker import mirrored_interval

    rng = np.random.default_rng(0)
    half = rng.standard_normal((2, 20_000))
    ends = mirrored_interval(np.concatenate([half, -half]))
    truth = rng.standard_normal(20_000)
    for level, (low, high) in ((0.683, ends[:2]), (0.95, ends[2:])):
        assert np.mean((low <= truth) & (truth <= high)) == pytest.approx(
            level, abs=0.01
        )
