"""The verb from a table to a folder, and the methods behind it against each other."""

import copy
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

from dustmap.inference.svi.bound import LatentMoments
from dustmap.likelihoods import Gaussian, StudentT
from pipelines.regress import Prediction, Regressor, regress_table
from pipelines.regress.methods import fitted_noise
from pipelines.regress.run import compare_with_neighbours, scores
from pipelines.regress.table import Rows
from tests.reference import Covariance, exact_posterior

NOISE = 0.1
FILES = {
    "COMPLETE",
    "manifest.json",
    "metrics.json",
    "plot.png",
    "predictions.parquet",
    "regressor.safetensors",
    "summary.json",
    "summary.txt",
}


@pytest.fixture(autouse=True, scope="module")
def shorter_searches():
    """Tables here are easier than most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.regress.methods._FEWEST_STEPS", 100)
        patch.setattr("pipelines.regress.methods._NOISES", (0.03, 0.3))
        yield


def wave(count, seed=0, axes=1):
    """Inputs, a smooth function of the first, and the same with noise."""
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, (count, axes))
    clean = np.sin(3 * x[:, 0])
    return x, clean, clean + NOISE * random.normal(size=count)


def save(path, **columns):
    lines = [
        ",".join(columns),
        *(",".join(map(str, r)) for r in zip(*columns.values())),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(tmp_path, name="run", columns=None, drawn=False, **choices):
    """A run, which has an empty plot unless it is to be drawn."""
    x, _, y = wave(90)
    source = save(tmp_path / f"{name}.csv", **(columns or {"t": x[:, 0], "y": y}))
    with pytest.MonkeyPatch.context() as patch:
        if not drawn:
            patch.setattr("pipelines.regress.run.draw", lambda *_: Figure())
        return regress_table(source, tmp_path / name, **{"target": "y", **choices})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run in one input by the exact method."""
    folder = tmp_path_factory.mktemp("regress")
    return folder, run(folder, drawn=True)


def test_the_folder_holds_what_is_promised(finished, command):
    folder, report = finished
    run = folder / "run"
    assert {p.name for p in run.iterdir()} == FILES
    assert (run / "summary.txt").read_text() == str(report) + "\n"
    assert json.loads((run / "metrics.json").read_text()) == report.metrics
    table = pq.read_table(run / "predictions.parquet")
    assert table.column_names == ["row", "truth", "mean", "std", "p16", "p50", "p84"]
    assert table.num_rows == report.metrics["rows"] == 18
    assert "files match" in command(f"status {run}").output
    image = imread(run / "plot.png")
    assert min(image.shape[:2]) > 300 and image[..., :3].std() > 0.05


def test_the_end_is_a_verdict_by_the_test_rows(finished):
    folder, report = finished
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["method"] == "exact" and summary["inputs"] == ["t"]
    assert summary["rows"]["fitted"] == 72 and summary["rows"]["tested"] == 18
    assert summary["hyperparameters"]["noise"] == pytest.approx(NOISE, rel=0.4)
    assert summary["verdict"] == str(report.verdict)
    assert summary["grade"] == report.verdict.grade
    assert str(report).rstrip().endswith(str(report.verdict))
    good = {"rows": 2000, "coverage_68": 0.68, "coverage_95": 0.95, "z_median": 0.0}
    good |= {"rmse": 0.1, "rmse_neighbours": 0.13, "excess": -9.0}
    bad = [
        {"coverage_68": 0.16, "coverage_95": 0.33},
        {"rmse": 0.34, "excess": 20.0},
        {"z_median": 1.5},
    ]
    for changes in ({}, *bad):
        judged = replace(report, metrics={**good, **changes})
        assert (judged.verdict.grade == "usable") == (not changes)
    # Nothing is compared with neighbours that have no error.
    same = replace(judged, metrics={**good, "rmse_neighbours": 0.0, "excess": 9.0})
    assert same.verdict.grade == "usable"


def test_the_nearest_rows_are_compared_with_on_the_test_rows():
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 100.0, 5.0, 98.0])
    y = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 100.0, 7.0, 90.0])
    data = Rows(
        x=x[:, None],
        y=y,
        row=np.arange(8),
        test=np.arange(8) >= 6,
        inputs=("t",),
        target="y",
        missing={},
        left_out=0,
        notes=(),
    )
    model = Regressor()
    model.input_shift_, model.input_scale_ = np.array([3.0]), np.array([2.0])
    found = compare_with_neighbours(model, data, np.array([6.0, 88.0]))
    plain = np.array([y[:6].mean(), y[:6].mean()])
    squared = (plain - y[6:]) ** 2
    assert found["rmse_neighbours"] == pytest.approx(squared.mean() ** 0.5)
    gain = np.array([1.0, 4.0]) - squared
    expected = gain.mean() / (gain.std(ddof=1) / np.sqrt(2))
    assert found["excess"] == pytest.approx(expected)


def test_predictions_are_those_of_dense_algebra_in_the_table_s_unit(finished):
    folder, report = finished
    found = json.loads((folder / "run" / "summary.json").read_text())["hyperparameters"]
    data = report.rows
    name = {"Matern52": "matern52", "Matern32": "matern32"}[found["kernel"]]
    scale, std = (found["lengthscale"]["t"],), found["std"]
    covariance = Covariance(name=name, lengthscale=scale, variance=std**2)
    fit, test = data.x[~data.test], data.x[data.test]
    noise = np.full(len(fit), found["noise"] ** 2)
    mean, spread = exact_posterior(
        covariance.matrix(fit, fit),
        covariance.matrix(test, fit),
        covariance.matrix(test, test),
        data.y[~data.test] - found["mean"],
        noise,
    )
    table = pq.read_table(folder / "run" / "predictions.parquet").to_pydict()
    mean = mean + found["mean"]
    total = np.sqrt(np.diag(spread) + found["noise"] ** 2)
    np.testing.assert_allclose(table["mean"], mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(table["std"], total, rtol=1e-6)
    np.testing.assert_allclose(table["p84"], mean + total, rtol=1e-6, atol=1e-8)
    z = (data.y[data.test] - mean) / total
    nll = np.mean(0.5 * z**2 + np.log(total) + 0.5 * np.log(2 * np.pi))
    assert report.metrics["nll"] == pytest.approx(nll, rel=1e-6)
    assert report.metrics["rmse"] == pytest.approx(
        np.sqrt(np.mean((z * total) ** 2)), rel=1e-6
    )
    assert report.metrics["coverage_68"] == pytest.approx(np.mean(np.abs(z) <= 1))
    assert np.array_equal(table["truth"], data.y[data.test])


@pytest.mark.parametrize(("scale", "shift"), [(1e6, 0.0), (1e-6, 0.0), (1.0, 1e7)])
def test_the_units_of_target_and_input_do_not_matter(finished, tmp_path, scale, shift):
    x, _, y = wave(90)
    columns = {"t": scale * x[:, 0] + shift, "y": scale * y + shift}
    found, plain = run(tmp_path, columns=columns).metrics, finished[1].metrics
    assert found["rmse"] / scale == pytest.approx(plain["rmse"], rel=1e-3)
    assert found["nll"] - np.log(scale) == pytest.approx(plain["nll"], abs=1e-2)
    assert found["coverage_95"] == plain["coverage_95"]


def test_the_same_seed_gives_the_same_run(finished, tmp_path):
    assert run(tmp_path).metrics == finished[1].metrics
    assert run(tmp_path, "other", seed=1).metrics != finished[1].metrics


@pytest.mark.parametrize("method", ["neighbours", "svgp"])
def test_every_method_comes_near_the_exact_one(finished, tmp_path, method):
    report = run(tmp_path, method=method)
    assert report.model.method_ == method
    assert report.metrics["rmse"] == pytest.approx(
        finished[1].metrics["rmse"], rel=0.15
    )
    assert report.metrics["nll"] == pytest.approx(finished[1].metrics["nll"], abs=0.2)
    assert report.model.field_.converged, str(report)


def test_steps_that_end_too_early_are_no_convergence(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.regress.methods._FEWEST_STEPS", 3)
    monkeypatch.setattr("pipelines.regress.methods._EPOCHS", 1)
    monkeypatch.setattr("pipelines.regress.methods._NATURAL_RATE", 0.01)
    report = run(tmp_path, method="svgp")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert not report.model.field_.converged and not summary["converged"]
    assert summary["late_rise_per_row"] > 1e-3
    assert "the steps ended before scales and intervals had settled" in str(report)


def with_outliers(count):
    x, clean, y = wave(count, seed=15)
    random = np.random.default_rng(16)
    y[::10] += 4 * random.normal(size=len(y[::10]))
    return x, clean, y


@pytest.mark.parametrize("method", ["exact", "neighbours", "svgp"])
def test_heavy_tails_save_the_fit_from_outliers(tmp_path, method):
    x, clean, y = with_outliers(160)
    columns = {"t": x[:, 0], "y": y}
    errors, nll = {}, {}
    for likelihood in ("gaussian", "student-t"):
        name = f"{method}_{likelihood}"
        report = run(
            tmp_path, name, columns=columns, method=method, likelihood=likelihood
        )
        table = pq.read_table(tmp_path / name / "predictions.parquet").to_pydict()
        errors[likelihood] = np.std(np.array(table["mean"]) - clean[table["row"]])
        nll[likelihood] = report.metrics["nll"]
    assert errors["student-t"] < 0.7 * errors["gaussian"]
    assert nll["student-t"] < nll["gaussian"] - 0.3
    assert report.model.hyperparameters()["degrees"] < 5
    assert "Student-T, ν" in str(report)


@pytest.mark.parametrize("axes", [2, 3])
def test_figures_are_drawn_in_more_inputs(tmp_path, axes):
    x, _, y = wave(80, axes=axes)
    columns = {f"x{i}": x[:, i] for i in range(axes)} | {"y": y}
    run(tmp_path, columns=columns, drawn=True)
    image = imread(tmp_path / "run" / "plot.png")
    assert image[..., :3].std() > 0.05


@pytest.mark.parametrize(
    ("rows", "inputs", "likelihood", "method"),
    [
        (2000, 9, "gaussian", "exact"),
        (2001, 4, "gaussian", "neighbours"),
        (2000, 3, "student-t", "exact"),
        (2001, 3, "student-t", "neighbours"),
        (500, 4, "student-t", "svgp"),
    ],
)
def test_the_method_follows_from_rows_inputs_and_likelihood(
    monkeypatch, rows, inputs, likelihood, method
):
    fitted = []
    engines = {
        name: lambda *_, name=name: fitted.append(name) or SimpleNamespace(model=None)
        for name in ("exact", "neighbours", "svgp")
    }
    monkeypatch.setattr("pipelines.regress.methods.METHODS", engines)
    monkeypatch.setattr(
        "pipelines.regress.methods.fit", lambda *_: engines["neighbours"]()
    )
    x, y = np.ones((rows, inputs)), np.arange(rows) % 2
    model = Regressor(likelihood=likelihood).fit(x, y)
    assert fitted == [model.method_] == [method]


def test_scores_are_those_of_their_definitions():
    truth = np.array([0.0, 1.0, 4.0, 9.0])
    zero = torch.zeros(4, dtype=torch.float64)
    latent = LatentMoments(mean=zero, variance=zero + 0.75)
    noise = Gaussian(variance=0.25)
    found = scores(
        truth, Prediction(latent=latent, likelihood=noise, shift=2.0, scale=3.0)
    )
    error = truth - 2.0
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert found["mae"] == pytest.approx(np.mean(np.abs(error)))
    nll = 0.5 * (error / 3) ** 2 + np.log(3 * np.sqrt(2 * np.pi))
    assert found["nll"] == pytest.approx(nll.mean())
    assert found["coverage_68"] == 0.75 and found["coverage_95"] == 0.75
    assert found["z_median"] == pytest.approx(np.median(error / 3))


def test_a_negative_variance_is_no_prediction(finished):
    zero = torch.zeros(1, dtype=torch.float64)
    model, place = copy.copy(finished[1].model), {"t": [0.5]}
    for variance, fine in ((-1e-9, True), (-1e-3, False)):
        latent = LatentMoments(mean=zero, variance=zero + variance)
        fixed = SimpleNamespace(predict=lambda _, latent=latent: latent)
        model.field_ = replace(model.field_, model=fixed)
        if fine:
            assert np.isfinite(model.predict(place, return_std=True)[1]).all()
            continue
        with pytest.raises(RuntimeError, match="try another method"):
            model.predict(place)


def test_student_noise_is_found_from_residuals():
    random = np.random.default_rng(1)
    y = torch.as_tensor(0.3 * random.standard_t(4, 4000))
    latent = LatentMoments(mean=torch.zeros_like(y), variance=torch.full_like(y, 1e-9))
    noise = fitted_noise(y, latent, StudentT(scale=1.0, degrees=10.0))
    assert float(noise.scale) == pytest.approx(0.3, rel=0.08)
    assert float(noise.degrees) == pytest.approx(4, rel=0.3)
    drawn = StudentT.clipped(torch.cat([y, torch.tensor([99.0]).double()]))
    assert float(drawn.max()) < 4 and torch.equal(
        StudentT.clipped(y[:3] * 0), y[:3] * 0
    )


def test_the_command_line_says_the_same(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, _, y = wave(60)
    save(tmp_path / "t.csv", t=x[:, 0], u=x[:, 0] ** 2, y=y)
    done = command("regress t.csv -o run --target y --inputs t --seed 3")
    assert done.exit_code == 0, done.output
    assert "inputs: t\n" in done.output and "\nrun: run\n" in done.output
    again = command("regress t.csv -o run --target y")
    assert again.exit_code == 2 and "overwrite" in again.output
    assert command("regress t.csv -o run --target y --overwrite").exit_code == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["inputs"] == [
        "t",
        "u",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("regress absent.csv -o x --target y", "absent.csv is not a file"),
        ("regress t.csv -o x", "Missing option '--target'"),
        ("regress t.csv -o notes --target y --overwrite", "holds no COMPLETE"),
        ("regress t.csv -o x --target y --inputs ,", "--inputs names no column"),
    ],
)
def test_a_mistake_is_explained_and_leaves_nothing(
    command, tmp_path, monkeypatch, line, said
):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "t.csv", t=range(20), y=range(20))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary\n")
    before = sorted(tmp_path.rglob("*"))
    done = command(line)
    assert done.exit_code == 2 and said in done.output
    assert sorted(tmp_path.rglob("*")) == before
