"""Exports are judged as they are read, and at the defaults lose little of the run."""

import re

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord

import dustmap
from pipelines.export.exporters import export_run
from pipelines.export.options import ExportOptions
from pipelines.maps.sky import default_nside, grid_nside, integrated, pixel_directions
from pipelines.run.folder import read_run
from pipelines.run.held_out import read_held_out

PRODUCTS = {"zarr": "map.zarr", "fits": "map.fits", "healpix": "map.healpix.fits"}
CHOICES = {
    "defaults": {},
    "coarser": {"nside": 8, "spacing": 200.0, "distances": (200.0, 400.0)},
    "cut": {"nside": 16, "sphere": 400.0},
    "converted": {"nside": 16, "declare_band": "A_V", "band": "A_G"},
}


@pytest.fixture(scope="module", params=CHOICES)
def exported(request, chain, tmp_path_factory):
    """A run of 3,000 mock stars, and its exports."""
    folder = tmp_path_factory.mktemp("exported")
    targets = {kind: [folder / name] for kind, name in PRODUCTS.items()}
    done = export_run(
        chain.folder / "run", targets, ExportOptions(**CHOICES[request.param])
    )
    return request.param, read_run(chain.folder / "run"), folder, done.factor


def at(stars):
    """Where these stars are."""
    where = {"l": stars.l * u.deg, "b": stars.b * u.deg}
    return SkyCoord(**where, distance=stars.distance * u.pc, frame="galactic")


def test_an_export_states_its_own_figure(exported):
    _, run, folder, factor = exported
    held = read_held_out(run.path)
    places = at(held)
    for name in PRODUCTS.values():
        dust = dustmap.open_map(folder / name)
        error = dust.query(places, integrated=True).value / factor - held.observed
        reached = np.isfinite(error)
        rmse = f"{np.sqrt(np.mean(error[reached] ** 2)):.3g}"
        stated = re.findall(r"RMSE of held-out values is ([0-9.e-]+)", dust.verdict)
        # Of fields that are off, which the run is not, another sentence is said.
        assert stated == [rmse] or (not stated and dust.verdict != str(run.verdict))
        if stated and name != "map.fits":
            assert f"of {reached.sum()}" in dust.verdict


def test_at_the_defaults_exports_predict_as_their_run_does(exported):
    kind, run, folder, _ = exported
    held = read_held_out(run.path)
    places, rmse = at(held), {}
    for path in (run.path, folder / "map.zarr", folder / "map.fits"):
        found = dustmap.open_map(path).query(places, integrated=True).value
        error = found - held.observed
        rmse[path.name] = np.sqrt(np.nanmean(error**2))
    if kind == "defaults":
        # 1.013 of the run's on these cells of 120 pc.
        assert rmse["map.zarr"] == pytest.approx(rmse["run"], rel=0.02)
        assert rmse["map.fits"] == pytest.approx(rmse["run"], rel=0.03)
    if kind == "coarser":
        assert rmse["map.zarr"] > 1.01 * rmse["run"]


@pytest.mark.slow
def test_fine_pixels_are_computed_where_stars_are_dense(chain):
    run = read_run(chain.folder / "run")
    coarse, fine = grid_nside(run), default_nside(run)
    assert coarse < fine
    distances = np.array([200.0, 450.0, 650.0])
    maps, whole = (
        integrated(run, nside=nside, distances=distances) for nside in (None, fine)
    )
    assert maps.nside == fine
    exits = run.box.exits(pixel_directions(fine))
    np.testing.assert_array_equal(np.isnan(maps.mean), exits < distances[:, None])
    np.testing.assert_array_equal(np.isnan(maps.mean), np.isnan(whole.mean))
    same = np.isclose(maps.mean[0], whole.mean[0], rtol=1e-5)
    assert 0.2 < same.mean() < 0.95
    for name, values in maps.arrays.items():
        known, expected = values[:, same], whole.arrays[name][:, same]
        # But where the mean between pixels is equal by chance.
        assert np.isclose(known[0], expected[0], rtol=1e-2).mean() > 0.999, name
    # Elsewhere they lie between pixels of the coarser sky.
    assert np.nanquantile(np.abs(maps.mean / whole.mean - 1), 0.99) < 0.6
