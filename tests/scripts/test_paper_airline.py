"""The flights are what they are said to be, and the models are compared on them."""

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


def flight_file(folder, rows=900, missing=0):
    """Delays that swing with the hour of departure, which no linear model follows."""
    from regression_data import FLIGHT_INPUTS

    random = np.random.default_rng(1)
    inputs = random.uniform(1, 1_000, (rows, 8))
    hour = FLIGHT_INPUTS.index("dep_time_min")
    delay = 30 * np.sin(inputs[:, hour] / 100) + random.normal(0, 3, rows)
    lines = [",".join(map(str, row)) for row in np.column_stack([inputs, delay])]
    lines += ["," + line.partition(",")[2] for line in lines[:missing]]
    file = folder / "flights.csv"
    file.write_text("\n".join([",".join((*FLIGHT_INPUTS, "arr_delay")), *lines]) + "\n")
    return file


def quick(folder, monkeypatch, *arguments):
    import airline

    chosen = ["airline", "--quick", "--output", str(folder), *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", chosen)
    airline.main()
    return json.loads((folder / "airline.json").read_text())


def test_a_smoke_run_compares_all_models_on_the_same_flights(tmp_path, monkeypatch):
    record = quick(tmp_path, monkeypatch, "--file", flight_file(tmp_path, missing=7))
    rows = {(r["model"], r["M or N"]): r for r in record["tables"]["Models"]}
    assert list(rows) == [
        ("constant", None),
        ("linear", None),
        ("exact GP", 100),
        ("SVGP", 20),
        ("SVGP", 40),
    ]
    # 30 |sin| has an RMSE of 21, and a straight line explains little of it.
    assert 18 < rows["constant", None]["RMSE [min]"] < 24
    shares = {entry["what"]: entry["here"] for entry in record["comparisons"]}
    expected = rows["SVGP", 40]["RMSE [min]"] / rows["linear", None]["RMSE [min]"]
    assert shares["RMSE of SVGP (M = 40) / linear"] == pytest.approx(expected)
    assert any("7 rows of the file left out" in note for note in record["notes"])
    assert imread(tmp_path / "airline.png").shape[1] > 1000


def test_svgp_finds_what_a_linear_model_cannot(tmp_path):
    import airline
    from regression_data import read_flights

    from dustmap.inference.svi import SvgpSettings

    data = read_flights(flight_file(tmp_path, rows=2_000), 1)
    settings = SvgpSettings(
        batch_size=100, steps=150, natural_rate=0.3, rate=0.1, tolerance=0.05
    )
    fit = airline.sparse_fit(data, 100, settings, 1)
    straight = airline.error_row(data, "linear", None, airline.linear(data))
    row = airline.sparse_row(data, 100, fit)
    assert row["RMSE [min]"] < 0.7 * straight["RMSE [min]"]
    scales = fit.model.kernel.parameters()["lengthscale"]
    assert int(scales.argmin()) == 3


def test_the_linear_model_finds_a_line_exactly(tmp_path):
    from airline import linear
    from regression_data import split

    random = np.random.default_rng(2)
    inputs = random.normal(3, 2, (60, 2))
    data = split("line", inputs, inputs @ [1.5, -2.0] + 4, 1)
    raised = replace(data, values=data.values + 2)
    torch.testing.assert_close(linear(raised), data.test_values + 2)


def test_a_missing_file_is_one_line_and_status_2(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        quick(tmp_path, monkeypatch, "--file", tmp_path / "absent.csv")
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
