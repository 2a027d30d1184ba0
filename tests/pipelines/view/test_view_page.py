"""The page of a map: what it embeds, what it leaves out, and its door."""

import base64
import json
import re
import threading
import urllib.error
import urllib.request
import zlib
from dataclasses import replace
from http.server import ThreadingHTTPServer

import healpy
import numpy as np
import pytest

from pipelines.base.errors import InputError
from pipelines.base.table import strict_json
from pipelines.cubes.cube import Cube
from pipelines.cubes.thinned import thinned
from pipelines.maps.opening import open_answers
from pipelines.maps.places import Places
from pipelines.view.data import clouds, gather
from pipelines.view.embedding import packed
from pipelines.view.server import curve, make_server


def unpacked(array, scale):
    """What the page's own script does."""
    steps = np.frombuffer(zlib.decompress(base64.b64decode(array["bytes"])), np.uint8)
    codes = np.cumsum(steps.reshape(-1, len(scale)), axis=0, dtype=np.uint8)
    root = codes / 127 - 1 if array["signed"] else codes / 254
    return np.where(codes == 255, np.nan, scale * np.sign(root) * root**2)


def data_of(page):
    text = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text[1])


@pytest.mark.parametrize("low", [0.0, -0.7])
def test_packed_values_err_by_less_than_is_said(low):
    rng = np.random.default_rng(0)
    values = rng.uniform(low, 1.0, (20, 30)) * rng.uniform(0.1, 5.0, 30)
    values[3, 4] = np.nan
    scale = np.nanmax(np.abs(values), axis=0)
    array = packed(values, scale)
    error = np.abs(unpacked(array, scale) - values) / scale
    assert np.isnan(error[3, 4]) and np.isnan(error).sum() == 1
    assert np.nanmax(error) == pytest.approx(array["error"])
    assert array["error"] < 0.008


def test_a_column_of_zeros_is_packed_as_zeros():
    array = packed(np.zeros((4, 2)), np.zeros(2))
    np.testing.assert_array_equal(unpacked(array, np.ones(2)), 0.0)


@pytest.fixture(scope="module")
def page(page_path):
    return page_path.read_text(encoding="utf-8")


def test_curves_are_those_of_query_at_centres_of_pixels(page, positive_run):
    sky = data_of(page)["sky"]
    scale = np.frombuffer(base64.b64decode(sky["scale"]), "<f4").astype(float)
    pixels = np.array([11, 1_250, 3_050])
    l, b = healpy.pix2ang(sky["nside"], pixels, lonlat=True)  # noqa: E741
    source = open_answers(positive_run.path)
    for name in ("p16", "p50", "mean"):
        curves = unpacked(sky["arrays"][name], scale)[:, pixels]
        for n, distance in enumerate(sky["distances"]):
            there = Places(l=l, b=b, distance=np.full(3, distance), shape=(3,))
            asked = source.moments(there, (name,), integrated=True)[name]
            np.testing.assert_array_equal(np.isnan(curves[n]), np.isnan(asked))
            error = np.abs(curves[n] - asked) / scale[pixels]
            assert (error[np.isfinite(asked)] <= sky["arrays"][name]["error"]).all()


def test_the_page_holds_densities_samples_and_the_stars(page, positive_run):
    data = data_of(page)
    (cube,) = data["cubes"]
    assert cube["factor"] == 1
    own = open_answers(positive_run.path).cube()
    array = cube["arrays"]["mean"]
    size = own.shape[1] * own.shape[2]
    mean = unpacked(array, np.full(size, array["scale"])).reshape(own.shape)
    wanted = 1e3 * own.arrays["mean"]
    assert np.abs(mean - wanted).max() <= 1.01 * array["error"] * array["scale"]
    assert {"p50", "ratio", "sample 1", "sample 2"} <= set(cube["arrays"])
    assert set(cube["columns"]) == {"z", "y"}
    assert data["stars"]["of"] == data["stars"]["shown"] > 100


def test_the_page_asks_no_network_and_says_how_it_was_made(page, positive_run):
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "default-src 'none'" in outside and "connect-src" not in outside
    assert not re.search(r'(src|href)="(?!data:|#)', outside)
    assert str(positive_run.verdict) in outside.replace("&#39;", "'")
    assert positive_run.provenance["inputs"][0]["sha256"] in outside


def test_a_cube_of_another_program_has_planes_and_says_what_it_lacks(
    tmp_path, command, even
):
    done = command(f"view {even} -o {tmp_path / 'map.html'}")
    assert done.exit_code == 0, done.output
    data = data_of((tmp_path / "map.html").read_text(encoding="utf-8"))
    assert list(data["cubes"][0]["arrays"]) == ["mean"]
    assert data["stars"] is None
    assert command(f"view {even} -o {tmp_path / 'map.html'}").exit_code


def test_a_page_opens_whatever_the_file_is_called(tmp_path, command, even):
    """By the rules of HTML `<!--<script>` in a script hides the script's end."""
    path = even.rename(tmp_path / "<!--<script>.fits")
    done = command(f"view '{path}' -o {tmp_path / 'map.html'}")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert data_of(page)["cubes"] and "<!--<script>" not in page


def test_sky_maps_alone_have_a_sky_and_their_provenance(
    positive_run, tmp_path, command
):
    path = tmp_path / "map.healpix.fits"
    done = command(f"export {positive_run.path} --healpix {path} --nside 16")
    assert done.exit_code == 0, done.output
    done = command(f"view {path} -o {tmp_path / 'map.html'}")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    data = data_of(page)
    assert data["cubes"] is None and "cubes" in data["absent"]
    assert {"p16", "p50", "p84"} <= set(data["sky"]["arrays"])
    assert positive_run.provenance["inputs"][0]["sha256"] in page


def test_the_published_engine_is_shown(svi_run, monkeypatch):
    monkeypatch.setattr("pipelines.view.data._NSIDE", 2)
    data = gather(open_answers(svi_run.path))
    assert data["cubes"] and data["sky"] and not data["absent"]
    assert data["stars"]["of"] > 0


def test_stars_are_shown_in_the_band_of_the_map(tmp_path, command, monkeypatch, even):
    monkeypatch.setattr("pipelines.view.data._NSIDE", 4)
    lines = ["l,b,d,av,e", *(f"{i},{i - 5},{100 + i},0.31,0.031" for i in range(20))]
    (tmp_path / "stars.csv").write_text("\n".join(lines))
    maps = "--map l=l:deg --map b=b:deg --map distance=d:pc --map extinction=av:mag"
    maps += " --map extinction_error=e:mag --declare-band A_V"
    table = tmp_path / "stars.parquet"
    done = command(f"ingest {tmp_path / 'stars.csv'} -o {table} {maps}")
    assert done.exit_code == 0, done.output
    source = open_answers(even)
    for band in ("A_V", ""):
        found = gather(replace(source, band=band), stars=table)["stars"]["columns"]
        assert found["extinction"]["low"] == pytest.approx(0.31, rel=1e-6)
    with pytest.raises(InputError, match=r"--band 'E\(B-V\)'"):
        gather(replace(source, band="E(B-V)"), stars=table)


def test_a_page_needs_a_file_or_a_server(positive_run, command):
    assert command(f"view {positive_run.path}").exit_code == 2


def test_a_served_page_ends_by_ctrl_c_without_an_error(
    positive_run, command, monkeypatch
):
    def interrupted(server, poll_interval=0.5):
        assert server.server_address[0] == "127.0.0.1"
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.view.data._NSIDE", 4)
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", interrupted)
    done = command(f"view {positive_run.path} --serve --port 0")
    assert done.exit_code == 0 and "http://127.0.0.1:" in done.output


def test_blocks_of_a_large_cube_are_means_at_the_centre_of_their_cells():
    z, y, x = (10.0 * np.arange(n) for n in (3, 4, 5))
    values = 1 + z[:, None, None] + 0.1 * y[:, None] + 0.01 * x
    support = np.ones(values.shape)
    support[:2, :2, :2] = 0.0
    cube = Cube(x=x, y=y, z=z, arrays={"mean": values, "support": support})
    whole, blocks = thinned(cube, cube.arrays), thinned(cube, cube.arrays, points=12)
    assert whole.factor == 1 and whole.seen.sum() == 52
    assert blocks.factor == 2 and blocks.arrays["mean"].shape == (2, 2, 3)
    np.testing.assert_allclose(blocks.x, [5.0, 25.0, 40.0])
    np.testing.assert_allclose(blocks.z, [5.0, 20.0])
    inner = values[:2, 2:4, 4:5].mean()
    assert blocks.arrays["mean"][0, 1, 2] == pytest.approx(inner)
    assert not blocks.seen[0, 0, 0] and blocks.seen.sum() == 11


def test_clouds_lie_where_they_are_known():
    found = {cloud["name"]: cloud for cloud in clouds()}
    assert found["Orion A"]["distance"] == 426
    assert all(0 <= c["l"] < 360 and abs(c["b"]) < 30 for c in found.values())


def test_the_server_answers_with_the_curve_of_a_direction(positive_run):
    source = open_answers(positive_run.path)
    with make_server(source, "<p>page</p>") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert urllib.request.urlopen(address + "/").read() == b"<p>page</p>"
        with urllib.request.urlopen(address + "/curve?l=30&b=2") as answer:
            found = json.load(answer)
        assert found == strict_json(curve(source, 30.0, 2.0))
        distance = np.array(found["distances"])
        there = Places(
            l=0 * distance + 30, b=0 * distance + 2, distance=distance, shape=()
        )
        asked = source.moments(there, ("p84",), integrated=True)["p84"]
        np.testing.assert_allclose(found["arrays"]["p84"], asked)
        level = source.cube()
        with urllib.request.urlopen(
            address + "/plane?level=0&array=mean&view=l&at=90"
        ) as answer:
            found = json.load(answer)
        # Towards l = 90 deg the vertical plane is that of x = 0.
        column = list(level.x).index(0.0)
        shared = [y in level.y for y in found["across"]]
        rows = np.array(found["rows"], dtype=float)[:, shared]
        kept = [y in found["across"] for y in level.y]
        np.testing.assert_allclose(
            rows, 1e3 * level.arrays["mean"][:, kept, column], rtol=1e-6
        )
        for path, host, status in (
            ("/plane?level=0&array=none&view=z&at=0", "localhost", 400),
            ("/plane?level=7&array=mean&view=z&at=0", "localhost", 400),
            ("/curve?l=30&b=95", "localhost", 400),
            ("/curve?l=30", "localhost", 400),
            ("/other", "localhost", 404),
            ("/", "elsewhere.example", 403),
        ):
            request = urllib.request.Request(address + path, headers={"Host": host})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            assert refused.value.code == status
            refused.value.close()
        server.shutdown()
