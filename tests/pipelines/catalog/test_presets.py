"""Each survey's description reads a file of its layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from astropy.table import MaskedColumn, Table

from pipelines.bands import known_band
from pipelines.base.errors import InputError
from pipelines.catalog.ingest import ingest
from pipelines.catalog.presets import Preset, list_presets, load_preset
from pipelines.catalog.provenance import surveys
from pipelines.catalog.schema import read_stars
from pipelines.config import SimulateConfig
from pipelines.simulate import simulate

N = 60
RNG = np.random.default_rng(5)
L, B = RNG.uniform(0, 360, N), RNG.uniform(-80, 80, N)
DISTANCE, EXTINCTION = RNG.uniform(100, 3000, N), RNG.uniform(0.1, 3, N)
IDS = np.arange(N) + 2**58


def write_gaia(path: Path) -> int:
    """Half of the stars have no GSP-Phot solution, as in the archive."""
    gone = np.arange(N) % 2 == 1
    table = Table({"source_id": IDS, "ra": L, "dec": B, "l": L, "b": B})
    table["parallax"] = 1000 / DISTANCE
    table["parallax_over_error"] = np.where(np.arange(N) < 10, 3.0, 30.0)
    table["ruwe"] = np.where(np.arange(N) < 20, 2.0, 1.0)
    for name, value in (("distance", DISTANCE), ("azero", EXTINCTION)):
        for suffix, factor in (("", 1), ("_lower", 0.9), ("_upper", 1.1)):
            values = (value * factor).astype(np.float32)
            table[f"{name}_gspphot{suffix}"] = MaskedColumn(values, mask=gone)
            table[f"{name}_gspphot{suffix}"].unit = (
                "pc" if name == "distance" else "mag"
            )
    for name in ("l", "b", "ra", "dec"):
        table[name].unit = "deg"
    table.write(path, format="votable")
    return 20


def write_zhang(path: Path, extra: int) -> int:
    est = np.full((N, 5 + extra), -7.0, np.float32)
    est[:, 3 + extra], est[:, 4 + extra] = EXTINCTION, 1000 / DISTANCE
    err = np.full_like(est, 0.3)
    err[:, 3 + extra], err[:, 4 + extra] = 0.05, est[:, 4 + extra] / 10
    with h5py.File(path, "w") as file:
        file["gdr3_source_id"] = IDS
        file["ra"], file["dec"] = L, B
        file["stellar_params_est"], file["stellar_params_err"] = est, err
        file["quality_flags"] = np.where(np.arange(N) < 6, 8, 0).astype(np.uint8)
    return N - 6


def write_starhorse(path: Path) -> int:
    table = Table({"source_id": IDS, "ra": L, "dec": B})
    for name, value in (("dist", DISTANCE / 1000), ("av", EXTINCTION)):
        for percent, factor in ((16, 0.9), (50, 1), (84, 1.1)):
            table[f"{name}{percent}"] = (value * factor).astype(np.float32)
            table[f"{name}{percent}"].unit = "kpc" if name == "dist" else "mag"
    table["fidelity"] = np.where(np.arange(N) < 6, 0.2, 1.0)
    table["sh_outflag"] = np.where(np.arange(N) % 10 == 9, "0100", "0000")
    table.write(path, format="csv")
    return N - 6 - 6


def write_clusters(path: Path) -> int:
    table = Table({"Name": [f"NGC_{i}" for i in range(N)], "GLON": L, "GLAT": B})
    for name, value in (("dist", DISTANCE), ("AV", EXTINCTION)):
        for percent, factor in ((16, 0.9), (50, 1), (84, 1.1)):
            table[f"{name}{percent}"] = value * factor
    table["Type"] = np.where(np.arange(N) < 6, "g", "o")
    table.write(path, format="votable")
    return N - 6


CATALOGS = Path(__file__).resolve().parents[3] / "catalogs"

GENERATED: dict[str, tuple[str, Callable[[Path], int]]] = {
    "gaia-dr3-gspphot": ("a.vot", write_gaia),
    "zgr23": ("a.h5", lambda path: write_zhang(path, 0)),
    "zhang-green25": ("a.h5", lambda path: write_zhang(path, 1)),
    "starhorse-edr3": ("a.csv", write_starhorse),
    "hunt2023-cds": ("a.vot", write_clusters),
}
REAL = {
    "hunt2023": ("clusters_hunt2023.csv.gz", 5444),
    "stars-av": ("stars_av.csv.gz", 4189),
    "ananke": ("ananke_5k.csv.gz", 4000),
    "cluster-surveys": ("cluster_surveys.csv.gz", 15926),
    "gaia-hot-stars": ("gaia_ob.csv.gz", 80000),
}


@pytest.mark.parametrize("name", GENERATED)
def test_a_survey_is_read_in_its_published_layout(name: str, tmp_path: Path) -> None:
    file, write = GENERATED[name]
    expected = write(tmp_path / file)
    report = ingest([tmp_path / file], tmp_path / "o.parquet", preset=name)
    stars = read_stars(tmp_path / "o.parquet")
    assert report.faulty == 0
    assert report.rows_kept == len(stars) == expected
    rows = np.arange(N)
    if stars.source_id is not None and stars.source_id.dtype == np.int64:
        rows = stars.source_id - IDS[0]
    else:
        rows = np.array([int(str(item).split("_")[1]) for item in stars.source_id])
    np.testing.assert_allclose(stars.distance, DISTANCE[rows], rtol=1e-6)
    np.testing.assert_allclose(stars.extinction, EXTINCTION[rows], rtol=1e-6)
    assert stars.distance_error is not None
    assert (stars.distance_error / stars.distance < 0.11).all()
    told = surveys(stars.meta)[0]["references"]
    assert told == load_preset(name).references


def test_the_simulator_and_its_preset_are_in_step(tmp_path: Path) -> None:
    box = {"half_x": 500.0, "half_y": 500.0, "half_z": 200.0, "spacing": 20.0}
    config = SimulateConfig.model_validate({"stars": 300, "truth": box})
    simulate(config).write(tmp_path / "mock.parquet")
    report = ingest([tmp_path / "mock.parquet"], tmp_path / "o.parquet", preset="mock")
    assert report.rows_kept == 300 and report.faulty == report.cut == 0
    mock, stars = (read_stars(tmp_path / f"{n}.parquet") for n in ("mock", "o"))
    for name, column in stars.columns().items():
        np.testing.assert_allclose(column, mock.columns()[name], rtol=1e-14)
        assert stars.units.get(name) == mock.units.get(name)
    assert set(stars.extra) >= {"extinction_true", "density_true", "distance_true"}


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_a_real_sample_is_read(name: str, tmp_path: Path, data_dir: Path) -> None:
    file, rows = REAL[name]
    report = ingest([data_dir / file], tmp_path / "o.parquet", preset=name)
    stars = read_stars(tmp_path / "o.parquet")
    assert report.rows_read == rows
    assert report.rows_kept > 0.99 * rows
    assert report.cut == 0
    table = Table.read(data_dir / file, format="ascii.csv")
    if name == "ananke":
        xyz = np.stack([table[axis] for axis in "xyz"], axis=1) * 1000
        np.testing.assert_allclose(stars.positions(), xyz, atol=1e-6)
        assert stars.units["density_true"] == "solMass pc-3"
    elif name == "gaia-hot-stars":
        assert stars.extinction.sum() == pytest.approx(2.3 * table["e_bp_rp"].sum())
        with (CATALOGS / "gaia-hot-stars-colours.csv").open() as file:
            teff, colour = np.loadtxt(file, delimiter=",", skiprows=1).T
        given = table["bp_rp"] - table["e_bp_rp"]
        assert np.abs(np.interp(table["teff"], teff, colour) - given).max() < 2e-3
    else:
        column = {"stars-av": "id", "cluster-surveys": "cluster"}.get(name, "name")
        assert stars.source_id[0] == table[column][0]
        np.testing.assert_allclose(stars.extinction.sum(), table["av"].sum(), rtol=0.01)
    if name == "stars-av":
        assert report.negative_extinctions == (table["av"] < 0).sum() > 0


def test_every_preset_is_tested_and_says_on_what() -> None:
    assert set(list_presets()) == set(GENERATED) | set(REAL) | {"mock"}
    for name in list_presets():
        preset = load_preset(name)
        assert preset.name == name
        assert preset.tested_on == ("generated" if name in GENERATED else "real")
        assert preset.references and preset.band and preset.notes
    assert known_band(load_preset("zgr23").band) == "E_ZGR23"


@pytest.mark.parametrize(("extra", "preset"), [(0, "zhang-green25"), (1, "zgr23")])
def test_the_other_release_is_refused_by_its_width(
    extra: int, preset: str, tmp_path: Path
) -> None:
    write_zhang(tmp_path / "a.h5", extra)
    with pytest.raises(InputError, match=f"has {5 + extra} values per row, but"):
        ingest([tmp_path / "a.h5"], tmp_path / "o.parquet", preset=preset)


def test_mappings_stand_in_for_columns_of_a_preset(tmp_path: Path) -> None:
    write_gaia(tmp_path / "a.vot")
    table = Table.read(tmp_path / "a.vot")
    table["parallax_error"] = table["parallax"] / 20
    table["ag_gspphot"] = table["azero_gspphot"] * 0.8
    table.write(tmp_path / "b.fits")
    maps = ["parallax=parallax:mas", "parallax_error=parallax_error:mas"]
    chosen = {"preset": "gaia-dr3-gspphot", "mappings": [*maps, "distance=none"]}
    ingest([tmp_path / "b.fits"], tmp_path / "o.parquet", **chosen)
    stars = read_stars(tmp_path / "o.parquet")
    np.testing.assert_allclose(stars.distance_error, stars.distance / 20)
    # Another value does not take the error of the preset's.
    chosen["mappings"] = ["extinction=ag_gspphot:mag"]
    with pytest.raises(InputError, match="extinction_error"):
        ingest([tmp_path / "b.fits"], tmp_path / "p.parquet", **chosen)


VALID = """
name = "mine"
title = "Mine"
references = ["me"]
band = "V"
tested_on = "real"
notes = ""
[columns]
l = { column = "l", unit = "deg" }
"""


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (("[columns]", "[colums]"), "colums"),
        (("l = {", "lon = {"), "not canonical: lon"),
        (('"deg"', '"degrees"'), "'degrees' is not a unit"),
        (('column = "l"', 'value = "l"'), "value"),
        (("[columns]", "[columns"), "valid TOML"),
        (('column = "l", ', ""), "either column or value"),
        (('["me"]', '["me", 2023]'), "references"),
    ],
)
def test_a_faulty_preset_is_refused(change, match: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(VALID)
    assert isinstance(load_preset(str(path)), Preset)
    path.write_text(VALID.replace(*change))
    with pytest.raises(InputError, match=match):
        load_preset(str(path))
