"""The regressor as an estimator of scikit-learn, pickled, saved and drawn from."""

import copy
import functools
import pickle
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from astropy import units as u
from astropy.table import QTable, Table
from matplotlib.figure import Figure

from pipelines.base.errors import InputError
from pipelines.regress import Regressor, regress_table
from pipelines.saving.state_file import read_state, write_state
from pipelines.storage.atomic import write_manifest

ROWS = 60
RANDOM = np.random.default_rng(5)
X = RANDOM.uniform(-2, 2, (ROWS, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * RANDOM.normal(size=ROWS)
NEW = RANDOM.uniform(-2, 2, (7, 2))
METHODS = ("exact", "neighbours", "grid", "svgp")


@pytest.fixture(autouse=True, scope="module")
def short_searches():
    """One kernel from two starts, and no plot: these are tests of what a fit can do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.regress.methods._FEWEST_STEPS", 50)
        patch.setattr("pipelines.regress.methods._CANDIDATES", ("matern52",))
        patch.setattr("pipelines.regress.methods._NOISES", (0.03, 0.3))
        patch.setattr("pipelines.regress.run.draw", lambda *_: Figure())
        yield


@pytest.fixture(scope="module")
def fitted():
    return Regressor(seed=3).fit(X, Y)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table with units, to be followed by its regressions."""
    made = tmp_path_factory.mktemp("saved")
    columns = {"far": X[:, 0] * u.kpc, "tilt": X[:, 1], "y": Y * u.mag}
    QTable(columns).write(made / "t.fits")
    return made


@pytest.fixture(scope="module")
def runs(folder):
    """The folder and the model of a regression by this method, made once."""

    @functools.cache
    def made(method, likelihood):
        options = {"target": "y", "method": method, "likelihood": likelihood}
        place = folder / f"{method}_{likelihood}"
        return place, regress_table(folder / "t.fits", place, **options).model

    return made


def test_parameters_are_read_changed_and_cloned(fitted):
    base = pytest.importorskip("sklearn.base")
    model = base.clone(fitted)
    assert type(model) is Regressor and not hasattr(model, "field_")
    known = {"likelihood": "gaussian", "method": "auto", "seed": 3}
    known["whitening"] = "cholesky"
    assert model.get_params() == fitted.get_params() == known
    assert model.set_params(seed=4, method="exact") is model
    assert model.get_params() == {**known, "seed": 4, "method": "exact"}
    assert base.is_regressor(model) and not base.is_classifier(model)
    before = model.get_params()
    with pytest.raises(InputError):
        model.set_params(seed=5, depth=3)
    assert model.get_params() == before


@pytest.mark.parametrize("option", [{"method": "magic"}, {"likelihood": "poisson"}])
def test_parameters_are_checked_at_the_fit(option):
    model = Regressor(**option)
    with pytest.raises(InputError):
        model.fit(X, Y)


def test_tools_of_scikit_learn_take_it(fitted):
    pytest.importorskip("sklearn")
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.validation import check_is_fitted

    assert cross_val_score(Regressor(), X, Y, cv=3).min() > 0.7
    chain = make_pipeline(StandardScaler(), Regressor(seed=3)).fit(X, Y)
    np.testing.assert_allclose(chain.predict(NEW), fitted.predict(NEW), rtol=1e-6)
    mean, std = chain.predict(NEW, return_std=True)
    assert mean.shape == std.shape == (7,)
    check_is_fitted(fitted)
    grid = {"method": ["exact", "neighbours"], "likelihood": ["gaussian"]}
    found = GridSearchCV(Regressor(), grid, cv=2, error_score="raise").fit(X, Y)
    assert found.best_params_["method"] in grid["method"]
    assert found.predict(NEW).shape == (7,)


def test_a_score_has_weights(fitted):
    metrics = pytest.importorskip("sklearn.metrics")
    weight = RANDOM.uniform(size=ROWS)
    for given in (None, weight):
        expected = metrics.r2_score(Y, fitted.predict(X), sample_weight=given)
        assert fitted.score(X, Y, given) == pytest.approx(expected, rel=1e-12)


def test_a_prediction_needs_a_fit():
    exceptions = pytest.importorskip("sklearn.exceptions")
    for call in (Regressor().predict, lambda x: Regressor().samples(x, 2)):
        with pytest.raises(exceptions.NotFittedError) as caught:
            call(X)
        assert isinstance(caught.value, InputError)


def test_scikit_learn_is_not_imported():
    program = (
        "import sys, numpy as np, dustmap\n"
        "from pipelines.regress import Regressor\n"
        "try:\n    Regressor().predict(np.ones((3, 1)))\n"
        "except AttributeError as error:\n    assert isinstance(error, ValueError)\n"
        "else:\n    raise SystemExit('no error')\n"
        "x = np.linspace(0, 1, 20)[:, None]\n"
        "dustmap.regress(x, x[:, 0] ** 2).score(x, x[:, 0] ** 2)\n"
        "assert 'sklearn' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_a_second_fit_replaces_the_first(fitted):
    model = Regressor(seed=3)
    assert model.fit({"a": X[:, 0]}, Y * u.mag) is model
    assert model.feature_names_in_.tolist() == ["a"]
    model.fit(X, Y)
    assert model.n_features_in_ == 2 and not hasattr(model, "feature_names_in_")
    np.testing.assert_array_equal(model.predict(NEW), fitted.predict(NEW))
    with pytest.raises(InputError):
        model.fit(X, Y[:-1])
    with pytest.raises(AttributeError):
        model.predict(NEW)


@pytest.mark.parametrize("method", METHODS)
def test_copies_predict_the_same(runs, method):
    for model in (Regressor(method=method), runs(method, "gaussian")[1]):
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert other.get_params() == model.get_params()
            if hasattr(model, "field_"):
                parts = model.predict(NEW, return_std=True)
                same = other.predict(NEW, return_std=True)
                np.testing.assert_array_equal(same, parts)


def test_complex_numbers_and_no_rows_are_refused(fitted):
    with pytest.raises(InputError):
        Regressor().fit(X + 1j, Y)
    with pytest.raises(InputError):
        fitted.predict(X[:0])


@pytest.mark.parametrize("likelihood", ["gaussian", "student-t"])
@pytest.mark.parametrize("method", ["exact", "svgp"])
def test_samples_are_of_the_joint_posterior(runs, method, likelihood):
    model = copy.copy(runs(method, likelihood)[1])
    # The third place is the first, the fourth far from all rows.
    places = np.r_[NEW[:2], NEW[:1], [[40.0, 40.0]]]
    drawn = model.samples(places, 4000)
    assert drawn.shape == (4000, 4) and drawn.unit == u.mag
    np.testing.assert_array_equal(drawn, model.samples(places, 4000))
    known = model.distribution(places)
    error = np.abs(drawn.value.mean(axis=0) - known.mean)
    assert (error < 5 * known.field_std / 4000**0.5).all()
    np.testing.assert_allclose(drawn.value.std(axis=0), known.field_std, rtol=0.06)
    np.testing.assert_allclose(drawn[:, 2], drawn[:, 0], atol=1e-4 * u.mag)
    assert abs(np.corrcoef(drawn.value.T)[0, 3]) < 0.1
    other = model.set_params(seed=1).samples(places, 4000)
    assert not np.array_equal(other, drawn)


def test_samples_are_refused_where_there_are_none_in_common(runs, fitted):
    with pytest.raises(InputError, match="exact"):
        runs("neighbours", "gaussian")[1].samples(NEW, 3)
    with pytest.raises(InputError):
        fitted.samples(np.zeros((4001, 2)), 1)


@pytest.mark.parametrize("likelihood", ["gaussian", "student-t"])
@pytest.mark.parametrize("method", METHODS)
def test_a_saved_model_predicts_the_same(runs, method, likelihood):
    place, model = runs(method, likelihood)
    saved = Regressor.load(place)
    new = QTable({"tilt": NEW[:, 1], "far": 1e3 * NEW[:, 0] * u.pc})
    pairs = (model.predict(new, return_std=True), saved.predict(new, return_std=True))
    for one, other in zip(*pairs, strict=True):
        assert one.unit == other.unit == u.mag
        np.testing.assert_allclose(other.value, one.value, rtol=1e-12)
    assert saved.get_params() == model.get_params()
    assert saved.hyperparameters() == model.hyperparameters()
    assert saved.feature_names_in_.tolist() == ["far", "tilt"]


def test_a_new_table_is_predicted_row_for_row(runs, folder, command):
    far = np.array([1000.0, np.nan, 500.0]) * u.pc
    wide, names = np.arange(6).reshape(3, 2), ["007", "b", "c"]
    columns = {"id": names, "far": far, "wide": wide, "tilt": [0.1, 0.2, 0.3]}
    QTable(columns).write(folder / "new.fits")
    run, output = runs("exact", "gaussian")[0], folder / "predicted.parquet"
    done = command(f"predict {run} {folder}/new.fits -o {output}")
    assert done.exit_code == 0 and "1 lack an input" in done.output
    table = pq.read_table(output)
    own = ["id", "far", "wide_0", "wide_1", "tilt"]
    assert table.column_names == [*own, "y_mean", "y_std"]
    assert table["id"].to_pylist() == names
    assert table.schema.field("y_std").metadata[b"unit"] == b"mag"
    mean, std = np.array(table["y_mean"]), np.array(table["y_std"])
    known = Regressor.load(run).predict([[1, 0.1], [0.5, 0.3]], return_std=True)
    np.testing.assert_allclose([mean[::2], std[::2]], [p.value for p in known])
    assert np.isnan([mean[1], std[1]]).all()
    # Once more: its columns are there, unless they have another name.
    again = f"predict {run} {output} -o {folder}/again.csv"
    assert command(again).exit_code == 2
    assert command(f"{again} --prefix new_").exit_code == 0
    assert "new_y_mean" in Table.read(folder / "again.csv").colnames


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"far": [1.0] * u.pc}, "-o x.parquet"),
        ({"far": [1.0] * u.s, "tilt": [1.0]}, "-o x.parquet"),
        ({"far": ["near"], "tilt": [1.0]}, "-o x.parquet"),
        ({"far": [1.0], "tilt": [1.0]}, "-o table.fits"),
        ({"far": [1.0], "tilt": [1.0]}, "-o x.doc"),
        ({"far": [1.0], "tilt": [1.0]}, "-o x.csv --band A_V"),
        ({"far": [1.0], "tilt": [1.0]}, "-o x.csv --distances"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    runs, command, tmp_path, monkeypatch, columns, line
):
    monkeypatch.chdir(tmp_path)
    QTable(columns).write("table.fits")
    assert (
        command(f"predict {runs('exact', 'gaussian')[0]} table.fits {line}").exit_code
        == 2
    )
    assert [path.name for path in tmp_path.iterdir()] == ["table.fits"]


def test_a_model_of_another_version_or_an_altered_one_is_refused(runs, tmp_path):
    file = tmp_path / "regressor.safetensors"
    content = (runs("exact", "gaussian")[0] / file.name).read_bytes()
    file.write_bytes(content)
    write_manifest(tmp_path)
    assert Regressor.load(tmp_path).fit(X, Y).predict(NEW).shape == (7,)
    write_state(file, read_state(file, version=2), version=99)
    write_manifest(tmp_path)
    with pytest.raises(InputError, match=r"regressor\.safetensors has format 99"):
        Regressor.load(tmp_path)
    file.write_bytes(content[:-1] + b"?")
    with pytest.raises(InputError):
        Regressor.load(tmp_path)
    file.unlink()
    write_manifest(tmp_path)
    with pytest.raises(InputError, match="model"):
        Regressor.load(tmp_path)
