"""What was written passes, and what was damaged is named."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.catalog import tables as catalog_tables
from pipelines.errors import InputError
from pipelines.export.cube import Cube, SkyMaps
from pipelines.export.fits import write_fits
from pipelines.export.healpix import write_healpix
from pipelines.export.zarr import write_zarr
from pipelines.store import write_manifest
from pipelines.verify import verify


def write_table(path, metadata=b"{}", rows=5000):
    table = pa.table({"l": np.random.default_rng(1).uniform(size=rows)})
    if metadata is not None:
        table = table.replace_schema_metadata({b"dustmap": metadata})
    pq.write_table(
        table, path, row_group_size=1000, write_page_checksum=True, use_dictionary=False
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
        mean=np.zeros((2, 48)),
        std=np.ones((2, 48)),
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
        ("sky.fits", "HEALPix maps to 2 distances of 100 to 500 pc, 48 pixels"),
        ("predicted.parquet", "parquet table, 5000 rows in 5 row groups"),
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
    "altered: mean/c/0/0/0": lambda run: flip(run / "map.zarr/mean/c/0/0/0"),
    "map.zarr is no zarr store": lambda run: (run / "map.zarr/zarr.json").unlink(),
    "map.fits is damaged": lambda run: flip(run / "exports/map.fits"),
    "map.fits is no FITS": lambda run: flip(run / "exports/map.fits", 0),
    "sky.fits is damaged": lambda run: flip(run / "sky.fits"),
    "predicted.parquet is damaged": lambda run: flip(run / "predicted.parquet"),
    "predicted.parquet is dam": lambda run: flip(run / "predicted.parquet", 0),
    "parquet is damaged": lambda run: (run / "predicted.parquet").write_bytes(
        (run / "predicted.parquet").read_bytes()[:-100]
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_anywhere_in_a_run_is_found(run, message):
    DAMAGE[message](run)
    with pytest.raises(InputError, match=message):
        verify(run)


def test_a_table_of_another_program_is_refused(tmp_path):
    write_table(tmp_path / "other.parquet", metadata=None)
    with pytest.raises(InputError, match="no metadata 'dustmap'"):
        verify(tmp_path / "other.parquet")


@pytest.mark.parametrize("name", ["absent", "note.txt", "folder", "empty.fits"])
def test_what_is_no_output_is_refused(tmp_path, name):
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "empty.fits").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=name):
        verify(tmp_path / name)


def test_a_canonical_table_passes(tmp_path):
    columns = {"l": np.arange(3.0)}
    catalog_tables.write_table(
        tmp_path / "stars.parquet",
        columns,
        units={"l": "deg"},
        meta={"version": "0.1.0"},
        kind="stars",
        overwrite=False,
    )
    assert "3 rows" in verify(tmp_path / "stars.parquet")


def test_every_file_of_a_partitioned_table_is_read(tmp_path):
    for name in ("a", "b"):
        write_table(tmp_path / f"{name}.parquet")
    assert len(verify(tmp_path).splitlines()) == 2
    flip(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet is damaged"):
        verify(tmp_path)
