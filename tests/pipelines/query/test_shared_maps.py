"""Maps in other processes and threads, and what is no path of a map."""

import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest
import ray_field
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.export.exporters import export
from pipelines.export.options import ExportOptions
from pipelines.query import open_map
from pipelines.query.dustmaps_map import DustmapQuery

KINDS = ("store", "run", "cube", "sky", "query")


@pytest.fixture(scope="module")
def opened(path, positive_run, tmp_path_factory):
    """A function that opens a map of each kind."""
    folder = tmp_path_factory.mktemp("shared")
    names = {"zarr": "map.zarr", "fits": "map.fits", "healpix": "sky.fits"}
    targets = {kind: [folder / name] for kind, name in names.items()}
    options = ExportOptions(distances=(50.0, 100.0), nside=8)
    export(positive_run.path, targets, options)
    cube = folder / "map.fits"

    def opened(kind):
        match kind:
            case "run":
                return open_map(positive_run.path)
            case "cube" | "sky":
                return open_map(cube if kind == "cube" else folder / "sky.fits")
            case "query":
                return DustmapQuery(path)
            case _:
                return open_map(path)

    return opened


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_map_gives_the_same_answers(opened, coords, kind):
    dust = opened(kind)
    few = coords[:40]
    here = dust.query(few, integrated=True)
    copy = pickle.loads(pickle.dumps(dust))
    np.testing.assert_array_equal(copy.query(few, integrated=True), here)
    if kind == "run":
        ours, theirs = (
            one.query(few, integrated=True, mode="samples") for one in (dust, copy)
        )
        np.testing.assert_array_equal(ours, theirs)
    if kind in ("store", "run", "cube"):
        dust.cube.arrays["mean"]  # read before pickling, and anew by the copy
        again = pickle.loads(pickle.dumps(dust))
        np.testing.assert_array_equal(
            again.cube.arrays["mean"], dust.cube.arrays["mean"]
        )
    if kind in ("store", "run", "samples", "query"):
        assert len(pickle.dumps(dust)) < 30_000, "arrays travel by their path"


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_a_map(opened, coords, kind):
    parts = [coords[start:80:8] for start in range(8)]
    each, alone = (partial(opened(kind).query, integrated=True) for _ in range(2))
    expected = list(map(alone, parts))
    with ThreadPoolExecutor(8) as threads:
        for _ in range(1 if kind == "run" else 3):
            found = list(threads.map(each, parts))
            np.testing.assert_array_equal(np.hstack(found), np.hstack(expected))


def test_a_new_process_answers_with_a_pickled_map(path, coords):
    ask = partial(DustmapQuery(path, integrated=True).query, mode="std")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as workers:
        found = workers.submit(ask, coords[:9]).result()
    np.testing.assert_array_equal(found, ask(coords[:9]))


def test_a_query_of_one_place_imports_no_more_than_it_needs(opened):
    store = opened("run").path
    heavy = {"torch", "scipy", "healpy", "matplotlib", "numba", "pyarrow", "pydantic"}
    words = ["query", str(store), "--l", "90", "--b", "5", "--distance", "100"]
    program = (
        "import sys; from pipelines.cli import main; "
        f"main({words}, standalone_mode=False); "
        f"print(*sorted({heavy} & set(sys.modules)), 'end')"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[0].startswith("extinction_mean") and said[-1] == "end"


@pytest.mark.parametrize(
    "given",
    [None, 5, 2.5, True, np.zeros(3), [1], {}, b"map", ray_field.at(1, 2, 3)],
    ids=lambda given: type(given).__name__,
)
@pytest.mark.parametrize("open_it", [open_map, DustmapQuery])
def test_what_is_no_path_is_refused_by_its_type(open_it, given):
    with pytest.raises(InputError, match=f"path of a map, got {type(given).__name__}"):
        open_it(given)


def test_an_opened_map_is_no_path_but_may_be_queried(path):
    dust = open_map(path)
    with pytest.raises(InputError, match="path of a map, got DustMap"):
        open_map(dust)
    place = SkyCoord(l=100 * u.deg, b=5 * u.deg, distance=0.1 * u.kpc, frame="galactic")
    found = DustmapQuery(dust, integrated=True)(place)
    assert found == dust.query(place, integrated=True)


def test_a_store_that_is_written_anew_is_not_read_by_a_map_of_the_old_one(
    tmp_path, coords
):
    path = ray_field.write(tmp_path / "map.zarr")
    dust, copy = open_map(path), pickle.dumps(open_map(path))
    shutil.rmtree(path)
    ray_field.write(path, nside=8)
    for old in (dust, pickle.loads(copy)):
        for integrated in (True, False):
            with pytest.raises(InputError, match="anew"):
                old.query(coords[:9], integrated=integrated)
        with pytest.raises(InputError, match="anew"):
            _ = old.cube
    open_map(path).query(coords[:9], integrated=True)


def test_a_view_whose_state_a_copy_would_lose_is_not_saved(opened, tmp_path):
    with pytest.raises(InputError, match="outside="):
        opened("run").with_outside("prior").save(tmp_path / "copy.zarr")
    saved = opened("store").save(tmp_path / "copy.zarr")
    assert saved.path == tmp_path / "copy.zarr"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="choose another"):
        opened("store").save(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "notes.txt").exists()
