"""The road experiment: its data are what it says, its engines fit them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from dustmap.kernels import Matern52

FOLDER = Path(__file__).resolve().parents[2] / "scripts/paper"


@pytest.fixture(autouse=True)
def paper(monkeypatch):
    """The folder of the scripts on the path, as Python puts it for a script."""
    monkeypatch.syspath_prepend(str(FOLDER))


def quick(folder, monkeypatch, *arguments):
    import road3d

    chosen = ["road3d", "--quick", "--output", str(folder), *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", chosen)
    road3d.main()
    return json.loads((folder / "road3d.json").read_text())


def test_a_smoke_run_fits_all_engines_and_leaves_the_papers_sizes_open(
    tmp_path, monkeypatch
):
    record = quick(tmp_path, monkeypatch)
    assert [c["paper"] for c in record["comparisons"]][:4] == [
        0.189,
        0.101,
        0.661,
        0.481,
    ]
    # None of the engines had the paper's number of points.
    assert all(entry["here"] is None for entry in record["comparisons"][:10])
    rmse = {
        (row["engine"], row["M"]): row["RMSE"]
        for row in record["tables"]["Means over splits"]
    }
    coarse, fine = (rmse["full batch (torus)", m] for m in (899, 3_596))
    assert fine < 0.9 * coarse < 0.9 * rmse["SVGP", 64] < 0.5
    assert rmse["SGPR", 48] < 0.6
    assert record["comparisons"][10]["here"] == fine
    assert any("3DRoad itself: not run" in note for note in record["notes"])
    assert imread(tmp_path / "road3d.png").shape[1] > 1000


def road_file(folder, name="3droad.txt", separator=","):
    """Rows as in the repository: identifier, longitude, latitude, altitude."""
    generator = np.random.default_rng(5)
    longitude = generator.uniform(8, 11, 400)
    latitude = generator.uniform(56, 58, 400)
    altitude = 30 + 10 * np.sin(5 * longitude) * np.cos(9 * latitude)
    altitude += 3 * generator.standard_normal(400)
    columns = np.stack([np.arange(400), longitude, latitude, altitude], axis=1)
    np.savetxt(folder / name, columns, delimiter=separator)
    return folder / name, columns


@pytest.mark.parametrize("separator", [",", " "])
def test_a_file_is_read_as_places_in_one_unit_and_elevations(tmp_path, separator):
    from road3d_data import read_roads

    file, columns = road_file(tmp_path, separator=separator)
    roads = read_roads(file)
    shortened = columns[:, 1] * np.cos(np.radians(columns[:, 2].mean()))
    np.testing.assert_allclose(roads.at[:, 0], shortened)
    np.testing.assert_allclose(roads.at[:, 1], columns[:, 2])
    np.testing.assert_allclose(roads.height, columns[:, 3])
    assert roads.truth is None


def test_a_file_is_what_the_engines_run_on(tmp_path, monkeypatch):
    file, _ = road_file(tmp_path)
    record = quick(tmp_path, monkeypatch, "--file", file)
    assert record["tables"]["Kernel and noise"][0]["rows"] == 400
    assert record["comparisons"][0]["remark"] == "here: full batch, 3DRoad"
    assert record["tables"]["Every fit"][0]["N"] == 256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n" * 20, "20 rows and 2 columns"),
        ("1,2,3\n" * 5, "5 rows and 3 columns"),
        ("x,y,z\n" * 20, "no table of numbers"),
        ("1,2,nan\n" * 20, "20 rows are not finite"),
        ("1,200,3\n" * 20, "latitudes reach 200"),
    ],
)
def test_faulty_files_are_refused(tmp_path, text, message):
    from road3d_data import read_roads

    from pipelines.base.errors import InputError

    file = tmp_path / "roads.txt"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_roads(file)


def test_a_missing_file_is_one_line_and_status_2(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        quick(tmp_path, monkeypatch, "--file", tmp_path / "absent.txt")
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_simulated_relief_has_its_variogram_and_noise():
    from road3d_data import simulate_roads

    roads = simulate_roads(30_000, 600, 4)
    assert roads.at.min() >= 0 and roads.at.max() <= 1
    noise = roads.height - roads.truth
    assert float(noise.std()) == pytest.approx(0.05, rel=0.03)
    rows = torch.randperm(30_000, generator=torch.Generator().manual_seed(1))[:3_000]
    at, truth = roads.at[rows], roads.truth[rows]
    # Matérn-1/2: half the mean square of differences is 1 − exp(−20 d).
    for lag in (0.005, 0.02):
        near = torch.nonzero((torch.cdist(at, at) - lag).abs() < 0.1 * lag)
        difference = truth[near[:, 0]] - truth[near[:, 1]]
        half = float((difference**2).mean() / 2)
        assert half == pytest.approx(1 - np.exp(-20 * lag), rel=0.15)


def test_splits_are_apart_in_the_papers_shares_and_standardised():
    from road3d_data import Roads

    places = torch.arange(1_000.0).double()
    roads = Roads(name="a", at=torch.stack([places, places], 1), height=3 * places + 7)
    split, other = roads.split(42), roads.split(43)
    assert (len(split.values), len(split.test_values)) == (640, 200)
    assert not set(split.train[:, 0].tolist()) & set(split.test[:, 0].tolist())
    assert float(split.values.mean()) == pytest.approx(0, abs=1e-12)
    assert float(split.values.std()) == pytest.approx(1)
    order = np.random.RandomState(42).permutation(1_000)
    np.testing.assert_array_equal(split.train[:, 0], order[:640])
    np.testing.assert_array_equal(split.test[:, 0], order[800:])
    assert not torch.equal(split.train, other.train)
    # One line through all rows stays one in the units of the split.
    slope = (split.test_values[0] - split.values[0]) / (split.test - split.train[:200])[
        0
    ]
    torch.testing.assert_close(slope, torch.full((2,), float(slope[0])).double())


@pytest.fixture
def small(generator):
    """A smooth field at random places, and a kernel and noise for it."""
    from road3d_data import Roads
    from road3d_engines import Scales

    at = torch.rand(300, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(300, generator=generator, dtype=torch.float64)
    height = (5 * at[:, 0]).sin() + (7 * at[:, 1]).cos() + 0.3 * noise
    split = Roads(name="smooth", at=at, height=height).split(42)
    return split, Scales(kernel=Matern52(lengthscale=0.4), noise=0.1)


def test_the_full_batch_is_the_exact_gp_on_a_grid_that_resolves_the_field(small):
    from road3d_engines import full_batch

    split, scales = small
    fit = full_batch(split, scales, 400, 1, samples=64)
    exact = ExactGP(
        scales.kernel, PointValues(split.train), split.values, noise=scales.noise
    ).predict(split.wanted)
    off = (fit.mean - exact.mean) / exact.variance.sqrt()
    ratio = fit.variance / exact.variance
    assert float(off.square().mean()) < 0.02**2
    assert 0.85 < float(ratio.mean()) < 1.15


def test_scores_of_known_moments_are_right(small):
    from road3d_engines import Fit, scores

    split, _ = small
    zero = torch.zeros_like(split.test_values)
    fit = Fit(mean=zero, variance=zero + 0.75, noise=0.25, seconds=0.0)
    found = scores(fit, split)
    square = float(split.test_values.square().mean())
    assert found["RMSE"] == pytest.approx(square**0.5)
    assert found["NLL"] == pytest.approx(0.5 * (np.log(2 * np.pi) + square))


def test_means_are_those_of_the_splits():
    from road3d_engines import averaged

    rows = [
        {"engine": "b", "M": 9, "RMSE": 1.0, "NLL": 3.0},
        {"engine": "a", "M": 9, "RMSE": 5.0, "NLL": 6.0},
        {"engine": "b", "M": 9, "RMSE": 3.0, "NLL": 3.0},
    ]
    one, two = averaged(rows)
    assert (one["engine"], one["splits"], one["RMSE ±"]) == ("a", 1, None)
    assert (two["splits"], two["RMSE"], two["NLL ±"]) == (2, 2.0, 0.0)
    assert two["RMSE ±"] == pytest.approx(2**0.5)
