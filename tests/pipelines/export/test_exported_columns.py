"""Columns through the box lie in the store of a whole map, and figures take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray

from pipelines.cubes.sky import near_the_sun
from pipelines.export.exporters import export_run
from pipelines.export.options import ExportOptions
from pipelines.formats.zarr import read_columns, read_zarr
from pipelines.maps.density import columns
from pipelines.maps.opening import open_answers
from pipelines.run.folder import Run


def exported(run: Run, folder: Path, **options) -> Path:
    path = folder / "map.zarr"
    export_run(run.path, {"zarr": [path]}, ExportOptions(nside=2, **options))
    return path


@pytest.fixture(scope="module")
def store(positive_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(positive_run, tmp_path_factory.mktemp("columns"))


def test_a_store_has_the_runs_columns(positive_run, store):
    found, cube = read_columns(store), read_zarr(store)
    assert set(found) == {"y", "z"}
    for along, between in (("z", None), ("y", near_the_sun(cube.y))):
        expected = columns(positive_run, along, between)
        assert (found[along].low, found[along].high) == (expected.low, expected.high)
        assert set(found[along].arrays) == set(expected.arrays)
        for name, values in expected.arrays.items():
            np.testing.assert_allclose(found[along].arrays[name], values, rtol=1e-5)


def test_xarray_knows_what_columns_lie_on(store):
    opened = xarray.open_dataset(store, engine="zarr")
    assert opened["column_z_mean"].dims == ("y", "x")
    assert opened["column_y_std"].dims == ("z", "x")
    assert opened["column_z_mean"].attrs["units"] == "mag"


def test_figures_of_a_store_have_its_columns(store):
    source, cube = open_answers(store), read_zarr(store)
    shown = source.columns("z")
    assert shown is not None
    np.testing.assert_array_equal(
        shown.arrays["std"], read_columns(store)["z"].arrays["std"]
    )
    assert source.columns("x") is None
    half = (float(cube.z[0]) / 2, float(cube.z[-1]) / 2)
    assert source.columns("z", half) is None


def test_a_cut_map_has_no_columns_of_the_whole_box(positive_run, tmp_path):
    assert read_columns(exported(positive_run, tmp_path, sphere=150.0)) == {}
