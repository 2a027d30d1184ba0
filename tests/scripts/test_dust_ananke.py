"""The Ananke experiment runs, and its parts are what they claim."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from dustmap.covariance import functional_covariance
from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues, Stack
from dustmap.kernels import Matern32

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/paper/dust_ananke.py"


@pytest.fixture
def paper(monkeypatch):
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
def quick(data_dir, tmp_path_factory):
    """What a smoke run said, and its folder."""
    folder = tmp_path_factory.mktemp("ananke")
    done = run("--quick", "--seeds", 1, "--data", data_dir, "-o", folder)
    assert done.returncode == 0, done.stderr
    return done, folder


@pytest.mark.data
def test_a_quick_run_writes_a_record_tables_and_a_figure(quick):
    done, folder = quick
    record = json.loads((folder / "results.json").read_text())
    assert {path.name for path in folder.iterdir()} == {
        "results.json",
        "tables.txt",
        "figure.png",
    }
    assert done.stdout == (folder / "tables.txt").read_text()
    assert "paper: HIP-GP" in done.stdout
    assert "another data set" in done.stdout
    assert record["kernel"]["lengthscale"] > 0
    assert imread(folder / "figure.png").shape[1] > 1000


@pytest.mark.data
def test_both_engines_stay_near_the_dense_gp_and_ahead_of_neighbours(quick):
    record = json.loads((quick[1] / "results.json").read_text())
    rmse = {name: s["rmse"][0] for name, s in record["mean_and_std"].items()}
    for name in ("full-batch", "svi, blocks, optimum"):
        assert rmse[name] < 1.1 * rmse["dense GP"]
    assert rmse["dense GP"] < 0.8 * rmse["nearest neighbours"]


@pytest.mark.data
def test_a_missing_sample_is_one_clear_line_and_status_2(tmp_path):
    done = run("--data", tmp_path / "absent", "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "no Ananke sample" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_quicker_dense_covariance_is_that_of_the_library(paper, generator):
    from dense_covariance import cross_covariance, symmetric_covariance

    kernel = Matern32(lengthscale=(0.1, 0.2, 0.3), variance=0.7)
    ends = torch.rand(50, 3, generator=generator, dtype=torch.float64)
    rays = LineIntegrals(ends, GaussLegendre(count=4))
    both = Stack([rays, PointValues(ends[:7])])
    torch.testing.assert_close(
        symmetric_covariance(kernel, both), functional_covariance(kernel, both, both)
    )
    torch.testing.assert_close(
        cross_covariance(kernel, both, rays), functional_covariance(kernel, both, rays)
    )


def test_scores_of_a_known_error_are_right(paper):
    from ananke_data import Observed, Sample
    from ananke_engines import Prediction
    from ananke_report import score

    truth = Sample(
        positions=np.zeros((4, 3)),
        extinction=np.zeros(4),
        density=np.array([1.0, 2.0, 3.0, 4.0]),
    )
    prediction = Prediction(
        extinction_mean=np.array([1.0, -1.0, 1.0, 3.0]),
        extinction_std=np.array([1.0, 1.0, 0.9, 2.0]),
        density_mean=np.array([2.0, 4.0, 6.0, -1.0]),
        density_std=np.ones(4),
    )
    observed = Observed(values=np.zeros(4), sigma=np.zeros(4))
    found = score(prediction, truth, observed)
    assert found["rmse"] == pytest.approx(np.sqrt(3))
    assert found["mae"] == pytest.approx(1.5)
    assert found["coverage_68"] == 0.5
    assert found["coverage_95"] == 1.0
    assert found["loglike_e"] == pytest.approx(found["loglike_y"])
    assert found["density_log_r"] == pytest.approx(1.0)
    assert found["density_negative"] == 0.25


def test_an_engine_is_judged_by_the_dense_gp_on_its_own_seeds(paper):
    from ananke_report import judge

    dense = [{"rmse": 1.0, "coverage_68": 0.7}, {"rmse": 3.0, "coverage_68": 0.7}]
    verdicts = judge({"dense GP": dense, "one": [{"rmse": 1.1, "coverage_68": 0.79}]})
    assert verdicts["one"]["rmse_over_dense"] == pytest.approx(1.1)
    assert not verdicts["one"]["rmse_met"] and not verdicts["one"]["coverage_met"]
    assert verdicts["dense GP"]["rmse_met"] and verdicts["dense GP"]["coverage_met"]


def test_neighbours_take_the_mean_of_the_stars_nearby(paper, generator):
    from ananke_engines import Neighbours, Problem

    train = torch.rand(100, 3, generator=generator, dtype=torch.float64) + 0.1
    problem = Problem(
        train=train,
        test=train[:5] * 1.000001,
        kernel=Matern32(lengthscale=1.0),
        fine_grid=None,
        grid=None,
        embedding=None,
        nodes=1,
        samples=2,
        epochs=1,
        draws=1,
    )
    values = train.norm(dim=1)
    named = Neighbours(problem).predict(values, torch.ones(100))
    prediction = named["nearest neighbours"]
    assert prediction.facts["neighbours"] < 10
    assert np.abs(prediction.extinction_mean - values[:5].numpy()).max() < 0.2
