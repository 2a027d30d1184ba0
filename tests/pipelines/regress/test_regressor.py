"""The regressor on arrays, tables and quantities, in the user's units."""

import subprocess
import sys

import numpy as np
import pandas
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.table import QTable, Table
from masked import MASKED

import dustmap
from pipelines.base.errors import InputError

ROWS = 60
RANDOM = np.random.default_rng(0)
FAR, TILT = RANDOM.uniform(0, 2, ROWS), RANDOM.uniform(-1, 1, ROWS)
Y = np.sin(3 * FAR) + 0.5 * TILT + 0.05 * RANDOM.normal(size=ROWS)
ARRAY = np.c_[FAR, TILT]


@pytest.fixture(autouse=True, scope="module")
def short_searches():
    """One kernel from one start: these tests are of what is made of rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.regress.methods._CANDIDATES", ("matern52",))
        patch.setattr("pipelines.regress.methods._NOISES", (0.03,))
        yield


@pytest.fixture(scope="module")
def plain():
    return dustmap.regress(ARRAY, Y)


def test_mean_and_std_are_predicted_of_an_array(plain):
    mean, std = plain.predict(ARRAY[:5], return_std=True)
    assert mean.shape == std.shape == (5,)
    assert np.abs(mean - Y[:5]).max() < 0.2 and (std > 0.02).all()
    np.testing.assert_array_equal(plain.predict(ARRAY[:5]), mean)
    assert plain.n_features_in_ == 2 and not hasattr(plain, "feature_names_in_")
    assert 0.9 < plain.score(ARRAY, Y) < 1
    truth = 1 - np.sum((Y - plain.predict(ARRAY)) ** 2) / np.sum((Y - Y.mean()) ** 2)
    assert plain.score(ARRAY, Y) == pytest.approx(truth)


def record(columns):
    """A record array, as NumPy has it, with the bytes of FITS."""
    return Table(columns).as_array().view(np.recarray)


def record_of_fits(columns):
    return fits.BinTableHDU(Table(columns)).data


KINDS = [pandas.DataFrame, Table, QTable, dict, record, record_of_fits]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_tables_are_taken_by_name(plain, kind):
    model = dustmap.regress(kind({"far": FAR, "tilt": TILT}), pandas.Series(Y))
    assert model.feature_names_in_.tolist() == ["far", "tilt"]
    swapped = kind({"name": ["x"] * 5, "tilt": TILT[:5], "far": FAR[:5]})
    np.testing.assert_array_equal(model.predict(swapped), plain.predict(ARRAY[:5]))
    np.testing.assert_array_equal(model.predict(ARRAY[:5]), plain.predict(ARRAY[:5]))
    with pytest.raises(InputError, match="no column 'tilt'"):
        model.predict(kind({"far": FAR[:5]}))


def test_units_are_converted_and_given_back(plain):
    table = QTable({"far": FAR * u.kpc, "tilt": TILT})
    model = dustmap.regress(table, Y * u.mag)
    there = QTable({"far": 1000 * FAR[:5] * u.pc, "tilt": TILT[:5]})
    mean, std = model.predict(there, return_std=True)
    assert mean.unit == std.unit == u.mag
    np.testing.assert_allclose(mean.value, plain.predict(ARRAY[:5]), rtol=1e-6)
    assert model.score(table, 1e3 * Y * u.mmag) == pytest.approx(plain.score(ARRAY, Y))
    with pytest.raises(InputError, match="kpc"):
        model.predict(QTable({"far": FAR * u.s, "tilt": TILT}))
    of_fits = dustmap.regress(record_of_fits(table), Y.astype(">f8"))
    np.testing.assert_array_equal(of_fits.predict(there), mean.value)
    both = dustmap.regress(ARRAY * u.pc, Y)
    np.testing.assert_allclose(
        both.predict(ARRAY[:5] * 1e-3 * u.kpc), plain.predict(ARRAY[:5]), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (FAR, Y, r"expected \(n, d\)"),
        (ARRAY, Y[:-1], r"shape \(59,\), expected \(60,\)"),
        (ARRAY[:9], Y[:9], "9 rows to fit, at least 10"),
        (ARRAY, np.ones(ROWS), "is 1 in every row"),
        ({"far": ["a"] * ROWS}, Y, "input far: expected numbers"),
        ({"far": FAR, "tilt": TILT[:5]}, Y, "different numbers of rows"),
        ({}, Y, "no column"),
    ],
)
def test_a_mistake_is_named(x, y, said):
    with pytest.raises(InputError, match=said):
        dustmap.regress(x, y)


@pytest.mark.parametrize("kind", MASKED)
def test_rows_with_a_masked_value_are_left_out_and_counted(plain, kind):
    gap = np.arange(ROWS) == 7
    whole = dustmap.regress(ARRAY[~gap], Y[~gap])
    far = MASKED[kind](np.where(gap, 1e9, FAR), gap, u.one)
    masked = MASKED[kind](np.where(gap, -999.0, Y), gap, u.one)
    for x, y in (({"far": far, "tilt": TILT}, Y), (ARRAY, masked)):
        model = dustmap.regress(x, y)
        assert model.left_out_ == 1
        new = {"far": FAR[:5], "tilt": TILT[:5]} if x is not ARRAY else ARRAY[:5]
        np.testing.assert_array_equal(model.predict(new), whole.predict(ARRAY[:5]))
        with pytest.raises(InputError, match="first in row 8"):
            model.predict(x) if x is not ARRAY else model.score(x, y)
    with pytest.raises(InputError, match="1 of 60 rows, first in row 8"):
        plain.score(ARRAY, masked)


@pytest.mark.parametrize("method", ["exact", "neighbours", "grid"])
def test_copies_of_rows_change_no_answer_and_are_counted(method):
    once = dustmap.regress(ARRAY, Y, method=method)
    copies = np.r_[0:ROWS, 0:ROWS, 3:9]
    model = dustmap.regress(ARRAY[copies], Y[copies], method=method)
    assert model.repeated_ == ROWS + 6 and once.repeated_ == 0
    known = once.predict(ARRAY, return_std=True)
    for found, expected in zip(model.predict(ARRAY, return_std=True), known):
        np.testing.assert_allclose(found, expected, rtol=0.01)


def test_equal_measurements_of_few_values_all_count():
    # At each of three places the mean of some hundred equally good measurements.
    random = np.random.default_rng(3)
    x = random.integers(0, 3, 300).astype(float)
    y = random.integers(0, 2, 300) + 4.0 * (x == 1)
    model = dustmap.regress(x[:, None], y)
    assert model.repeated_ == 0
    known = [y[x == place].mean() for place in range(3)]
    found = model.predict(np.arange(3.0)[:, None])
    np.testing.assert_allclose(found, known, atol=0.05)


def test_what_was_not_fitted_or_is_unknown_is_refused(plain):
    from pipelines.regress import Regressor

    with pytest.raises(InputError, match="fit"):
        Regressor().predict(ARRAY)
    with pytest.raises(InputError, match=r"shape \(60, 1\), expected \(n, 2\)"):
        plain.predict(ARRAY[:, :1])
    with pytest.raises(InputError, match="without names"):
        plain.predict({"far": FAR, "tilt": TILT})
    with pytest.raises(InputError, match="method takes auto"):
        dustmap.regress(ARRAY, Y, method="magic")


@pytest.mark.slow
def test_no_call_changes_threads_or_warnings_of_the_process():
    program = (
        # Imports of healpy and scipy add filters for their own warnings.
        "import warnings, torch, numpy as np, dustmap, pipelines.regress\n"
        "regress = dustmap.regress\n"
        "torch.set_num_threads(2)\n"
        "before = warnings.filters[:], torch.get_default_dtype()\n"
        "x = np.linspace(0, 1, 30)[:, None]\n"
        "regress(x, x[:, 0] ** 2).predict(x)\n"
        "assert torch.get_num_threads() == 2\n"
        "assert (warnings.filters[:], torch.get_default_dtype()) == before\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
