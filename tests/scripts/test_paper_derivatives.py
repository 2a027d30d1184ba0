"""Values and derivatives together: HIP-GP and SVGP give the exact posterior."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread

FOLDER = Path(__file__).resolve().parents[2] / "scripts/paper"


@pytest.fixture
def methods(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import derivative_methods

    return derivative_methods


def dense_posterior(methods, data):
    """Moments from the kernel's formula and its derivatives, without the library."""
    x = torch.cat([data.at, data.slopes_at, data.test])[:, 0]
    order = torch.cat(
        [
            torch.zeros(methods.VALUES),
            torch.ones(methods.DERIVATIVES),
            torch.zeros(methods.TESTS),
        ]
    )
    lag, square = x[:, None] - x[None, :], 0.1**2
    k = 0.5 * torch.exp(-(lag**2) / (2 * square))
    left, right = order[:, None] == 1, order[None, :] == 1
    k = torch.where(
        left & right,
        k * (1 / square - lag**2 / square**2),
        torch.where(left, -k * lag / square, torch.where(right, k * lag / square, k)),
    )
    count = methods.VALUES + methods.DERIVATIVES
    noise = torch.where(order[:count] == 1, 0.2**2, 0.05**2)
    total = k[:count, :count] + noise.diag()
    cross = k[count:, :count]
    values = torch.cat([data.values, data.slopes])
    mean = cross @ torch.linalg.solve(total, values)
    prior = k[count:, count:].diagonal()
    return mean, prior - (cross * torch.linalg.solve(total, cross.mT).mT).sum(dim=1)


def test_a_smoke_run_finds_all_methods_equal_to_the_exact_gp(
    methods, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        sys, "argv", ["derivative_gp", "--quick", "--output", str(tmp_path)]
    )
    importlib.import_module("derivative_gp").main()
    record = json.loads((tmp_path / "derivative_gp.json").read_text())
    (rows,) = record["tables"].values()
    assert len(rows) == 2 * 2 * 3
    for row in rows:
        if row["M"] == 41:
            assert float(row["worst RMSE / exact"]) == pytest.approx(1, abs=1e-3)
            assert float(row["worst uncertainty / exact"]) == pytest.approx(1, abs=0.01)
    left = {entry["what"]: entry["here"] for entry in record["comparisons"]}
    assert left["rmse, HIP-GP, with / without derivatives"] < 0.9
    assert left["uncertainty, HIP-GP, with / without derivatives"] < 0.9
    assert {entry["paper"] for entry in record["comparisons"]} >= {0.0192, 0.0206}
    assert imread(tmp_path / "derivative_gp.png").shape[1] > 1000


def test_the_exact_posterior_is_that_of_the_kernels_formula(methods):
    data = methods.draw_data(3)
    mean, variance = dense_posterior(methods, data)
    found = methods.exact(data, derivatives=True)
    torch.testing.assert_close(found.mean, mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance, variance, rtol=1e-6, atol=1e-9)


def test_data_are_noisy_values_and_slopes_of_the_function(methods):
    data = methods.draw_data(5)
    step = 1e-6
    ahead, behind = (data.function(data.slopes_at + s) for s in (step, -step))
    slope_error = data.slopes - (ahead - behind) / (2 * step)
    value_error = data.values - data.function(data.at)
    assert (len(value_error), len(slope_error)) == (100, 20)
    assert 0.04 < float(value_error.std()) < 0.06
    assert 0.1 < float(slope_error.std()) < 0.3
    again = methods.draw_data(5)
    torch.testing.assert_close(again.values, data.values, rtol=0, atol=0)
