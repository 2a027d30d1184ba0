"""Map stores at URLs of fsspec: the answers of the folder itself."""

from __future__ import annotations

import functools
import pickle
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import fsspec
import numpy as np
import pytest
import ray_field
import xarray

import dustmap
from pipelines.base.errors import InputError

PLACES = ray_field.at([10.0, 200.0], [5.0, -20.0], [200.0, 100.0])


class _Recorded(SimpleHTTPRequestHandler):
    fetched: ClassVar[list[str]] = []

    def log_message(self, *_) -> None:
        self.fetched.append(self.path)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return ray_field.write(tmp_path_factory.mktemp("stores") / "m.zarr", nside=8)


@pytest.fixture(scope="module")
def zipped(store, tmp_path_factory) -> Path:
    name = tmp_path_factory.mktemp("zip") / "m.zarr"
    return Path(shutil.make_archive(str(name), "zip", store.parent, store.name))


@pytest.fixture(scope="module")
def server(store) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    handler = functools.partial(_Recorded, directory=str(store.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def same(place, store) -> None:
    dust, own = dustmap.open_map(place), dustmap.open_map(store)
    for integrated in (True, False):
        found = dust.query(PLACES, integrated=integrated)
        np.testing.assert_array_equal(found, own.query(PLACES, integrated=integrated))
    np.testing.assert_array_equal(dust.cube.arrays["mean"], own.cube.arrays["mean"])


def test_a_zip_answers_as_its_folder(zipped, store):
    same(f"zip://{store.name}::{zipped}", store)
    with pytest.raises(InputError, match="zip://"):
        dustmap.open_map(zipped)


def test_a_server_answers_as_its_folder(server, store, command):
    same(f"{server}/m.zarr", store)
    line = "query {} --l 10 --b 5 --distance 200"
    found, own = (command(line.format(p)).output for p in (f"{server}/m.zarr", store))
    assert found == own


def test_a_chunk_is_fetched_once_also_by_a_pickled_map(server, store):
    dust = pickle.loads(pickle.dumps(dustmap.open_map(f"{server}/m.zarr")))
    _Recorded.fetched.clear()
    found = dust.query(PLACES, integrated=True)
    own = dustmap.open_map(store).query(PLACES, integrated=True)
    np.testing.assert_array_equal(found, own)
    chunks = [path for path in _Recorded.fetched if "/c/" in path]
    assert chunks and len(set(chunks)) == len(chunks)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("extinction_mean/c/*/*", "lacks extinction_mean/c/"),
        ("COMPLETE", "no complete map store"),
        ("manifest.json", "no complete map store"),
        ("zarr.json", "not a cube"),
    ],
)
def test_a_store_that_is_not_whole_is_refused(store, lost, message):
    files = fsspec.filesystem("memory")
    files.put(f"{store}/", "/lost.zarr/", recursive=True)
    try:
        same("memory://lost.zarr", store)
        files.rm(files.glob(f"/lost.zarr/{lost}"))
        with pytest.raises(InputError, match=message):
            dustmap.open_map("memory://lost.zarr").query(PLACES, integrated=True)
    finally:
        files.rm("/lost.zarr", recursive=True)


@pytest.mark.parametrize("kind", ["mean", "extinction_mean"])
def test_a_whole_product_lacks_no_chunk(store, kind):
    files = fsspec.filesystem("memory")
    files.put(f"{store}/", "/lost.zarr/", recursive=True)
    files.rm(files.find(f"/lost.zarr/{kind}/c")[-1])
    dust = dustmap.open_map("memory://lost.zarr")
    with pytest.raises(InputError, match=f"lacks {kind}/c/"):
        _ = dust.cube if kind == "mean" else dust.answers.sky_maps()
    files.rm("/lost.zarr", recursive=True)


def test_a_place_that_is_not_there_is_refused(server):
    with pytest.raises(InputError):
        dustmap.open_map(f"{server}/nothing.zarr")


def test_xarray_writes_a_store_as_netcdf(store, tmp_path):
    with xarray.open_zarr(store) as opened:
        opened.to_netcdf(tmp_path / "m.nc", engine="scipy")
        expected = opened["mean"].to_numpy()
        pixel = opened["pixel"].attrs
    with xarray.open_dataset(tmp_path / "m.nc", engine="scipy") as read:
        np.testing.assert_array_equal(read["mean"], expected)
        assert read.attrs["unit"] == "mag pc-1"
    # xdggs takes all attributes for parameters of the grid.
    grid = {"grid_name": "healpix", "level": 3, "indexing_scheme": "nested"}
    assert pixel == grid
