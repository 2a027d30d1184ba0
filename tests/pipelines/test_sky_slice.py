"""The script draws slices of each format, and says what is wrong in one line."""

import importlib.util
from pathlib import Path

import healpy
import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import SkyMaps
from pipelines.figures.cuts import seen_sky
from pipelines.formats.fits import write_fits
from pipelines.formats.healpix import write_healpix
from pipelines.formats.zarr import write_zarr
from pipelines.maps.stored import of_cube

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/sky_slice.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One small map in each format: dust towards l = 90 only."""
    place = tmp_path_factory.mktemp("maps")
    axis = np.linspace(-300.0, 300.0, 13)
    Y = np.meshgrid(axis, axis, axis, indexing="ij")[1]
    mean = np.maximum(Y, 0) * 1e-5
    cube = Cube(x=axis, y=axis, z=axis, arrays={"mean": mean})
    write_zarr(place / "map.zarr", cube)
    write_fits(place / "map.fits", cube)
    known = {"mean": mean, "std": mean / 2 + 1e-5}
    write_zarr(place / "known.zarr", Cube(x=axis, y=axis, z=axis, arrays=known))
    b = healpy.pix2ang(8, np.arange(768), nest=True, lonlat=True)[1]
    maps = np.array([np.abs(b) * 0 + 0.1, 1.0 - np.abs(b) / 90])
    maps[:, 5] = np.nan
    distances = np.array([100.0, 300.0])
    write_healpix(
        place / "sky.fits",
        SkyMaps(distances=distances, arrays={"mean": maps, "std": maps}),
    )
    return place


@pytest.fixture(scope="module")
def script():
    """The script as a module, to call it without starting Python anew."""
    described = importlib.util.spec_from_file_location("sky_slice", SCRIPT)
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


@pytest.fixture
def say(folder, script, monkeypatch):
    """The script in this process, in the folder, on small pages."""
    monkeypatch.chdir(folder)
    return lambda *words: CliRunner().invoke(script.main, [*words, "--dpi", "72"])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("map.fits --distance 250.5 --nside 16", "map_density_250.5pc.png"),
        ("known.zarr --distance 150 --show relative-error -o a.svg", "a.svg"),
        ("map.zarr --distance 100 --distance 200", "map_density_100-200pc.png"),
    ],
)
def test_a_slice_of_each_format_is_drawn(folder, say, line, name):
    done = say(*line.split())
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"wrote {name}\n"
    assert (folder / name).stat().st_size > 5000


def shares_of_dark(path):
    """How dark the left and the right half of a panel are."""
    picture = imread(path)[..., :3].sum(axis=2)
    height, width = picture.shape
    middle = picture[height // 3 : height // 2]
    left = middle[:, width // 5 : width * 2 // 5].mean()
    return left, middle[:, width * 3 // 5 : width * 4 // 5].mean()


def test_dust_towards_longitude_90_appears_left_of_the_centre(folder, say):
    done = say("map.zarr", "--distance", "200", "-o", "l.png")
    assert done.exit_code == 0
    left, right = shares_of_dark(folder / "l.png")
    assert left < right - 0.3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("map.zarr --distance 601", "nothing at 601 pc"),
        ("map.zarr --distance -5", "distance"),
        ("map.zarr", "--distance"),
        ("map.zarr --distance 100 --show std", "no std"),
        ("map.zarr --distance 100 --show sample", "open a run"),
        ("sky.fits --distance 100", "no mean of the density"),
        ("map.zarr --distance 100 --nside 6", "power of two"),
        ("map.zarr --distance 100 -o a.jpg", "png, pdf, svg"),
        ("absent.fits --distance 100", "absent.fits"),
        ("map.zarr --distance 100 -o no/a.png", "no is not a folder"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(say, line, message):
    done = say(*line.split())
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if done.stderr.startswith("error:"):
        assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)


def test_a_failure_is_status_1(say):
    done = say("map.zarr", "--distance", "100", "-o", "a" * 300 + ".png")
    assert done.exit_code == 1
    assert done.stderr.startswith("failed:")


def test_where_no_star_looks_is_known(folder):
    axis = np.linspace(-300.0, 300.0, 13)
    Z = np.meshgrid(axis, axis, axis, indexing="ij")[0]
    known = {"mean": 1e-3 + 0 * Z, "support": np.where(Z > 0, 1.0, 0.0)}
    cube = Cube(x=axis, y=axis, z=axis, arrays=known)
    places = np.array([10.0, 10.0]), np.array([60.0, -60.0])
    seen = seen_sky(of_cube(folder / "some", cube), 250.0)
    assert [value > 0 for value in seen(*places)] == [True, False]
