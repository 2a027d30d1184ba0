"""The examples of the page "With other tools" run in order, on small files."""

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.io import fits
from documents import ROOT, blocks

import dustmap
from pipelines.export.exporters import export
from pipelines.export.options import ExportOptions

PAGE = (ROOT / "scripts" / "docs" / "other-tools.md").read_text(encoding="utf-8")
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:\s*Configuration file not found"),
    pytest.mark.filterwarnings("ignore:invalid escape sequence"),
]


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    def log_message(self, format, *args):
        pass


@pytest.fixture
def desk(package_maps, positive_run, tmp_path, monkeypatch):
    """A folder with the files that the page names, and a server of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(positive_run.path)
    names = {"zarr": "map.zarr", "healpix": "map.healpix.fits", "fits": "map.fits"}
    targets = {kind: [tmp_path / name] for kind, name in names.items()}
    options = ExportOptions(nside=8, distances=(300.0, 500.0))
    export(positive_run.path, targets, options)
    # 2 mag/kpc, and 1 mag/kpc more for each kpc towards l = 0; 10 pc cells.
    axis = np.arange(-600.0, 601.0, 10.0)
    values = np.broadcast_to(2.0 + axis / 1000, (41, 121, 121))
    cube = fits.PrimaryHDU(values.astype("f4"))
    for number, (name, first) in enumerate((("X", -600), ("Y", -600), ("Z", -200)), 1):
        cards = {"CTYPE": name, "CUNIT": "pc", "CRPIX": 1, "CRVAL": first, "CDELT": 10}
        cube.header.update({f"{key}{number}": value for key, value in cards.items()})
    cube.writeto(tmp_path / "cube.fits")
    handler = partial(Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/map.fits"
        server.shutdown()


def test_the_examples_run_in_order(desk, tmp_path):
    content = (tmp_path / "map.fits").read_bytes()
    names = {"ADDRESS": desk, "SHA256": hashlib.sha256(content).hexdigest()}
    examples = blocks(PAGE, "python")
    assert len(examples) >= 9
    for source in examples:
        exec(compile(source, "other-tools.md", "exec"), names)
    # The cube's integral has a closed form.
    place = SkyCoord(l=0 * u.deg, b=0 * u.deg, distance=400 * u.pc, frame="galactic")
    found = dustmap.open_map(
        names["FitsCube"]("cube.fits"), integrated=False, factor=1e-3
    )
    assert found.query(place, integrated=False).value == pytest.approx(2.4e-3)
    assert found.query(place, integrated=True).value == pytest.approx(0.88)
    inside = names["flags"]["inside"]
    assert inside.tolist() == [True, False] or inside.any()
    np.testing.assert_array_equal(
        names["joined"].value,
        np.where(inside, names["own"].value, names["other"].value),
    )
    volume = names["volume"]
    at = volume.find_closest_point((100.0, 30.0, -20.0))
    sampled = names["cube"].sample("mean", np.array(volume.points[at], dtype=float))
    assert volume["mean"][at] == pytest.approx(float(sampled), rel=1e-5)
    assert 0 < names["moc"].sky_fraction < 1
    assert 0 < names["std"] < names["mean"]
    assert names["path"].endswith("near.fits")
