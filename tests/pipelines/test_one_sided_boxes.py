"""Catalogues of a region: boxes with a face at the Sun, pencil beams, shells."""

import numpy as np
import one_cloud
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord

import dustmap
from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import read_stars, write_stars
from pipelines.config import FitConfig
from pipelines.fit import fit

# Longitudes, latitudes [deg] and distances [pc] between which stars are.
REGIONS = {
    "towards Taurus": ((160.0, 185.0), (-24.0, -6.0), (60.0, 600.0)),
    "a pencil beam": ((30.0, 30.1), (12.0, 12.1), (60.0, 600.0)),
    "a shell": ((200.0, 260.0), (10.0, 60.0), (300.0, 320.0)),
    "+x, -y, +z": ((270.0, 360.0), (0.0, 90.0), (20.0, 290.0)),
    "-x, +y, -z": ((90.0, 180.0), (-90.0, 0.0), (20.0, 290.0)),
}
# Boxes by hand, with a face at the Sun along each axis.
BY_HAND = {
    "+x, -y, +z": {"x": [0, 300], "y": [-300, 0], "z": [0, 300]},
    "-x, +y, -z": {"x": [-300, 0], "y": [0, 300], "z": [-300, 0]},
}
# Density of the dust [mag/pc], the same everywhere.
EVEN = 2e-3


@pytest.fixture(scope="module", params=REGIONS)
def run(request, tmp_path_factory):
    """A fit to 300 stars behind even dust, in the box of its own choice or by hand."""
    folder = tmp_path_factory.mktemp("region")
    rng = np.random.default_rng(3)
    lon, lat, distance = (rng.uniform(*ends, 300) for ends in REGIONS[request.param])
    values = EVEN * distance + 0.02 * rng.normal(size=300)
    places = distance[:, None] * unit_vectors(lon, lat)
    stars = one_cloud.at(places, values, 0.02)
    write_stars(folder / "stars.parquet", stars, overwrite=False)
    settings = one_cloud.positive_settings()
    settings["box"] = {"spacing": 60.0, **BY_HAND.get(request.param, {})}
    settings["prior"]["mean_density"] = EVEN
    fit(folder / "stars.parquet", folder / "run", FitConfig.model_validate(settings))
    return folder / "run"


def test_every_product_of_a_region_holds_its_dust(run, command, tmp_path):
    names = {"zarr": "map.zarr", "fits": "map.fits"}
    names |= {"healpix": "sky.fits", "image": "image.fits"}
    targets = " ".join(f"--{kind} {tmp_path / name}" for kind, name in names.items())
    done = command(f"export {run} {targets} --pixel 8 --distances 60,250")
    assert done.exit_code == 0, done.output
    stars = read_stars(run / "stars.parquet")
    places = SkyCoord(
        stars.l * u.deg, stars.b * u.deg, stars.distance * u.pc, frame="galactic"
    )
    for path in (run, tmp_path / "map.zarr", tmp_path / "map.fits"):
        found = dustmap.open_map(path).query(places, integrated=True).value
        np.testing.assert_allclose(found, EVEN * stars.distance, rtol=0.15)
    # Behind the Sun there is no map.
    behind = SkyCoord(places.l + 180 * u.deg, -places.b, 100 * u.pc, frame="galactic")
    store = dustmap.open_map(tmp_path / "map.zarr")
    box = store.answers.box
    for path in (run, tmp_path / "map.zarr"):
        found, flags = dustmap.open_map(path).query(
            behind, integrated=True, return_flags=True
        )
        xyz = behind.cartesian.xyz.to_value(u.pc).T
        np.testing.assert_array_equal(np.isfinite(found), box.contains(xyz))
        np.testing.assert_array_equal(flags["inside"], box.contains(xyz))
        found = dustmap.open_map(path).query(behind, integrated=True, total=True)
        ends = box.exits(behind.cartesian.xyz.value.T)
        np.testing.assert_array_equal(np.isfinite(found), ends > 0)
    for source in (run, tmp_path / "map.zarr", tmp_path / "sky.fits"):
        words = f"plot {source} -o {tmp_path}/figures --dpi 40"
        done = command(words)
        assert done.exit_code == 0, done.output
    done = command(f"view {run} -o {tmp_path}/map.html")
    assert done.exit_code == 0, done.output


def test_a_sight_line_outside_the_box_is_refused_in_figures(run, command, tmp_path):
    box = dustmap.open_map(run).answers.box
    if all(low < 0 < high for low, high in zip(box.lower, box.upper, strict=True)):
        pytest.skip("the box is around the Sun")
    axis = next(a for a in range(3) if 0 in (box.lower[a], box.upper[a]))
    towards = np.zeros(3)
    towards[axis] = 1.0 if box.upper[axis] == 0 else -1.0
    lon = float(np.degrees(np.arctan2(towards[1], towards[0])) % 360)
    lat = float(np.degrees(np.arcsin(towards[2])))
    words = f"plot {run} -o {tmp_path}/out --kind los --direction {lon},{lat}"
    done = command(words)
    assert done.exit_code == 2 and "outside the map" in done.output


@pytest.mark.parametrize("axis", "xyz")
@pytest.mark.parametrize("ends", [(50, 300), (-300, -50)])
def test_a_box_without_the_sun_is_refused_with_the_key(axis, ends):
    with pytest.raises(ValueError, match=rf"box.*\n.*{axis} = .*min <= 0 <= max"):
        FitConfig.model_validate({"box": {axis: ends}})
