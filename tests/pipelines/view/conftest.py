"""The page of a small run, and an even map; pixels of 3.7 deg take little time."""

import numpy as np
import pytest

from pipelines.cubes.cube import Cube
from pipelines.formats.fits import write_fits


@pytest.fixture(scope="package", autouse=True)
def coarse_sky():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.view.data._NSIDE", 16)
        yield


@pytest.fixture(scope="package")
def page_path(coarse_sky, positive_run, command, shared):
    def make(folder):
        done = command(f"view {positive_run.path} -o {folder / 'map.html'}")
        assert done.exit_code == 0, done.output

    return shared("view", make) / "map.html"


@pytest.fixture
def even(tmp_path):
    """A cube of another program, with the same density everywhere."""
    axis = np.arange(-200.0, 201.0, 25.0)
    arrays = {"mean": np.full((len(axis),) * 3, 1e-3)}
    write_fits(tmp_path / "map.fits", Cube(x=axis, y=axis, z=axis, arrays=arrays))
    return tmp_path / "map.fits"
