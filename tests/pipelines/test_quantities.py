"""Lengths and angles with units, in settings and on the command line."""

import numpy as np
import pytest

from pipelines.base.errors import InputError
from pipelines.base.quantities import degrees, parsecs
from pipelines.catalog.filters import RowFilter
from pipelines.config import FitConfig, load_config


def test_lengths_are_in_parsecs_unless_they_say_another_unit():
    assert parsecs("420") == parsecs("0.42kpc") == parsecs("420 pc") == 420.0
    assert parsecs("206265au") == pytest.approx(1.0, rel=1e-5)
    for wrong in ("3 mag", "far", "1 kpc kpc"):
        with pytest.raises(ValueError, match="no length"):
            parsecs(wrong)


def test_angles_may_be_sexagesimal():
    for text in ("83.5", "83.5deg", "83:30:00", "5h34m00s"):
        assert degrees(text) == pytest.approx(83.5, rel=1e-14)
    assert degrees("05:34:00", hours=True) == pytest.approx(83.5, rel=1e-14)
    assert degrees("-5d30m") == degrees("-05:30:00") == -5.5
    assert degrees("-0:30:00") == -0.5
    for wrong in ("left", "5h70m", "12 pc"):
        with pytest.raises(ValueError, match="no angle"):
            degrees(wrong)


def test_settings_take_lengths_with_units():
    given = ["data.max_distance=1.5kpc", "box.x=['-1kpc', 800]", "box.spacing=20pc"]
    config = load_config(FitConfig, overrides=given)
    assert config.data.max_distance == 1500.0
    assert config.box.x == (-1000.0, 800.0) and config.box.spacing == (20.0,) * 3
    assert load_config(FitConfig, overrides=["box.spacing=auto"]).box.spacing is None
    for wrong in ("data.max_distance=1mag", "data.max_distance=-1kpc", "box.x=[1kpc]"):
        with pytest.raises(InputError, match=wrong.partition("=")[0]):
            load_config(FitConfig, overrides=[wrong])


@pytest.mark.parametrize(
    ("signs", "words"),
    [
        ("a < 1 & b > 2", "a < 1 and b > 2"),
        ("a < 1 && (b > 2 || c == 'x&y')", "a < 1 and (b > 2 or c == 'x&y')"),
        ("!(a < 1) | b != 2", "not (a < 1) or b != 2"),
    ],
)
def test_filters_take_the_signs_of_topcat(signs, words):
    a, b = RowFilter(signs), RowFilter(words)
    columns = {"a": np.array([0.0, 2, 0, 2]), "b": np.array([3.0, 3, 2, 2])}
    columns["c"] = np.array(["", "x&y", "x&y", ""], dtype=object)
    assert a.kinds == b.kinds
    np.testing.assert_array_equal(a.passes(columns), b.passes(columns))
