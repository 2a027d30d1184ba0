"""What is missing is dropped and counted, however it is marked; what is not is kept."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.table import MaskedColumn, Table
from masked import MASKED
from small_catalogue import MAP, UNITS, write_csv

import dustmap
from pipelines.base.errors import InputError
from pipelines.catalog.ingest import ingest
from pipelines.catalog.schema import read_stars

N = 400
GONE = np.arange(N) % 7 == 2


def stars() -> dict[str, np.ndarray]:
    """Sound stars; distances are multiples of 0.5 pc, one of exactly 1000 pc."""
    rng = np.random.default_rng(4)
    distance = rng.integers(200, 6000, N) / 2
    distance[0] = 1000.0
    return {
        "l": rng.uniform(0, 360, N),
        "b": rng.uniform(-80, 80, N),
        "distance": distance,
        "extinction": rng.gamma(2.0, 0.4, N) - 0.05,
        "extinction_error": rng.uniform(0.02, 0.1, N),
    }


def in_csv(mark: str):
    def write(path: Path, columns):
        text = columns["distance"].astype(object)
        text[GONE] = mark
        write_csv(path / "a.csv", {**columns, "distance": text})
        return path / "a.csv"

    return write


def by_astropy(name: str, **options):
    def write(path: Path, columns):
        table = Table(columns, units=UNITS)
        table["distance"] = MaskedColumn(columns["distance"], mask=GONE, unit="pc")
        table.write(path / name, **options)
        return path / name

    return write


def in_fits(stored, **cards):
    """Return a writer of distances as FITS stores them."""

    def write(path: Path, columns):
        every = [
            fits.Column(name=n, format="D", array=c)
            for n, c in columns.items()
            if n != "distance"
        ]
        table = fits.BinTableHDU.from_columns(
            [*every, fits.Column(name="distance", array=stored(columns), **cards)]
        )
        table.writeto(path / "a.fits")
        return path / "a.fits"

    return write


def in_parquet(missing):
    def write(path: Path, columns):
        arrays = {**columns, "distance": missing(columns["distance"])}
        pq.write_table(pa.table(arrays), path / "a.parquet")
        return path / "a.parquet"

    return write


def in_hdf5(values, **options):
    def write(path: Path, columns):
        with h5py.File(path / "a.h5", "w") as file:
            for name, column in columns.items():
                if name != "distance":
                    file[name] = column
            made = {k: v for k, v in options.items() if k == "fillvalue"}
            held = values(columns["distance"])
            file.create_dataset("distance", data=held, **made)
            for key in options.keys() - made:
                file["distance"].attrs[key] = options[key]
        return path / "a.h5"

    return write


def in_memory(kind: str):
    def write(path: Path, columns):
        column = MASKED[kind](columns["distance"], GONE, u.pc)
        return {**columns, "distance": column}

    return write


def with_nan(values: np.ndarray) -> np.ndarray:
    return np.where(GONE, np.nan, values)


CONTAINERS = {
    **{f"CSV, {mark or 'empty'}": in_csv(mark) for mark in ("", "NA", "nan", "null")},
    "ECSV": by_astropy("a.ecsv"),
    "VOTable": by_astropy("a.vot", format="votable"),
    "FITS, masked": by_astropy("a.fits"),
    "FITS, NaN": in_fits(lambda columns: with_nan(columns["distance"]), format="D"),
    "FITS, TNULL": in_fits(
        lambda columns: np.where(GONE, -1, 2 * columns["distance"]).astype(np.int32),
        format="J",
        null=-1,
    ),
    # Stored 1000 is missing, and stored 2000 is 1000 pc.
    "FITS, TNULL, TSCAL": in_fits(
        lambda columns: np.where(GONE, 1000, 2 * columns["distance"]).astype(np.int32),
        format="J",
        null=1000,
    ),
    "parquet, null": in_parquet(lambda values: pa.array(values, mask=GONE)),
    "parquet, NaN": in_parquet(with_nan),
    "parquet, astropy": by_astropy("a.parquet", format="parquet"),
    "HDF5, NaN": in_hdf5(with_nan),
    "HDF5, fill value": in_hdf5(lambda v: np.where(GONE, -5.5, v), fillvalue=-5.5),
    "HDF5, _FillValue": in_hdf5(lambda v: np.where(GONE, 77.5, v), _FillValue=77.5),
    **{f"in memory, {kind}": in_memory(kind) for kind in MASKED},
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_missing_values_of_every_container_give_the_same_stars(
    kind: str, tmp_path: Path
) -> None:
    columns = stars()
    source = CONTAINERS[kind](tmp_path, columns)
    maps = MAP
    if kind == "FITS, TNULL":
        maps = [text.replace("distance:pc", "0.5*distance:pc") for text in MAP]
    elif kind == "FITS, TNULL, TSCAL":
        with fits.open(source, mode="update") as file:
            file[1].header["TSCAL5"] = 0.5
    report = dustmap.ingest(source, tmp_path / "out.parquet", mappings=maps)
    assert report.faults == {"distance missing or not a number": int(GONE.sum())}
    found = read_stars(tmp_path / "out.parquet")
    np.testing.assert_array_equal(found.distance, columns["distance"][~GONE])
    np.testing.assert_array_equal(found.b, columns["b"][~GONE])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("extinction", value) for value in (99.99, 99.9, -99.9, -9.99, 1e9, -999)),
        *(("extinction", value) for value in (9.99, 99, -99, 9999, 1e20)),
        *(("distance", value) for value in (-999, 9999, 99999, 1e9, -9.99)),
        *(("extinction_error", value) for value in (9.99, 99.99, 999, -9.99, 1e10)),
    ],
)
@pytest.mark.parametrize(("kind", "share"), [("csv", 0.01), ("float32", 0.1)])
def test_fill_values_are_dropped_and_counted(
    name, value, share, kind, tmp_path, monkeypatch
) -> None:
    columns, marked = stars(), np.arange(N) % round(1 / share) == 5
    columns[name] = np.where(marked, value, columns[name])
    source = write_csv(tmp_path / "a.csv", columns)
    if kind == "float32":
        source = tmp_path / "a.parquet"
        single = {name: column.astype("f4") for name, column in columns.items()}
        pq.write_table(pa.table(single), source)
        # Batches do not matter.
        monkeypatch.setattr("pipelines.catalog.formats.ROWS_PER_BATCH", 90)
    report = ingest([source], tmp_path / "out.parquet", mappings=MAP)
    (reason,) = report.faults
    assert reason.startswith((name, f"|{name}"))
    assert report.faults[reason] == marked.sum()
    found = read_stars(tmp_path / "out.parquet")
    np.testing.assert_allclose(found.distance, columns["distance"][~marked], rtol=1e-6)


@pytest.mark.parametrize("value", [99.99, 999.9])
def test_fill_values_of_bounds_and_parallaxes_are_dropped_too(
    value: float, tmp_path: Path
) -> None:
    columns, marked = stars(), np.arange(N) % 20 == 5
    columns["plx"] = 1000 / columns.pop("distance")
    columns["e_plx"] = np.where(marked, value, columns["plx"] / 20)
    columns["hi"] = columns["extinction"] + 0.1
    columns["lo"] = columns["extinction"] - 0.1
    columns["hi"][np.arange(N) % 20 == 6] = value
    maps = [*MAP[:2], "parallax=plx:mas", "parallax_error=e_plx:mas", MAP[3]]
    maps += ["extinction_lower=lo:mag", "extinction_upper=hi:mag"]
    source = write_csv(tmp_path / "a.csv", columns)
    report = ingest([source], tmp_path / "out.parquet", mappings=maps)
    assert report.rows_kept == N - 40
    assert report.faults[f"extinction_upper is a fill value ({value:g})"] == 20


def test_measured_values_that_look_like_marks_are_kept(tmp_path: Path) -> None:
    columns = stars()
    rng = np.random.default_rng(7)
    # Whole parsecs to the end of a catalogue, tenths of a magnitude, longitudes west.
    columns["distance"] = np.round(rng.uniform(700, 999.4, N))
    columns["extinction"] = np.round(rng.uniform(7.0, 12.0, N), 1)
    columns["l"] = np.round(rng.uniform(-180, 180, N))
    columns["l"][:3] = -99.0, -99.9, 99.0
    columns["distance"][:2], columns["extinction"][:2] = 999.0, 9.9
    source = write_csv(tmp_path / "a.csv", columns)
    report = ingest([source], tmp_path / "out.parquet", mappings=MAP)
    assert report.rows_kept == N and not report.faults
    found = read_stars(tmp_path / "out.parquet")
    np.testing.assert_array_equal(found.l, columns["l"] % 360)
    # A mark far outside is kept on request.
    columns["extinction"][0] = 99.9
    source = write_csv(tmp_path / "a.csv", columns)
    chosen = {"mappings": MAP, "overwrite": True}
    for any_range, kept in ((False, N - 1), (True, N)):
        report = ingest(
            [source], tmp_path / "out.parquet", any_range=any_range, **chosen
        )
        assert report.rows_kept == kept


def test_each_catalogue_has_its_own_fill_values(tmp_path: Path) -> None:
    columns = stars()
    sources = []
    for name, scale in (("near", 1.0), ("behind", 30.0)):
        changed = {**columns, "extinction": scale * columns["extinction"]}
        changed["extinction"][::20] = 9.99
        sources.append(write_csv(tmp_path / f"{name}.csv", changed))
    maps = [*MAP[:4], "extinction_error=0.3:mag"]
    report = ingest(sources, tmp_path / "out.parquet", mappings=maps)
    assert report.catalogues == {"near.csv": N - 20, "behind.csv": N}


@pytest.mark.parametrize(
    "absent", [0, -1, "", "null", "NA", "-999", "INDEF"], ids=lambda mark: f"{mark!r}"
)
def test_stars_without_an_identifier_are_no_repeats(absent, tmp_path: Path) -> None:
    exact = np.arange(N) + 2**60 + 1
    columns = stars() | {"source_id": exact.astype(object)}
    columns["source_id"][GONE] = absent
    columns["source_id"][5] = exact[4]
    if absent == "INDEF":
        columns["source_id"] = np.array([f"J{i}" for i in exact], dtype=object)
        columns["source_id"][GONE] = "None"
        columns["source_id"][5] = columns["source_id"][4]
    source = write_csv(tmp_path / "a.csv", columns)
    report = ingest([source], tmp_path / "out.parquet", mappings=MAP)
    assert report.faults == {"source_id repeated": 1}
    assert f"{GONE.sum()} rows without a source_id" in str(report)
    found = read_stars(tmp_path / "out.parquet").source_id
    assert found is not None
    kept, named = np.arange(N) != 5, ~GONE
    wanted = columns["source_id"][kept & named].tolist()
    assert found[named[kept]].tolist() == wanted


def test_identifiers_of_pandas_are_exact_beside_a_missing_one(tmp_path: Path) -> None:
    exact = np.arange(N) + 2**60 + 1
    table = pandas.DataFrame(stars())
    table["source_id"] = pandas.Series(exact, dtype="Int64").mask(GONE)
    table["other"] = table["source_id"]
    out = tmp_path / "out.parquet"
    dustmap.ingest(table, out, mappings=MAP, keep=["other"])
    found = read_stars(out)
    assert found.source_id is not None
    np.testing.assert_array_equal(found.source_id, np.where(GONE, 0, exact))
    assert np.ma.getmaskarray(found.extra["other"]).tolist() == GONE.tolist()
    np.testing.assert_array_equal(found.extra["other"][~GONE], exact[~GONE])


def test_logarithms_are_converted_not_multiplied(tmp_path: Path) -> None:
    columns = stars()
    columns["logd"] = np.log10(columns["distance"] / 1000)
    columns["lo"] = np.log10(columns["distance"] * 0.9)
    columns["hi"] = np.log10(columns["distance"] * 1.2)
    maps = [*MAP[:2], *MAP[3:], "distance=logd:dex(kpc)"]
    maps += ["distance_lower=lo:dex(pc)", "distance_upper=hi:dex(pc)"]
    source = write_csv(tmp_path / "a.csv", columns)
    ingest([source], tmp_path / "out.parquet", mappings=maps)
    found = read_stars(tmp_path / "out.parquet")
    np.testing.assert_allclose(found.distance, columns["distance"], rtol=1e-12)
    np.testing.assert_allclose(found.distance_error, 0.15 * columns["distance"])
    # In memory, and as the CDS writes it in FITS headers.
    table = Table({**columns, "distance": columns["logd"]}, units=UNITS)
    table["distance"].unit = u.dex(u.kpc)
    dustmap.ingest(table, tmp_path / "out.parquet", overwrite=True)
    again = read_stars(tmp_path / "out.parquet")
    np.testing.assert_array_equal(again.distance, found.distance)
    table["distance"].unit = None
    table.write(tmp_path / "a.fits")
    with fits.open(tmp_path / "a.fits", mode="update") as file:
        file[1].header["TUNIT3"] = "[kpc]"
    ingest([tmp_path / "a.fits"], tmp_path / "out.parquet", overwrite=True)
    again = read_stars(tmp_path / "out.parquet")
    np.testing.assert_allclose(again.distance, found.distance, rtol=1e-12)


@pytest.mark.parametrize(
    "mapping",
    [
        "distance_error=e:dex(pc)",
        "distance=2*logd:dex(pc)",
        "distance=2.5:dex(pc)",
        "distance=logd:mag(pc)",
        "distance=logd:dB(pc)",
        "extinction=e:dex",
        "extinction=e:dB",
    ],
)
def test_other_logarithms_are_refused(mapping: str, tmp_path: Path) -> None:
    columns = stars()
    columns["logd"], columns["e"] = np.log10(columns["distance"]), np.full(N, 0.1)
    source = write_csv(tmp_path / "a.csv", columns)
    name = mapping.partition("=")[0]
    maps = [text for text in MAP if not text.startswith(f"{name}=")] + [mapping]
    with pytest.raises(InputError, match=name):
        ingest([source], tmp_path / "out.parquet", mappings=maps)


@pytest.mark.parametrize("name", ["distance", "extinction"])
def test_offsets_are_not_taken_for_bounds(name: str, tmp_path: Path) -> None:
    columns = stars()
    size = 0.1 * np.abs(columns[name])
    columns["down"], columns["up"] = 0.9 * size, 1.1 * size
    maps = [text for text in MAP if not text.startswith(f"{name}_error")]
    maps += [f"{name}_lower=down:{UNITS[name]}", f"{name}_upper=up:{UNITS[name]}"]
    for low, high in (("down", "up"), ("up", "down")):
        columns["down"], columns["up"] = columns[low], columns[high]
        source = write_csv(tmp_path / "a.csv", columns)
        with pytest.raises(InputError, match=f"{name}_upper do not enclose .*offsets"):
            ingest([source], tmp_path / "out.parquet", mappings=maps)


def test_a_row_with_two_fill_values_counts_once(tmp_path: Path) -> None:
    columns = stars()
    columns["distance"][:4], columns["extinction"][2:7] = 54321.0, 77.7
    source = write_csv(tmp_path / "a.csv", columns)
    report = ingest([source], tmp_path / "out.parquet", mappings=MAP)
    assert report.faulty == 7 == N - report.rows_kept
