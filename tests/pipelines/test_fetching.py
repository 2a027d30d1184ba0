"""Published maps: fetched by name, verified, unpacked."""

import contextlib
import hashlib
import io
import json
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from pipelines.base.errors import InputError
from pipelines.storage.fetching import fetch, read_registry

CONTENT = np.random.default_rng(1).bytes(3_000_000)


def registry(folder, url, content=CONTENT, name="near", **more):
    digest = hashlib.sha256(content).hexdigest()
    values = {"url": url, "sha256": digest, "citation": "Doe 2026", **more}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path = folder / "maps.toml"
    path.write_text("\n".join([f"[maps.{name}]", *lines]))
    return str(path)


def test_another_file_than_the_registrys_is_refused(tmp_path):
    source = tmp_path / "source.fits"
    source.write_bytes(CONTENT[:-1] + b"?")
    (near,) = read_registry(registry(tmp_path, source.as_uri())).values()
    with pytest.raises(InputError, match="SHA256"):
        fetch(near, tmp_path / "near.fits")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["maps.toml", "source.fits"]
    source.write_bytes(CONTENT)
    fetch(near, tmp_path / "near.fits")
    with pytest.raises(InputError, match="exists"):
        fetch(near, tmp_path / "near.fits")


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "two", "map.zarr/link"])
def test_archives_that_lead_elsewhere_are_refused(tmp_path, name):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for member in ("map.zarr/data", f"{name}/data" if name == "two" else name):
            item = tarfile.TarInfo(member)
            item.size = 4
            if member.endswith("link"):
                item.type, item.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(item, io.BytesIO(b"data"))
    (tmp_path / "map.zarr.tar").write_bytes(stream.getvalue())
    uri = (tmp_path / "map.zarr.tar").as_uri()
    (near,) = read_registry(registry(tmp_path, uri, stream.getvalue())).values()
    with pytest.raises(InputError, match=r"folders|entry"):
        fetch(near, tmp_path / "map.zarr")
    assert not (tmp_path / "map.zarr").exists()


class Served(BaseHTTPRequestHandler):
    """Sends the content, with or without its length."""

    states_length = True

    def do_GET(self):
        self.send_response(200)
        if self.states_length:
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(CONTENT)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("states_length", [True, False])
def test_no_more_than_the_limit_is_fetched(tmp_path, monkeypatch, states_length):
    monkeypatch.setattr(Served, "states_length", states_length)
    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/near.fits"
        (near,) = read_registry(registry(tmp_path, url)).values()
        mebibyte = 1 / 1024
        with pytest.raises(InputError, match="limit"):
            fetch(near, tmp_path / "near.fits", max_gib=2 * mebibyte)
        assert [path.name for path in tmp_path.iterdir()] == ["maps.toml"]
        fetch(near, tmp_path / "near.fits", max_gib=3 * mebibyte)
        server.shutdown()
    assert (tmp_path / "near.fits").read_bytes() == CONTENT


def test_neither_a_file_nor_the_content_of_an_archive_may_be_larger(tmp_path):
    archive = tmp_path / "map.zarr.tar.gz"
    with tarfile.open(archive, mode="w:gz") as tar:
        # Archives of macOS have companions of files.
        for name, size in (("._map.zarr", 3), ("map.zarr/data", 1 << 22)):
            item = tarfile.TarInfo(name)
            item.size = size
            tar.addfile(item, io.BytesIO(bytes(size)))
    content = archive.read_bytes()
    (near,) = read_registry(registry(tmp_path, archive.as_uri(), content)).values()
    for most in (len(content) - 1, 1 << 21):
        with pytest.raises(InputError, match="limit"):
            fetch(near, tmp_path / "map.zarr", max_gib=most / 2**30)
        assert not (tmp_path / "map.zarr").exists()
    fetch(near, tmp_path / "map.zarr", max_gib=1 / 128)
    assert [path.name for path in (tmp_path / "map.zarr").iterdir()] == ["data"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "no toml", "[maps.a]\nurl = 'x'", "[maps]\na = 1"),
        "[maps.a]\nurl = 'x'\nsha256 = 'short'\ncitation = 'c'",
        "[maps.a]\nurl = 'x'\nsha256 = 's'\ncitation = 'c'\nmore = 1",
    ],
)
def test_registries_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "maps.toml").write_text(text)
    with pytest.raises(InputError, match=r"maps\.toml"):
        read_registry(str(tmp_path / "maps.toml"))
    with pytest.raises(InputError):
        read_registry("gopher://example.org/maps.toml")
    with pytest.raises(InputError):
        read_registry(str(tmp_path / "absent.toml"))
