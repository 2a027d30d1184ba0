"""The spatial experiment: its data are what it says, its engines agree."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread

FOLDER = Path(__file__).resolve().parents[2] / "scripts/paper"


@pytest.fixture(autouse=True)
def paper(monkeypatch):
    """The folder of the scripts on the path, as Python puts it for a script."""
    monkeypatch.syspath_prepend(str(FOLDER))


def quick(folder, monkeypatch, *arguments):
    import spatial

    chosen = ["spatial", "--quick", "--output", str(folder), *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", chosen)
    spatial.main()
    return json.loads((folder / "spatial.json").read_text())


def test_a_smoke_run_needs_no_file_and_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("DUSTMAP_DATA", str(tmp_path / "nowhere"))
    record = quick(tmp_path, monkeypatch)
    assert record["notes"][0].startswith("US precipitation: not run")
    assert record["notes"][1].startswith("UK apartments: not run")
    uk = [entry for entry in record["comparisons"] if "UK apartments" in entry["what"]]
    assert [entry["paper"] for entry in uk][:2] == [0.411, 0.409]
    assert all(entry["here"] is None for entry in uk)
    few, many = record["tables"]["Full batch, all observations"]
    assert (few["M"], many["M"]) == (400, 900)
    assert many["RMSE of the noise-free"] < few["RMSE of the noise-free"] < 1
    assert few["converged"] and many["converged"]
    assert imread(tmp_path / "spatial.png").shape[1] > 1000


@pytest.mark.data
def test_stations_are_mapped_better_on_more_points(tmp_path, monkeypatch, data_dir):
    record = quick(tmp_path, monkeypatch, "--data", data_dir)
    rows = [
        row
        for row in record["tables"]["Full batch, all observations"]
        if row["data"] == "US precipitation"
    ]
    assert rows[0]["N"] == 4_725
    assert rows[1]["RMSE"] < rows[0]["RMSE"] < 0.5


def test_a_missing_folder_is_one_line_and_status_2(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        quick(tmp_path, monkeypatch, "--data", tmp_path / "absent")
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_simulated_field_has_its_variance_lengthscale_and_noise():
    from spatial_data import simulate

    data = simulate(20_000, 5_000, 3)
    noise = data.test_values - data.truth
    assert float(noise.std()) == pytest.approx(0.3, rel=0.05)
    assert float(data.truth.std()) == pytest.approx(1.0, rel=0.05)
    assert float(data.values.mean()) == pytest.approx(0, abs=1e-12)
    again = simulate(20_000, 5_000, 3)
    torch.testing.assert_close(again.values, data.values, rtol=0, atol=0)
    # Matérn-5/2 one lengthscale apart: (1 + √5 + 5/3) exp(−√5).
    lag = torch.cdist(data.test, data.test) * 75
    near = torch.nonzero(((lag - 1).abs() < 0.1).triu())
    product = data.truth[near[:, 0]] * data.truth[near[:, 1]]
    expected = (1 + 5**0.5 + 5 / 3) * np.exp(-(5**0.5))
    assert float(product.mean()) == pytest.approx(expected, abs=0.06)


def uk_file(folder, rows):
    file = folder / "uk.csv"
    lines = [",".join(map(str, row)) for row in rows]
    file.write_text("\n".join(["longitude,latitude,price", *lines]) + "\n")
    return file


def test_prices_are_logarithms_inside_the_box_split_as_in_the_paper(
    tmp_path, monkeypatch
):
    import spatial_data

    monkeypatch.setattr(spatial_data, "_UK_TESTS", 2)
    rows = [(-1.0 - i / 10, 51.0 + i / 10, 1_000.0 * (i + 1)) for i in range(6)]
    file = uk_file(tmp_path, [*rows, (-7.0, 51.0, 5.0), (0.0, 60.0, 5.0)])
    data = spatial_data.read_uk(file)
    order = np.random.RandomState(0).permutation(6)
    prices = np.log([row[2] for row in rows])[order]
    assert (len(data.values), len(data.test_values)) == (4, 2)
    np.testing.assert_allclose(data.values, prices[:4] - prices[:4].mean())
    np.testing.assert_allclose(data.test_values, prices[4:] - prices[:4].mean())
    np.testing.assert_allclose(data.test, np.array(rows)[order][4:, :2])
    assert data.grid(11).upper == pytest.approx((1.8, 55.5))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0.0, 51.0, 5.0)], "1 sales in England and Wales"),
        ([(0.0, 51.0, "nan")] * 3, "3 of 3 rows are not finite"),
        ([(0.0, 51.0, "dear")] * 3, "no table of numbers"),
    ],
)
def test_faulty_price_files_are_refused(tmp_path, rows, message):
    from spatial_data import read_uk

    from pipelines.base.errors import InputError

    with pytest.raises(InputError, match=message):
        read_uk(uk_file(tmp_path, rows))
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    with pytest.raises(InputError, match="has no column"):
        read_uk(tmp_path / "other.csv")


@pytest.fixture
def problem():
    """A plane field that 100 points resolve but in part, and a kernel for it."""
    from spatial_data import simulate
    from spatial_engines import Model

    from dustmap.kernels import Matern52

    data = simulate(300, 80, 5)
    return data, Model(kernel=Matern52(lengthscale=0.15, variance=0.8), noise=0.2)


def test_svi_with_its_mean_solved_is_svgp(problem):
    from spatial_engines import SOLVED, STEPS, svgp, svi

    data, model = problem
    dense = svgp(data, model, 10).mean
    fits = svi(data, model, 10, 1, epochs=2, training=200, evaluation=200)
    torch.testing.assert_close(fits[SOLVED].mean, dense, rtol=1e-4, atol=1e-5)
    # The steps alone have not arrived, and nearer to it after more of them.
    few = (fits[STEPS].mean - dense).norm()
    more = svi(data, model, 10, 1, epochs=20, training=200, evaluation=200)
    assert 1e-4 < (more[STEPS].mean - dense).norm() < few


def test_stopping_early_changes_the_prediction_until_rows_converge(problem):
    from spatial_engines import stopped_early, svgp

    data, model = problem
    dense = svgp(data, model, 10).mean
    errors = [
        float((stopped_early(data, model, 10, n).mean - dense).norm())
        for n in (1, 4, 100)
    ]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 1e-4


def test_the_full_batch_predicts_as_well_as_svgp(problem):
    from spatial_engines import full_batch, svgp

    data, model = problem
    found, dense = full_batch(data, model, 16, 1), svgp(data, model, 16)
    assert found.facts["converged"]
    torch.testing.assert_close(found.mean, dense.mean, rtol=0.1, atol=0.05)
