"""A map with the call signature of the package mwdust."""

import os
import tempfile
import warnings

import numpy as np
import pytest
import ray_field
from astropy import units as u
from masked import MASKED

import dustmap
from pipelines.bands import factor
from pipelines.base.errors import InputError

# The package makes its folder when it is imported: two processes at once would collide.
os.environ.setdefault("DUST_DIR", tempfile.mkdtemp(prefix="mwdust-"))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import mwdust
    from mwdust.DustMap3D import DustMap3D
    from mwdust.util.extCurves import aebv

    from pipelines.query.mwdust_map import MwdustMap


def plain(path, distance):
    where = ray_field.at(30.0, 3.0, 1e3 * distance)
    return dustmap.open_map(path).query(where, integrated=True).value


def test_it_is_called_as_those_of_that_package(path):
    dust, own = MwdustMap(path, filter="2MASS H", declare_band="A_V"), mwdust.Zero()
    assert isinstance(dust, DustMap3D) and isinstance(own, DustMap3D)
    far = np.array([0.05, 0.1, 0.3, 9.0])
    found = dust(30.0, 3.0, far)
    assert found.shape == own(30.0, 3.0, far).shape
    scale = factor("A_V", "E(B-V)") * aebv("2MASS H") / 0.884
    np.testing.assert_allclose(found[:3], scale * plain(path, far)[:3], rtol=1e-6)
    assert np.isnan(found[3])
    # One distance comes back as an array of one, as there.
    assert dust(30.0, 3.0, 0.1).shape == (1,)


@pytest.mark.parametrize("kind", MASKED)
def test_masked_distances_have_no_answer(path, kind):
    dust, far = MwdustMap(path, declare_band="E(B-V)"), np.array([0.1, 0.2, 0.3])
    found = dust(30.0, 3.0, MASKED[kind](far, np.arange(3) == 1, u.kpc))
    assert np.isnan(found[1])
    np.testing.assert_array_equal(found[::2], dust(30.0, 3.0, far)[::2])


def test_without_a_filter_it_is_the_colour_excess_of_sfd(path):
    dust, far = MwdustMap(path, declare_band="E(B-V)"), np.array([0.1, 0.2])
    np.testing.assert_allclose(dust(30.0, 3.0, far), plain(path, far) / 0.884)
    with pytest.raises(InputError):
        MwdustMap(path)
    with pytest.raises(ValueError, match="filter"):
        MwdustMap(path, filter="no such", declare_band="A_V")
