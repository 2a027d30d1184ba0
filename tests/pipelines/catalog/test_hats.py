"""HATS catalogues are read whole, once, in the order of the sky, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hats_tree import write_hats

from pipelines.base.errors import InputError
from pipelines.catalog.hats import hats_files, is_hats
from pipelines.catalog.ingest import ingest
from pipelines.catalog.readers import find_files

MAPS = ["ra=ra:deg", "dec=dec:deg", "distance=d:pc"]
MAPS += ["extinction=a:mag", "extinction_error=s:mag"]
MIXED = [(0, pixel) for pixel in range(12) if pixel != 4]
MIXED += [(1, pixel) for pixel in (16, 17, 18, 19)]


@pytest.fixture
def sky() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    n = 600
    return {
        "source_id": np.arange(n),
        "ra": rng.uniform(0, 360, n),
        "dec": np.rad2deg(np.arcsin(rng.uniform(-1, 1, n))),
        "d": rng.uniform(100, 1000, n),
        "a": rng.uniform(0.1, 1, n),
        "s": np.full(n, 0.05),
    }


@pytest.mark.parametrize("as_folders", [False, True])
def test_every_row_is_read_once(as_folders: bool, tmp_path: Path, sky) -> None:
    folder = write_hats(tmp_path / "s", sky, pixels=MIXED, as_folders=as_folders)
    report = ingest([folder], tmp_path / "o.parquet", mappings=MAPS)
    assert report.rows_read == report.rows_kept == 600
    assert report.faulty == 0 and len(report.sources) == 15


def test_files_come_in_the_order_of_the_sky(tmp_path: Path, sky) -> None:
    folder = write_hats(tmp_path / "s", sky, pixels=MIXED)
    places = []
    for path in find_files([folder]):
        order = int(path.parts[-3].removeprefix("Norder="))
        places.append(int(path.stem.removeprefix("Npix=")) << 2 * (3 - order))
    assert places == sorted(places) and len(set(places)) == 15


def test_a_collection_stands_for_its_catalogue(tmp_path: Path, sky) -> None:
    write_hats(tmp_path / "c" / "stars", sky)
    write_hats(tmp_path / "c" / "stars_margin", sky)
    text = "obs_collection=c\nhats_primary_table_url=stars\nall_margins=stars_margin\n"
    (tmp_path / "c" / "collection.properties").write_text(text)
    files = find_files([tmp_path / "c"])
    assert len(files) == 12 and {path.parts[-5] for path in files} == {"stars"}
    (tmp_path / "c" / "collection.properties").write_text("all_margins=x\n")
    with pytest.raises(InputError, match="hats_primary_table_url"):
        find_files([tmp_path / "c"])


def test_the_data_alone_and_older_layouts_are_known(tmp_path: Path, sky) -> None:
    folder = write_hats(tmp_path / "s", sky)
    assert len(hats_files(folder / "dataset")) == 12
    assert is_hats(folder / "dataset") and not is_hats(tmp_path)
    (folder / "hats.properties").rename(folder / "properties")
    assert len(hats_files(folder)) == 12


def test_a_missing_partition_is_named(tmp_path: Path, sky) -> None:
    folder = write_hats(tmp_path / "s", sky)
    leaf = folder / "dataset" / "Norder=0" / "Dir=0" / "Npix=7.parquet"
    content = leaf.read_bytes()
    leaf.unlink()
    with pytest.raises(InputError, match=r"1 partitions are missing.*Npix=7"):
        find_files([folder])
    leaf.write_bytes(content)
    other = leaf.with_name("Npix=12.parquet")
    other.write_bytes(content)
    with pytest.raises(InputError, match=r"not in partition_info\.csv.*Npix=12"):
        find_files([folder])


def test_another_number_of_rows_is_refused(tmp_path: Path, sky) -> None:
    folder = write_hats(tmp_path / "s", sky)
    place = folder / "hats.properties"
    place.write_text(place.read_text().replace("=600", "=601"))
    with pytest.raises(InputError, match="hold 600 rows but hats_nrows says 601"):
        find_files([folder])


def test_a_margin_is_refused(tmp_path: Path, sky) -> None:
    folder = write_hats(tmp_path / "s", sky)
    place = folder / "hats.properties"
    place.write_text(place.read_text().replace("=object", "=margin"))
    with pytest.raises(InputError, match="is a HATS margin"):
        find_files([folder])


def test_overlapping_partitions_are_refused(tmp_path: Path, sky) -> None:
    folder = write_hats(tmp_path / "s", sky, pixels=[*MIXED, (0, 4)])
    with pytest.raises(InputError, match="lies in Norder=0/Npix=4"):
        find_files([folder])


def test_malformed_names_and_listings_are_refused(tmp_path: Path, sky) -> None:
    folder = write_hats(tmp_path / "s", sky)
    (folder / "partition_info.csv").write_text("order,pixel\n0,1\n")
    with pytest.raises(InputError, match="expected columns Norder and Npix"):
        find_files([folder])
    (folder / "dataset/Norder=x/Dir=0/Npix=1").mkdir(parents=True)
    with pytest.raises(InputError, match="expected a HEALPix order"):
        find_files([folder])


def test_a_broken_partition_is_named(tmp_path: Path, sky) -> None:
    folder = write_hats(tmp_path / "s", sky)
    leaf = folder / "dataset" / "Norder=0" / "Dir=0" / "Npix=7.parquet"
    leaf.write_bytes(leaf.read_bytes()[:-50])
    with pytest.raises(InputError, match=r"Npix=7\.parquet cannot be read"):
        find_files([folder])
