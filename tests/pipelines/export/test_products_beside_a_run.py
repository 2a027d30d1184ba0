"""Products in a run's folder stand for the run only if they are its own, and whole."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from test_export import DISTANCES

import dustmap
from pipelines.base.errors import InputError
from pipelines.export.exporters import export_run
from pipelines.export.options import ExportOptions, parse_box
from pipelines.formats.healpix import read_healpix, write_healpix
from pipelines.formats.zarr import write_zarr
from pipelines.maps import run_map

PARTS = {
    "cut to a sphere": {"sphere": 200.0},
    "cut to a box": {"box": parse_box("x=-140:140")},
    "coarser": {"spacing": 140.0},
    "finer": {"spacing": 50.0},
    "in another band": {"declare_band": "A_V", "band": "A_G"},
}
SKIES = {
    "coarser": {"nside": 4},
    "elsewhere": {"distances": DISTANCES},
    "in another band": {"declare_band": "A_V", "band": "A_G"},
}


@pytest.fixture(scope="module", autouse=True)
def few_pixels():
    """Maps of the sky have 768 pixels by default, for the time they take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.maps.sky._FINEST_NSIDE", 8)
        yield


@pytest.fixture(scope="module")
def own(positive_run, few_pixels):
    """What the run itself computes."""
    dust = dustmap.open_map(positive_run.path)
    return dust.cube, dust.answers.columns("z"), dust.answers.sky_maps()


@pytest.fixture
def run(positive_run, tmp_path):
    """A copy of the run, whose products stand in its own folder."""
    shutil.copytree(positive_run.path, tmp_path / "run")
    return tmp_path / "run"


def assert_same(found, expected):
    for name, values in expected.arrays.items():
        np.testing.assert_allclose(found.arrays[name], values, rtol=1e-6, err_msg=name)


def forged(meta, **changes):
    """The same provenance, but of another fit or version."""
    return {**json.loads(json.dumps(meta)), **changes}


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_of_the_density_does_not_stand_for_it(run, own, kind):
    export_run(run, {"zarr": [run / "map.zarr"]}, ExportOptions(nside=4, **PARTS[kind]))
    dust = dustmap.open_map(run)
    assert_same(dust.cube, own[0])
    assert_same(dust.answers.columns("z"), own[1])


@pytest.mark.parametrize("kind", SKIES)
def test_a_sky_of_another_kind_does_not_stand_for_the_runs(run, own, kind):
    target = {"healpix": [run / "map.healpix.fits"]}
    export_run(run, target, ExportOptions(**SKIES[kind]))
    assert_same(dustmap.open_map(run).answers.sky_maps(), own[2])


@pytest.mark.parametrize("changes", [{"fit": "another"}, {"program": "dustmap 0.0.1"}])
def test_products_of_another_fit_or_version_do_not_stand_for_a_run(run, own, changes):
    cube, sky = own[0], own[2]
    foreign = {n: a if n == "support" else 2 * a for n, a in cube.arrays.items()}
    write_zarr(
        run / "map.zarr",
        replace(cube, arrays=foreign, meta=forged(cube.meta, **changes)),
    )
    brighter = {name: 2 * values for name, values in sky.arrays.items()}
    write_healpix(
        run / "map.healpix.fits",
        replace(sky, arrays=brighter, meta=forged(sky.meta, **changes)),
    )
    dust = dustmap.open_map(run)
    assert_same(dust.cube, cube)
    assert_same(dust.answers.sky_maps(), sky)
    if "fit" in changes:
        with pytest.raises(InputError, match="another fit"):
            dustmap.open_map(run / "map.zarr", samples=run)


def test_the_whole_map_of_the_fit_stands_for_the_run(run, own, monkeypatch):
    export_run(run, {})
    for name in ("map_and_columns", "columns"):
        monkeypatch.setattr(run_map, name, None)
    monkeypatch.setattr("pipelines.maps.sky.integrated", None)
    dust = dustmap.open_map(run)
    assert_same(dust.cube, own[0])
    assert_same(dust.answers.columns("z"), own[1])
    assert_same(dust.answers.sky_maps(), read_healpix(run / "map.healpix.fits"))
    assert dustmap.open_map(run / "map.zarr", samples=run).has_samples
