"""The script draws a slice of each format, and says what is wrong in one line."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import healpy
import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from pipelines.export.cube import Cube, SkyMaps
from pipelines.export.fits import write_fits
from pipelines.export.healpix import read_healpix, write_healpix
from pipelines.export.zarr import read_zarr, write_zarr

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/sky_slice.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One small map in each format: dust towards l = 90 only."""
    place = tmp_path_factory.mktemp("maps")
    axis = np.linspace(-300.0, 300.0, 13)
    Y = np.meshgrid(axis, axis, axis, indexing="ij")[1]
    cube = Cube(x=axis, y=axis, z=axis, arrays={"mean": np.maximum(Y, 0) * 1e-5})
    write_zarr(place / "map.zarr", cube)
    write_fits(place / "map.fits", cube)
    b = healpy.pix2ang(8, np.arange(768), nest=True, lonlat=True)[1]
    mean = np.array([np.abs(b) * 0 + 0.1, 1.0 - np.abs(b) / 90])
    mean[:, 5] = np.nan
    maps = SkyMaps(distances=np.array([100.0, 300.0]), mean=mean, std=mean)
    write_healpix(place / "sky.fits", maps)
    return place


@pytest.fixture(scope="module")
def script():
    """The script as a module, to call it without starting Python anew."""
    described = importlib.util.spec_from_file_location("sky_slice", SCRIPT)
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["map.zarr", "--distance", "200"], "map_density_200pc.png"),
        (
            ["map.fits", "--distance", "250.5", "--nside", "16"],
            "map_density_250.5pc.png",
        ),
        (["sky.fits", "--distance", "150"], "sky_extinction_150pc.png"),
        (["sky.fits", "--distance", "300", "--nside", "4", "-o", "a.png"], "a.png"),
    ],
)
def test_a_slice_of_each_format_is_drawn(folder, arguments, name):
    done = run(folder, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"wrote {name}\n"
    assert imread(folder / name).shape[1] > 1000


def test_dust_towards_longitude_90_appears_left_of_the_centre(folder, script):
    script.draw(folder / "map.zarr", 200.0, folder / "l.png", None)
    picture = imread(folder / "l.png")[..., :3].sum(axis=2)
    height, width = picture.shape
    middle = picture[height // 3 : height // 2]
    left = middle[:, width // 5 : width * 2 // 5].mean()
    right = middle[:, width * 3 // 5 : width * 4 // 5].mean()
    assert left < right - 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sky.fits", "--distance", "301"], "maps end at 300 pc"),
        (["map.zarr", "--distance", "900"], "nothing at 900 pc"),
        (["map.zarr", "--distance", "nan"], "distance"),
        (["map.zarr", "--distance", "-5"], "distance"),
        (["map.zarr"], "--distance"),
        (["sky.fits", "--distance", "100", "--nside", "6"], "power of two"),
        (["absent.fits", "--distance", "100"], "absent.fits"),
        (["map.zarr", "--distance", "100", "-o", "no/a.png"], "no is not a folder"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(
    folder, script, monkeypatch, arguments, message
):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(script.main, arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mistake_in_the_shell_is_status_2_and_a_failure_status_1(folder):
    done = run(folder, "sky.fits", "--distance", "301")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    done = run(folder, "sky.fits", "--distance", "100", "-o", "a" * 300 + ".png")
    assert done.returncode == 1
    assert done.stderr.startswith("failed:")
    assert "Traceback" not in done.stderr


def test_extinction_is_interpolated_from_zero_at_the_sun(folder, script):
    maps = read_healpix(folder / "sky.fits")
    np.testing.assert_allclose(script.extinction_to(maps, 50.0), maps.mean[0] / 2)
    np.testing.assert_array_equal(script.extinction_to(maps, 100.0), maps.mean[0])
    np.testing.assert_allclose(
        script.extinction_to(maps, 150.0), 0.75 * maps.mean[0] + 0.25 * maps.mean[1]
    )
    assert np.isnan(script.extinction_to(maps, 50.0)[5])


def test_density_is_that_of_the_place_on_the_sphere(folder, script):
    values = script.density_at(read_zarr(folder / "map.zarr"), 200.0)
    l, b = np.array([90.0, 270.0, 30.0, 0.0]), np.array([0.0, 0.0, 60.0, 90.0])  # noqa: E741
    np.testing.assert_allclose(
        values(l, b), [2e-3, 0, 200 * 0.25 * 1e-5, 0], atol=1e-15
    )
