"""What was written passes, and what was damaged is named."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.base.errors import InputError
from pipelines.catalog import tables as catalog_tables
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import SkyMaps
from pipelines.formats.fits import write_fits
from pipelines.formats.healpix import write_healpix
from pipelines.formats.zarr import write_zarr
from pipelines.storage.atomic import write_manifest
from pipelines.verify import verify


def write_table(path, rows=5000):
    catalog_tables.write_table(
        path,
        {"l": np.random.default_rng(1).uniform(size=rows)},
        units={"l": "deg"},
        meta={"made": "in a test"},
        overwrite=True,
    )


@pytest.fixture
def run(tmp_path):
    """A run folder with every kind of export in it."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"engine": "full-batch"}))
    (folder / "state.bin").write_bytes(bytes(50))
    write_manifest(folder)
    values = np.arange(24.0).reshape(2, 3, 4)
    values[0, 0, 0] = np.nan
    cube = Cube(
        x=np.arange(4.0), y=np.arange(3.0), z=np.arange(2.0), arrays={"mean": values}
    )
    sky = SkyMaps(
        distances=np.array([100.0, 500.0]),
        arrays={"mean": np.zeros((2, 48)), "std": np.ones((2, 48))},
    )
    write_zarr(folder / "map.zarr", cube)
    (folder / "exports").mkdir()
    write_fits(folder / "exports/map.fits", cube)
    write_healpix(folder / "sky.fits", sky)
    write_table(folder / "predicted.parquet")
    return folder


def flip(path, position=0.5):
    content = bytearray(path.read_bytes())
    content[int(len(content) * position)] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("map.zarr", "zarr store, mean on 4 x 3 x 2 cells (x y z), 1 NaN in mean"),
        ("exports/map.fits", "FITS cube, mean on 4 x 3 x 2 cells"),
        ("sky.fits", "HEALPix maps to 2 distances"),
        ("predicted.parquet", "parquet table, 5000 rows in 1 row groups"),
    ],
)
def test_each_kind_is_recognised_and_passes(run, name, expected):
    assert expected in verify(run / name)


def test_a_run_passes_with_every_export_inside(run):
    report = verify(run).splitlines()
    assert len(report) == 5
    assert "run, 2 files match" in report[0]
    assert "exports/map.fits" in report[1]


DAMAGE = {
    "altered: state.bin": lambda run: flip(run / "state.bin"),
    "altered: run.json": lambda run: flip(run / "run.json"),
    "no COMPLETE": lambda run: (run / "COMPLETE").unlink(),
    "missing: mean/c/0/0/0": lambda run: (run / "map.zarr/mean/c/0/0/0").unlink(),
    "map.zarr is no zarr store": lambda run: (run / "map.zarr/zarr.json").unlink(),
    "map.fits is damaged": lambda run: flip(run / "exports/map.fits"),
    "predicted.parquet is damaged": lambda run: flip(run / "predicted.parquet"),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_anywhere_in_a_run_is_found(run, message):
    DAMAGE[message](run)
    with pytest.raises(InputError, match=message):
        verify(run)


def test_a_table_of_another_program_is_refused(tmp_path):
    pq.write_table(pa.table({"l": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match=r"not written by this version.*no checksum"):
        verify(tmp_path / "other.parquet")


SINGLE = ("predicted.parquet", "exports/map.fits", "sky.fits")


def every_file(run):
    """The single files, and all that a zarr store is made of."""
    stores = sorted(path for path in (run / "map.zarr").rglob("*") if path.is_file())
    return [(run / name, run / name) for name in SINGLE] + [
        (path, run / "map.zarr") for path in stores
    ]


@pytest.mark.parametrize("kind", ["flipped", "truncated", "deleted"])
def test_no_damage_to_any_file_of_an_export_goes_unseen(run, kind):
    rng = np.random.default_rng(4)
    for path, output in every_file(run):
        whole = path.read_bytes()
        size = len(whole)
        # Headers, footers, data; what a FITS file is padded with counts as well.
        places = [0, 1, 5, size // 2, size - 1, *rng.integers(0, size, 25)]
        places += list(rng.integers(max(size - 600, 0), size, 25))
        for place in places[:3] if kind == "deleted" else places:
            if kind == "flipped":
                content = bytearray(whole)
                content[min(place, size - 1)] ^= 1 << int(rng.integers(8))
                path.write_bytes(content)
            elif kind == "truncated":
                path.write_bytes(whole[: min(place, size - 1)])
            else:
                path.unlink()
            with pytest.raises(InputError):
                verify(output)
            path.write_bytes(whole)
    verify(run)


@pytest.mark.parametrize("name", ["absent", "answers.csv", "folder", "empty.fits"])
def test_what_is_no_output_is_refused(tmp_path, name):
    (tmp_path / "answers.csv").write_text("l,b\n1,2\n")
    (tmp_path / "empty.fits").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=name):
        verify(tmp_path / name)


def test_every_file_of_a_partitioned_table_is_read(tmp_path):
    for name in ("a", "b"):
        write_table(tmp_path / f"{name}.parquet")
    assert len(verify(tmp_path).splitlines()) == 2
    flip(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet is damaged"):
        verify(tmp_path)
