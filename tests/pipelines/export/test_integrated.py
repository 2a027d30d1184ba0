"""Integrated extinctions in a store: what was written comes back, by name and place."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Curves, SkyMaps
from pipelines.formats.zarr import read_curves, read_zarr, write_zarr
from pipelines.storage.atomic import write_manifest

NAMES = ("mean", "std", "p16", "p50", "p84")


def make_cube() -> Cube:
    axis = np.array([-10.0, 0.0, 10.0])
    mean = np.arange(27.0).reshape(3, 3, 3)
    meta = {"extinction_band": "A_V", "citation": {"software": "dustmap"}}
    return Cube(x=axis, y=axis, z=axis, arrays={"mean": mean}, meta=meta)


def make_integrated(nside=2, count=5) -> Curves:
    """Arrays in which no two pixels, distances or names are alike."""
    maps = make_maps(nside, count)
    nodes = np.array([0, 2, count - 1])
    return Curves(
        distances=maps.distances,
        nodes=nodes,
        arrays={
            name: values.T if name == "mean" else values.T[:, nodes]
            for name, values in maps.arrays.items()
        },
        last_star=maps.last_star,
    )


def make_maps(nside=2, count=5) -> SkyMaps:
    pixels = 12 * nside**2
    base = np.arange(pixels * count, dtype=np.float32).reshape(count, pixels)
    arrays = {name: base + np.float32(i / 8) for i, name in enumerate(NAMES)}
    arrays["mean"][-1, 0] = np.nan
    return SkyMaps(
        distances=2.5 * np.arange(1, count + 1),
        arrays=arrays,
        last_star=np.arange(pixels, dtype=np.float64),
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "map.zarr"
    write_zarr(path, make_cube(), make_integrated())
    return path


def test_integrated_arrays_come_back_beside_the_cube(store):
    read, written = read_curves(store), make_integrated()
    np.testing.assert_array_equal(read.distances, written.distances)
    np.testing.assert_array_equal(read.last_star, written.last_star)
    assert (read.last_star.dtype, read.distances.dtype) == (np.float32, np.float64)
    assert list(read.arrays) == list(written.arrays)
    for name, array in written.arrays.items():
        assert read.arrays[name].dtype == np.float32
        np.testing.assert_array_equal(read.arrays[name], array)
    assert read.nside == written.nside
    np.testing.assert_array_equal(read.nodes, written.nodes)
    cube = read_zarr(store)
    assert list(cube.arrays) == ["mean"]
    np.testing.assert_array_equal(cube.arrays["mean"], make_cube().arrays["mean"])


def test_a_store_of_version_1_still_reads(tmp_path):
    path = tmp_path / "old.zarr"
    write_zarr(path, make_cube())
    described = json.loads((path / "zarr.json").read_text())
    described["attributes"]["version"] = 1
    (path / "zarr.json").write_text(json.dumps(described))
    write_manifest(path)
    assert list(read_zarr(path).arrays) == ["mean"]
    with pytest.raises(InputError, match="no integrated extinctions"):
        read_curves(path)
    described["attributes"]["version"] = 99
    (path / "zarr.json").write_text(json.dumps(described))
    write_manifest(path)
    with pytest.raises(InputError, match=r"version 99; expected .* version 1 or 2"):
        read_zarr(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"distances": np.array([0.0, 1.0, 2.0, 3.0, 4.0])}, "positive"),
        ({"distances": np.array([1.0, 3.0, 2.0, 4.0, 5.0])}, "increasing"),
        ({"distances": np.arange(1.0, 5.0)}, "expected"),
        ({"last_star": np.zeros(47)}, "expected"),
        (
            {
                "arrays": dict.fromkeys(("mean", "std"), np.zeros((5, 108))),
                "last_star": np.zeros(108),
            },
            "power of two",
        ),
        ({"arrays": {"std": np.zeros((5, 48))}}, "mean"),
        ({"arrays": {n: np.zeros((5, 48)) for n in ("mean", "std", "p99")}}, "p99"),
    ],
)
def test_values_that_are_no_integrated_map_are_refused(change, message):
    good = make_maps()
    parts = {n: getattr(good, n) for n in ("distances", "arrays", "last_star")}
    with pytest.raises(ValueError, match=message):
        SkyMaps(**{**parts, **change})


def test_names_of_integrated_arrays_are_not_for_cubes(tmp_path):
    cube = make_cube()
    for name in ("distance", "pixel", "last_star", "extinction_mean", "column_z_mean"):
        bad = Cube(x=cube.x, y=cube.y, z=cube.z, arrays={name: cube.arrays["mean"]})
        with pytest.raises(ValueError, match=name):
            write_zarr(tmp_path / "map.zarr", bad)


def test_xarray_opens_the_store_with_labelled_axes_and_no_warning(tmp_path):
    axis = 10.0 * np.arange(-35, 35)
    mean = np.random.default_rng(0).random((70, 70, 70))
    cube = Cube(x=axis, y=axis + 1, z=axis + 2, arrays={"mean": mean})
    written = make_integrated(nside=4)
    write_zarr(tmp_path / "map.zarr", cube, written)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xarray.open_zarr(tmp_path / "map.zarr") as opened:
            read = opened.load()
    assert set(read.coords) == {"x", "y", "z", "distance", "node", "pixel"}
    assert set(read.data_vars) == {
        "mean",
        "last_star",
        *(f"extinction_{name}" for name in written.arrays),
    }
    assert read["mean"].dims == ("z", "y", "x")
    assert read["extinction_mean"].dims == ("pixel", "distance")
    assert read["extinction_std"].dims == ("pixel", "node")
    # By label: z = -48, y = 21, x = 50 pc, and pixel 77 out to 7.5 pc.
    assert float(read["mean"].sel(z=-48, y=21, x=50)) == mean[30, 37, 40]
    along = read["extinction_p84"].sel(pixel=77)
    assert float(along.sel(node=7.5)) == written.arrays["p84"][77, 1]
    assert read["extinction_std"].attrs["units"] == "mag"
    assert read["mean"].attrs["units"] == "mag pc-1"
    for name in ("x", "y", "z", "distance", "last_star"):
        assert read[name].attrs["units"] == "pc"
    others = set(read.variables) - {"pixel"}
    assert all(read[name].attrs["long_name"] for name in others)
