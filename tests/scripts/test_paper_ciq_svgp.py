"""SVGP by either whitening is the same model; the sets are what they are said to be."""

import gzip
import json
import sys
from dataclasses import replace
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
    import ciq_svgp

    chosen = ["ciq_svgp", "--quick", "--output", str(folder), *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", chosen)
    ciq_svgp.main()
    return json.loads((folder / "ciq_svgp.json").read_text())


def table_of(inputs, values):
    lines = [",".join(map(str, row)) for row in np.column_stack([inputs, values])]
    return "\n".join(lines) + "\n"


def small_sets(folder, rows=300):
    """A folder with an arm, precipitation and flights in the shipped files' layout."""
    from regression_data import FLIGHT_INPUTS, FLIGHTS, KIN40K, PRECIPITATION

    random = np.random.default_rng(1)
    x = random.normal(size=(rows, 8))
    wave = np.sin(2 * x[:, 1])
    noisy = wave + 0.1 * random.standard_t(3, rows)
    rain = np.column_stack(
        [x[:, 1:3], np.full(rows, 1996), random.integers(1, 13, rows)]
    )
    names = ",".join((*FLIGHT_INPUTS, "arr_delay"))
    for file, text in {
        KIN40K: table_of(x, wave),
        PRECIPITATION: "lon,lat,year,month,ppt_cm\n" + table_of(rain, noisy),
        FLIGHTS: f"{names}\n" + table_of(x, np.where(wave > 0, 30, 0)),
    }.items():
        (folder / file).write_bytes(gzip.compress(text.encode()))
    return ["--data", folder]


def test_a_smoke_run_trains_by_both_whitenings_and_times_them(tmp_path, monkeypatch):
    record = quick(tmp_path, monkeypatch, *small_sets(tmp_path))
    tables = record["tables"]
    assert [row["data"] for row in tables["Training"][::2]] == [
        "kin40k",
        "Colorado precipitation",
        "delayed flights",
    ]
    assert [row["M"] for row in tables["Training"][:2]] == [20, 40]
    pairs = tables["Both whitenings, the same steps"]
    fixed = [abs(row["CIQ - Cholesky"]) for row in pairs if not row["learning"]]
    assert len(fixed) == 3 and max(fixed) < 2e-3
    assert max(abs(row["CIQ - Cholesky"]) for row in pairs) < 0.1
    timed = {(row["kernel"], row["method"], row["M"]) for row in
             tables["One step of learning"]}  # fmt: skip
    assert len(timed) == 6
    here = {entry["what"]: entry["here"] for entry in record["comparisons"]}
    assert here["time of Cholesky / CIQ, M = 5,000"] is None
    assert here["learnt noise variance of Student's t, fewest to most points"]
    assert imread(tmp_path / "ciq_svgp.png").shape[1] > 1000


def test_the_papers_training_runs_by_both_whitenings(tmp_path, monkeypatch):
    """As in a full run, but for sizes: points move, one set has its own rates."""
    import ciq_svgp

    small = replace(
        ciq_svgp.PLANS["full"],
        rows=200,
        sizes=(12,),
        timed=(12,),
        hard=12,
        repeats=1,
        sides=(8,),
        settings=replace(ciq_svgp.PLANS["full"].settings, epochs=2),
    )
    monkeypatch.setitem(ciq_svgp.PLANS, "quick", small)
    files = small_sets(tmp_path)
    record = quick(tmp_path, monkeypatch, *files)
    assert [row["method"] for row in record["tables"]["Training"]] == [
        "Cholesky",
        "CIQ",
    ] * 3
    pairs = record["tables"]["Both whitenings, the same steps"]
    assert [row["steps"] for row in pairs] == [2, 2, 2]
    rates = [
        ciq_svgp.training_settings(task, small).natural_rate
        for task in ciq_svgp.find_tasks(ciq_svgp.arguments(), small)[0]
    ]
    assert rates == [0.01, 0.005, 0.01]


@pytest.fixture
def problem(tmp_path):
    """Rows, points and where training starts."""
    from regression_data import split
    from svgp_runs import Model

    from dustmap.likelihoods import Gaussian

    random = np.random.default_rng(3)
    inputs = random.normal(size=(300, 2))
    values = np.sin(2 * inputs[:, 0]) + 0.3 * random.normal(size=300)
    data = split("wave", inputs, values, 1)
    start = Model.start(0.7, 2, Gaussian(variance=0.3))
    return data, data.train[::10], start


@pytest.mark.parametrize("learn", [(), ("likelihood.variance", "mean")])
def test_a_q_of_either_whitening_predicts_the_same_under_one_kernel(problem, learn):
    from svgp_runs import CHOLESKY, DENSE, train

    from dustmap.inference.svi import SvgpSettings

    settings = SvgpSettings(
        batch_size=50, steps=8, natural_rate=0.3, rest=0.0, learn=learn, tolerance=0.05
    )
    fits = [train(name, *problem, settings, 1) for name in (CHOLESKY, DENSE)]
    assert fits[0].nll == pytest.approx(fits[1].nll, abs=1e-3)
    assert fits[0].error == pytest.approx(fits[1].error, abs=1e-3)
    assert len(fits[0].steps) == 7 and fits[0].seconds > 0
    assert fits[0].error < 0.6


def test_scores_are_those_of_the_dense_posterior(problem):
    """With a step of one on all rows the bound is at its optimum (Titsias 2009)."""
    from svgp_runs import CHOLESKY, NUGGET, train

    from dustmap.inference.svi import SvgpSettings

    data, points, start = problem
    settings = SvgpSettings(
        batch_size=len(data.values), steps=2, natural_rate=1.0, decay_at=(), learn=()
    )
    fit = train(CHOLESKY, data, points, start, settings, 1)

    def kernel(x, z):
        r = 5**0.5 * torch.cdist(x, z) / 0.7
        return (1 + r + r**2 / 3) * torch.exp(-r)

    K = kernel(points, points) + NUGGET * torch.eye(len(points), dtype=torch.float64)
    K_un = kernel(points, data.train)
    A = K + K_un @ K_un.mT / 0.3
    cross = kernel(points, data.test)
    mean = cross.mT @ torch.linalg.solve(A, K_un @ data.values) / 0.3
    inner = torch.linalg.inv(K) - torch.linalg.inv(A)
    variance = 1.3 - (cross * (inner @ cross)).sum(dim=0)
    expected = torch.distributions.Normal(mean, variance.sqrt())
    nll = -float(expected.log_prob(data.test_values).mean())
    assert fit.nll == pytest.approx(nll, rel=1e-6)
    rmse = float(((mean - data.test_values) ** 2).mean().sqrt())
    assert fit.error == pytest.approx(rmse, rel=1e-6)


def test_features_on_a_grid_agree_for_all_methods():
    from svgp_runs import DENSE, PCG, TOEPLITZ, grid_rows

    rows = {row["method"]: row for row in grid_rows(9, 5, 1, dense=True)}
    errors = {name: rows[name]["largest error of k·k'"] for name in rows}
    assert errors[DENSE] < 1e-4 and errors[TOEPLITZ] < 1e-4 and errors[PCG] < 1e-2
    assert all(row["short of the tolerance"] == 0 for row in rows.values())
    assert {row["method"] for row in grid_rows(9, 5, 1, dense=False)} == {TOEPLITZ, PCG}


def test_the_crossover_is_the_first_size_at_which_cholesky_is_slower():
    from ciq_report import crossover, ratios

    timed = [
        {"kernel": "start", "method": method, "M": size, "seconds per step": seconds}
        for method, size, seconds in (
            ("Cholesky", 500, 1.0),
            ("CIQ", 500, 4.0),
            ("Cholesky", 1_000, 8.0),
            ("CIQ", 1_000, 4.0),
            ("Cholesky", 2_000, 64.0),
        )
    ]
    assert ratios(timed, "start") == {500: 0.25, 1_000: 2.0}
    assert crossover(ratios(timed, "start")) == "1,000"
    assert crossover(ratios(timed[:2], "start")) == "none up to 500"
    assert crossover(ratios(timed, "trained")) is None


def test_rows_are_split_and_standardised_by_those_to_train_on():
    from regression_data import split

    inputs = np.column_stack([np.arange(100.0), np.full(100, 7.0)])
    data = split("ramp", inputs, 3 * inputs[:, 0] + 1, 5)
    assert (len(data.train), len(data.test)) == (75, 15)
    assert float(data.train[:, 0].mean()) == pytest.approx(0, abs=1e-12)
    assert float(data.values.std(correction=0)) == pytest.approx(1)
    assert not data.train[:, 1].any() and not data.test[:, 1].any()
    # One line through all rows: those to test on have the same units.
    torch.testing.assert_close(data.test[:, 0], data.test_values)
    seen = {round(float(v), 9) for v in (*data.values, *data.test_values)}
    assert len(seen) == 90
    assert len(data.shortened(10, 4).train) == 10


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        ("read_kin40k", "1,2,3\n" * 20, "3 columns, expected 8 inputs"),
        ("read_kin40k", "1,2,3,4,5,6,7,8,9\n" * 9, "9 rows, at least 14"),
        ("read_kin40k", "1,2,3,4,5,6,7,8,nan\n" * 20, "20 of 20 rows are not finite"),
        ("read_kin40k", "1,2,dear\n3,x,4\n", "no table of numbers"),
        ("read_flights", "plane_age,distance\n1,2\n", "has no column air_time"),
    ],
)
def test_faulty_files_are_refused(tmp_path, reader, text, message):
    import regression_data

    from pipelines.base.errors import InputError

    file = tmp_path / regression_data.KIN40K
    file.write_bytes(gzip.compress(text.encode()))
    given = tmp_path if reader == "read_kin40k" else file
    with pytest.raises(InputError, match=message):
        getattr(regression_data, reader)(given, 1)


def test_no_data_at_all_is_one_line_and_status_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DUSTMAP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit) as ended:
        quick(tmp_path, monkeypatch)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.data
def test_the_sets_that_stand_in_have_their_rows(data_dir):
    from regression_data import FLIGHTS, read_colorado, read_flights, read_kin40k

    arm, rain = read_kin40k(data_dir, 1), read_colorado(data_dir, 1)
    assert (arm.train.shape, len(arm.test)) == ((30_000, 8), 6_000)
    assert (rain.train.shape, len(rain.test)) == ((6_489, 3), 1_297)
    late = read_flights(data_dir / FLIGHTS, 1, delayed=True)
    assert late.dropped == 9_628 and late.train.shape == (113_340, 8)
    assert 0.1 < float(late.values.mean()) < 0.2
