"""A fit on nested grids, and all that is made of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import one_cloud
import pytest
import xarray
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.io import fits

import dustmap
from dustmap.functionals import PointValues
from dustmap.whitening import LevelWhitening
from pipelines.catalog.schema import Stars, write_stars
from pipelines.config import FitConfig
from pipelines.export.exporters import export
from pipelines.export.options import ExportOptions
from pipelines.figures.integrals import finest_at
from pipelines.fit import fit
from pipelines.formats.fits import read_fits
from pipelines.formats.zarr import read_columns, read_zarr
from pipelines.maps.opening import open_run
from pipelines.maps.stored import Stored
from pipelines.run.folder import Run, read_run

pytestmark = pytest.mark.usefixtures("no_baseline")
INNER = 140.0


def settings() -> dict:
    """Two levels in the closed-form field's box, every scale given."""
    plain = one_cloud.settings(samples=8)
    plain["box"]["levels"] = 2
    plain["prior"]["std"] = 0.8
    plain["model"] = {"density": "lognormal", "common_noise": 0.0}
    plain["data"] = {"holdout": 0.1}
    return plain


def stars(seed: int = 5) -> Stars:
    """Even in the box, and as many again near the Sun."""
    everywhere = one_cloud.catalogue(600, seed)
    ends = np.random.default_rng(seed).uniform(-INNER, INNER, (600, 3))
    rng = np.random.default_rng(seed + 1)
    values = one_cloud.extinction(ends) + rng.normal(scale=one_cloud.ERROR, size=600)
    near = one_cloud.at(ends, values, one_cloud.ERROR)
    pairs = zip(everywhere.columns().items(), near.columns().values(), strict=True)
    joined = {name: np.concatenate([one, two]) for (name, one), two in pairs}
    return Stars.of(joined, everywhere.units, everywhere.meta)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("nested")
    write_stars(folder / "stars.parquet", stars(), overwrite=False)
    config = FitConfig.model_validate(settings())
    fit(folder / "stars.parquet", folder / "run", config)
    return read_run(folder / "run")


@pytest.fixture(scope="module")
def store(run: Run) -> Stored:
    """Its map."""
    return open_run(run.path)


@pytest.fixture(scope="module")
def exported(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its map in every three-dimensional format."""
    folder = tmp_path_factory.mktemp("exported")
    targets = {"zarr": [folder / "map.zarr"], "fits": [folder / "map.fits"]}
    export(run.path, targets)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("doubled_lengthscale")
def test_scales_may_change_between_the_maps_of_a_fit(run: Run, tmp_path: Path) -> None:
    write_stars(tmp_path / "stars.parquet", stars(), overwrite=False)
    config = FitConfig.model_validate(settings())
    fit(tmp_path / "stars.parquet", tmp_path / "run", config)
    found = read_run(tmp_path / "run")
    assert len(found.plan.tori) == len(run.plan.tori) == 2
    assert found.plan.lengthscale[0] == 2 * run.plan.lengthscale[0]
    errors = [one.summary["held_out"]["rmse"] for one in (found, run)]
    assert errors[0] < 1.5 * errors[1]


def places(count: int, half: float, seed: int = 3) -> np.ndarray:
    """Points [pc] near the Sun."""
    return np.random.default_rng(seed).uniform(-half, half, (count, 3))


def test_a_run_has_a_finer_grid_near_the_sun(run):
    (inner,) = run.plan.grids[1:]
    assert inner.spacing == (35.0, 35.0, 35.0) and inner.reach >= INNER
    assert isinstance(run.posterior.model.whitening, LevelWhitening)
    assert run.summary["converged"]
    # Sight lines count in the cells of both grids.
    coarse, fine = run.supports
    assert fine.shape == inner.shape and float(fine.max()) > 0
    here = np.array([[10.0, -20.0, 30.0]])
    index = tuple(np.rint((here[0] - inner.origin) / 35.0).astype(int))
    assert run.support_at(here)[0] == float(fine[index])
    outside = np.array([[650.0, 0.0, 0.0]])
    index = tuple(np.rint((outside[0] - run.plan.grid.origin) / 70.0).astype(int))
    assert run.support_at(outside)[0] == float(coarse[index])


def test_it_predicts_the_field(run):
    held = one_cloud.catalogue(200, 77)
    found = dustmap.predict(run.path, coordinates(held))
    true = one_cloud.extinction(held.positions())
    error = np.asarray(found["extinction_mean"]) - true
    assert np.sqrt(np.mean(error**2)) < 0.06
    inside = (np.asarray(found["extinction_p2_5"]) <= true) & (
        true <= np.asarray(found["extinction_p97_5"])
    )
    assert inside.mean() > 0.85


def coordinates(held: Stars) -> SkyCoord:
    return SkyCoord(
        l=held.l * u.deg,
        b=held.b * u.deg,
        distance=held.distance * u.pc,
        frame="galactic",
    )


def test_the_map_has_a_cube_for_each_grid(run, store, exported):
    cube = store.cube()
    (inner,) = cube.finer
    assert inner.spacing == (35.0, 35.0, 35.0)
    grid = run.plan.grids[1]
    moments = run.posterior.over_cells(grid.spacing).moments(PointValues(grid.points()))
    # Times the factors by which densities integrate to extinctions.
    factor = inner.arrays["mean"] / moments.mean.reshape(grid.shape).numpy().T
    assert 0.9 < np.median(factor) < 1.1
    draws = store.draws.read()[1].T
    np.testing.assert_allclose(draws.mean(axis=0), inner.arrays["mean"], rtol=1e-3)
    points = places(50, 130.0)
    expected = inner.sample("mean", points)
    np.testing.assert_array_equal(cube.sample("mean", points), expected)
    far = np.array([[500.0, 200.0, 100.0]])
    assert cube.sample("mean", far) == cube.levels[0].sample("mean", far)
    for read in (read_zarr(exported / "map.zarr"), read_fits(exported / "map.fits")):
        assert len(read.levels) == 2
        for level, original in zip(read.levels, cube.levels, strict=True):
            assert level.spacing == pytest.approx(original.spacing)
            for name, values in original.arrays.items():
                np.testing.assert_allclose(level.arrays[name], values, rtol=1e-6)


def test_others_open_it(exported):
    with xarray.open_datatree(exported / "map.zarr", engine="zarr") as tree:
        coarse, fine = tree["level_0"]["mean"], tree["level_1"]["mean"]
        assert coarse.dims == fine.dims == ("z", "y", "x")
        assert float(fine.x[1] - fine.x[0]) == 35.0
        assert fine.attrs["units"] == "mag pc-1"
        assert tree["level_0"]["column_z_std"].dims == ("y", "x")
        assert tree["extinction_mean"].dims == ("pixel", "distance")
        assert tree["extinction_std"].dims == ("pixel", "node")
    columns = read_columns(exported / "map.zarr")
    assert [set(level) for level in columns] == [{"y", "z"}] * 2
    with fits.open(exported / "map.fits") as units:
        assert units["MEAN", 1].header["CDELT1"] == 70.0
        assert units["MEAN", 2].header["CDELT1"] == 35.0


def test_parts_and_sums_follow_the_levels(run, tmp_path):
    targets = {"zarr": [tmp_path / "part.zarr"], "healpix": [tmp_path / "sky.fits"]}
    export(run.path, targets, ExportOptions(sphere=180.0, nside=4))
    part = read_zarr(tmp_path / "part.zarr")
    assert len(part.levels) == 2 and np.isnan(part.finer[0].arrays["mean"]).any()


def test_distances_are_finer_near_the_sun(run, store):
    steps = np.diff(np.append(0.0, store.rays.distance))
    np.testing.assert_allclose(steps[:8], 17.5)
    assert steps.max() == pytest.approx(70.0)


def test_held_out_stars_lose_little_by_the_store(run, store):
    judged = store.meta["held_out"]["rmse"]
    assert judged["store"] < 1.02 * judged["exact"]


def test_a_slice_is_drawn_in_the_finest_cells_that_it_passes(store):
    cube = store.cube()
    fine = finest_at(cube, "z", 0.0)
    assert fine.spacing == (35.0, 35.0, 35.0) and not fine.finer
    place = np.array([[-70.0, 35.0, 0.0], [630.0, 105.0, 0.0]])
    np.testing.assert_allclose(fine.sample("p50", place), cube.sample("p50", place))
    # Beyond the finer grid there is nothing finer to show.
    assert finest_at(cube, "y", 330.0) is cube
    assert finest_at(cube.levels[0], "z", 0.0).spacing[0] == 70.0


@pytest.mark.slow
def test_the_neighbourhood_of_the_sun_is_drawn_in_its_own_cells(
    run, store, exported, tmp_path, command
):
    cube, (inner,) = store.cube(), run.plan.grids[1:]
    assert cube.level_near_the_sun() == 1
    through = store.columns("z", level=1)
    assert (through.low, through.high) == (inner.lower[2], inner.upper[2])
    # A column is the integral of its cells, but for these cells' moderated
    # variances: both are within the error of a mean of eight samples.
    expected = cube.finer[0].integral("mean", "z")
    mean, std = through.arrays["mean"], through.arrays["std"]
    assert np.all(np.abs(mean - expected) < std / np.sqrt(len(run.posterior.samples)))
    np.testing.assert_allclose(mean.sum(), expected.sum(), rtol=0.05)
    for number, source in enumerate((run.path, exported / "map.zarr")):
        figures = tmp_path / str(number)
        done = command(f"plot {source} -o {figures} --kind near --dpi 50")
        assert done.exit_code == 0 and (figures / "near.png").exists()
