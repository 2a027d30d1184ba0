"""`--whitening ciq`: the predictions of Cholesky's factor, by products alone."""

import numpy as np
import pandas
import pytest
from matplotlib.figure import Figure

from dustmap.linalg.roots import CIQ
from pipelines.base.errors import InputError
from pipelines.regress import Regressor, methods

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-2, 2, (60, 2))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * RANDOM.normal(size=60)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(methods, "_FEWEST_STEPS", 30)
    monkeypatch.setattr(methods, "_MOST_STEPS", 30)


def test_predictions_are_those_of_cholesky(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipelines.regress.run.draw", lambda *_: Figure())
    pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y}).to_csv("t.csv", index=False)
    found = {}
    for name in ("cholesky", "ciq"):
        line = f"regress t.csv -o {name} --target y --method svgp --whitening {name}"
        assert command(line).exit_code == 0
        found[name] = pandas.read_parquet(f"{name}/predictions.parquet")
    exact, ciq = found["cholesky"], found["ciq"]
    # While hyperparameters move, q(ε) that rests is another q(u) by either root.
    assert ((ciq["mean"] - exact["mean"]).abs() < 0.1 * exact["std"]).all()
    np.testing.assert_allclose(ciq["std"], exact["std"], rtol=0.05)
    assert not np.array_equal(ciq["mean"], exact["mean"])


def test_roots_that_stop_early_are_said_and_not_converged(monkeypatch):
    for name, value in {"_STILL": 1.0, "_FEWEST_STEPS": 12, "_MOST_STEPS": 12}.items():
        monkeypatch.setattr(methods, name, value)
    model = Regressor(method="svgp", whitening="ciq").fit(X, Y)
    assert model.field_.converged
    monkeypatch.setattr(methods, "_CIQ", CIQ(rtol=1e-4, max_steps=20))
    model = Regressor(method="svgp", whitening="ciq").fit(X, Y)
    assert not model.field_.converged
    assert any(line.startswith("warning") for line in model.field_.messages)


@pytest.mark.parametrize("line", ["", "--method exact", "--method neighbours"])
def test_other_methods_refuse_it(command, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    pandas.DataFrame({"a": X[:, 0], "y": Y}).to_csv("t.csv", index=False)
    done = command(f"regress t.csv -o x --target y --whitening ciq {line}")
    assert done.exit_code == 2 and not (tmp_path / "x").exists()


def test_unknown_whitenings_are_refused():
    with pytest.raises(InputError):
        Regressor(method="svgp", whitening="fft").check()
