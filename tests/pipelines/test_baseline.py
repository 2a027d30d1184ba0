"""What neighbouring stars alone predict: beside a map, and without one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import one_cloud
import pytest
import torch

from pipelines.catalog.schema import Stars, read_table
from pipelines.fit import FitReport
from pipelines.run.baseline import Baseline, baseline_score, is_worse
from pipelines.run.held_out import HeldOut, read_held_out
from pipelines.run.kriged import predict_baseline
from pipelines.view.embedding import rendered
from pipelines.view.page import TEMPLATES, WORDS
from pipelines.view.record import read_record


@pytest.fixture(scope="module")
def catalogue() -> Stars:
    return one_cloud.catalogue(300, seed=8)


def beside(error: float, count: int = 200) -> tuple[Baseline, np.ndarray]:
    """Return predictions that are off by so much, and what was observed."""
    observed = np.linspace(0.5, 1.5, count)
    sign = np.where(np.arange(count) % 2, 1.0, -1.0)
    kriging_std = np.full(count, error)
    return Baseline(kriging=observed + error * sign, kriging_std=kriging_std), observed


def test_kriging_finds_a_cloud_and_states_its_error(catalogue) -> None:
    fresh = one_cloud.catalogue(200, seed=9)
    found = predict_baseline(catalogue, fresh, torch.Generator().manual_seed(0))
    assert found is not None
    true = one_cloud.extinction(fresh.positions())
    assert np.sqrt(np.mean((found.kriging - true) ** 2)) < 0.6 * true.std()
    z = np.abs(found.kriging - true) / found.kriging_std
    assert 0.5 < np.mean(z < 1) < 0.95
    few = catalogue.select(slice(0, 99))
    assert predict_baseline(few, catalogue, torch.Generator()) is None


@pytest.mark.parametrize(("factor", "worse"), [(0.5, False), (1.0, False), (3.0, True)])
def test_a_map_loses_where_its_squared_errors_are_larger(factor, worse) -> None:
    found, observed = beside(0.1)
    rng = np.random.default_rng(0)
    predicted = observed + factor * 0.1 * rng.standard_normal(len(observed))
    score = baseline_score(found, observed, predicted)
    assert score["rmse_kriging"] == pytest.approx(0.1)
    difference = (predicted - observed) ** 2 - 0.1**2
    error = difference.std(ddof=1) / np.sqrt(len(observed))
    assert score["excess"] == pytest.approx(difference.mean() / error)
    assert is_worse(score) is worse


def test_a_fit_keeps_it_and_prints_it(positive_run) -> None:
    columns, units, _ = read_table(positive_run.path / "held_out.parquet")
    held = positive_run.summary["held_out"]
    observed = columns["extinction"]
    rmse = np.sqrt(np.mean((columns["kriging"] - observed) ** 2))
    assert held["rmse_kriging"] == pytest.approx(rmse)
    assert units["kriging"] == units["kriging_std"] == "mag"
    report = FitReport(
        output=positive_run.path,
        plan=positive_run.plan,
        converged=True,
        messages=[],
        **{
            name: positive_run.summary[name]
            for name in ("counts", "held_out", "seconds", "peak_memory_bytes")
        },
    )
    assert f"RMSE without a map: grid-free kriging {rmse:.4g} mag" in str(report)


def test_a_page_warns_of_a_map_that_loses(positive_run) -> None:
    held = read_held_out(positive_run.path)
    assert held is not None and held.baseline is not None
    observed = held.predicted["mean"] + np.linspace(0.1, 0.2, len(held))
    exact = held.baseline._replace(kriging=observed)
    worse = replace(held, observed=observed, baseline=exact)
    record = read_record(positive_run.path)

    def page(held: HeldOut) -> str:
        run = replace(record, held_out=held)
        return rendered(TEMPLATES, "record.html", run=run, band="", **WORDS)

    assert "grid-free kriging" in page(worse) and "loses to it" in page(worse)
    assert "grid-free kriging" not in page(replace(held, baseline=None))
