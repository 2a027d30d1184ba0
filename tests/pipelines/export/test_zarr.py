"""A zarr store gives back what was written, or is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.formats.zarr import read_zarr, write_zarr

META = {"version": "0.1.0", "configuration": {"engine": "é"}, "inputs": {"a": "ff"}}


def make_cube(shape=(3, 4, 5), dtype=np.float32):
    """A cube in which no two axes and no two cells are alike."""
    z, y, x = shape
    values = np.arange(z * y * x, dtype=dtype).reshape(shape)
    return Cube(
        x=-20.0 + 10.0 * np.arange(x),
        y=-6.0 + 4.0 * np.arange(y),
        z=-1.0 + 0.5 * np.arange(z),
        arrays={"mean": values, "std": values + 1, "support": values * 0},
        meta=META,
    )


def assert_same(read, written):
    for axis in "xyz":
        np.testing.assert_array_equal(getattr(read, axis), getattr(written, axis))
    assert list(read.arrays) == list(written.arrays)
    for name, array in written.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)
        assert read.arrays[name].dtype == array.dtype
    assert read.unit == written.unit
    assert read.meta == written.meta


@settings(max_examples=15, deadline=None)
@given(
    values=hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        hnp.array_shapes(min_dims=3, max_dims=3, min_side=2, max_side=6),
    )
)
def test_a_cube_comes_back_bit_for_bit(tmp_path_factory, values):
    cube = make_cube(values.shape)
    written = Cube(x=cube.x, y=cube.y, z=cube.z, arrays={"density": values}, meta=META)
    path = tmp_path_factory.mktemp("zarr") / "truth.zarr"
    write_zarr(path, written)
    assert_same(read_zarr(path), written)


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


CORRUPTIONS = {
    "missing: mean/c/0/0/0": lambda s: (s / "mean/c/0/0/0").unlink(),
    "altered: std/c/0/0/0": lambda s: flip_byte(s / "std/c/0/0/0"),
    "altered: mean/zarr.json": lambda s: flip_byte(s / "mean/zarr.json"),
    "altered: zarr.json": lambda s: flip_byte(s / "zarr.json"),
    "altered: manifest.json": lambda s: flip_byte(s / "manifest.json"),
    "no COMPLETE": lambda s: (s / "COMPLETE").unlink(),
    "no manifest.json": lambda s: (s / "manifest.json").unlink(),
    "not in the manifest: mean/c/9": lambda s: (s / "mean/c/9").touch(),
    "no zarr store": lambda s: (s / "zarr.json").unlink(),
}


@pytest.mark.parametrize("message", CORRUPTIONS)
def test_a_damaged_store_is_refused(tmp_path, message):
    store = tmp_path / "map.zarr"
    write_zarr(store, make_cube())
    CORRUPTIONS[message](store)
    with pytest.raises(InputError, match=message):
        read_zarr(store)


def test_a_folder_that_is_no_store_is_never_overwritten(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/one.jpg").touch()
    with pytest.raises(InputError, match="holds no COMPLETE"):
        write_zarr(tmp_path / "photos", make_cube(), overwrite=True)
    assert (tmp_path / "photos/one.jpg").exists()


def test_provenance_that_is_no_json_is_an_error_before_writing(tmp_path):
    cube = make_cube()
    bad = Cube(x=cube.x, y=cube.y, z=cube.z, arrays={}, meta={"rate": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        write_zarr(tmp_path / "map.zarr", bad)
    assert not list(tmp_path.iterdir())
