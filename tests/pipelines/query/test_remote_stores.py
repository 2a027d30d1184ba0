"""Map stores in a zip, over HTTP and in S3: the answers of the folder itself."""

from __future__ import annotations

import functools
import pickle
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

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


@pytest.fixture
def bucket(store, monkeypatch) -> Iterator[str]:
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    import boto3
    import fsspec

    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "testing"),
        ("AWS_SECRET_ACCESS_KEY", "testing"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", url),
    ):
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="maps")
    for file in (f for f in store.rglob("*") if f.is_file()):
        key = f"m.zarr/{file.relative_to(store).as_posix()}"
        client.put_object(Bucket="maps", Key=key, Body=file.read_bytes())
    fsspec.filesystem("s3").clear_instance_cache()
    yield "s3://maps/m.zarr"
    client.close()
    server.stop()


def same(place, store) -> None:
    dust, own = dustmap.open_map(place), dustmap.open_map(store)
    for integrated in (True, False):
        found = dust.query(PLACES, integrated=integrated)
        np.testing.assert_array_equal(found, own.query(PLACES, integrated=integrated))
    np.testing.assert_array_equal(dust.cube.arrays["mean"], own.cube.arrays["mean"])


def test_a_zip_answers_as_its_folder(zipped, store):
    same(zipped, store)


def test_a_server_answers_as_its_folder(server, store, command):
    same(f"{server}/m.zarr", store)
    line = "query {} --l 10 --b 5 --distance 200"
    found, own = (command(line.format(p)).output for p in (f"{server}/m.zarr", store))
    assert found == own


def test_a_chunk_is_fetched_once_and_a_pickled_map_verifies_its_own(server, store):
    dust = pickle.loads(pickle.dumps(dustmap.open_map(f"{server}/m.zarr")))
    _Recorded.fetched.clear()
    found = dust.query(PLACES, integrated=True)
    own = dustmap.open_map(store).query(PLACES, integrated=True)
    np.testing.assert_array_equal(found, own)
    chunks = [path for path in _Recorded.fetched if "/c/" in path]
    assert chunks and len(set(chunks)) == len(chunks)
    held = [path for path in (store / "mean" / "c").rglob("*") if path.is_file()]
    whole = {path: path.read_bytes() for path in held}
    for path, content in whole.items():
        path.write_bytes(content[::-1])
    with pytest.raises(InputError, match="altered"):
        dust.query(PLACES, integrated=False)
    for path, content in whole.items():
        path.write_bytes(content)


@pytest.mark.filterwarnings("ignore")
def test_s3_answers_as_its_folder(bucket, store):
    same(bucket, store)


@pytest.mark.parametrize(
    ("change", "message"),
    [("unlink", "lacks"), ("flip", "altered"), ("marker", "no complete map store")],
)
def test_a_missing_or_altered_chunk_is_refused(store, tmp_path, change, message):
    copy = tmp_path / "m.zarr"
    shutil.copytree(store, copy)
    (chunk, *_) = sorted(copy.glob("extinction_mean/c/*/*"))
    for chunk in copy.glob("extinction_mean/c/*/*"):
        if change == "unlink":
            chunk.unlink()
        elif change == "flip":
            chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    if change == "marker":
        (copy / "COMPLETE").unlink()
    path = shutil.make_archive(str(tmp_path / "z"), "zip", tmp_path, "m.zarr")
    with pytest.raises(InputError, match=message):
        dustmap.open_map(path).query(PLACES, integrated=True)


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
