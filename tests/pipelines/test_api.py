"""``import dustmap``: from arrays to a queried map."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.table import QTable, Table
from astropy.utils.masked import Masked
from masked import MASKED

import dustmap
from pipelines.bands import factor
from pipelines.base.errors import InputError
from pipelines.catalog.schema import read_stars

pytestmark = pytest.mark.usefixtures("no_baseline")
SMALL = {
    "box.spacing": 100.0,
    "inference.samples": 2,
    "inference.learn": False,
    "prior.lengthscale": 150.0,
    "model.outliers": False,
}


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(1)
    coords = SkyCoord(
        l=rng.uniform(0, 360, 300) * u.deg,
        b=rng.uniform(-30, 30, 300) * u.deg,
        distance=rng.uniform(50, 600, 300) * u.pc,
        frame="galactic",
    )
    a_v = 1e-3 * coords.distance.pc + rng.normal(0, 0.02, 300)
    return coords, a_v


@pytest.fixture(scope="module")
def run(arrays, tmp_path_factory):
    coords, a_v = arrays
    output = tmp_path_factory.mktemp("api") / "run"
    dustmap.fit(coords, a_v, 0.02, output=output, declare_band="A_V", settings=SMALL)
    return output


def test_from_arrays_to_a_map_that_answers(run, arrays):
    coords, a_v = arrays
    dust = dustmap.open_map(run)
    assert isinstance(dust, dustmap.DustMap)
    found = dust.query(coords.icrs, integrated=True).to_value(u.mag)
    inside = np.isfinite(found)
    assert inside.sum() > 250
    assert np.corrcoef(found[inside], a_v[inside])[0, 1] > 0.95
    assert dust.band == "A_V"
    table = dustmap.predict(run, coords)
    assert table["extinction_mean"].unit == u.mag and len(table) == len(coords)
    close = np.isclose(table["extinction_mean"].value, found, rtol=0.1, atol=0.02)
    assert close[inside].mean() > 0.9
    again = dustmap.predict(run, run.with_name("run.stars.parquet"))
    assert np.allclose(again["extinction_std"], table["extinction_std"], equal_nan=True)


def test_predictions_in_several_bands_and_of_magnitudes(run, command, tmp_path):
    stars = run.with_name("run.stars.parquet")
    plain = dustmap.predict(run, stars)
    given = {"mappings": ["BP=extinction"], "deredden": ["BP"]}
    table = dustmap.predict(run, stars, band=["A_G", "E(BP-RP)"], **given)
    for band, word in (("A_G", "A_G"), ("E(BP-RP)", "E_BP_RP")):
        expected = factor("A_V", band) * plain["extinction_p84"].value
        found = table[f"{word}_extinction_p84"].value
        np.testing.assert_allclose(found, expected)
    ratio, kinds = factor("A_V", "A_BP"), ("mean", "std")
    mean, std = (ratio * plain[f"extinction_{kind}"].value for kind in kinds)
    np.testing.assert_allclose(
        table["BP_dereddened"].value, read_stars(stars).extinction - mean
    )
    np.testing.assert_allclose(table["BP_dereddened_std"].value, std)
    line = f"predict {run} {stars} -o {tmp_path}/a.ecsv --band A_G --band 'E(BP-RP)'"
    done = command(f"{line} --deredden BP --map BP=extinction:mag")
    assert done.exit_code == 0, done.output
    told = Table.read(tmp_path / "a.ecsv")
    assert told.colnames == table.colnames
    np.testing.assert_allclose(
        told["BP_dereddened"].value, table["BP_dereddened"].value, atol=1e-3
    )
    with pytest.raises(InputError, match="deredden"):
        dustmap.predict(run, SkyCoord([1] * u.deg, [1] * u.deg), deredden=["G"])


def test_a_map_says_what_it_is_at_the_prompt_and_in_a_notebook(run):
    dust = dustmap.open_map(run)
    for text in (repr(dust), dust._repr_html_()):
        for word in ("A_V", "100 x 100 x 100", "held-out", "RMSE", str(run)):
            assert word in text
    assert "<table>" in dust._repr_html_()


def test_a_map_is_drawn_and_read_whole(run, tmp_path):
    dust = dustmap.open_map(run)
    figure = dust.plot("slice", axis="x", at=0.0)
    figure.savefig(tmp_path / "slice.png")
    with pytest.raises(InputError, match="face-on"):
        dust.plot("pie")
    shape = tuple(len(axis) for axis in (dust.cube.z, dust.cube.y, dust.cube.x))
    assert dust.cube.arrays["mean"].shape == shape and dust.cube.unit == "mag pc-1"


def test_without_output_a_run_lasts_until_it_is_saved(arrays, tmp_path, capsys):
    coords, a_v = arrays
    dust = dustmap.fit(coords, a_v * u.mag, 0.02 * u.mag, settings=SMALL)
    assert "output=" in capsys.readouterr().err
    saved = dust.save(tmp_path / "run")
    assert saved.path == tmp_path / "run" and dust.path.is_dir()
    where = coords[:5]
    np.testing.assert_array_equal(
        saved.query(where, integrated=True), dust.query(where, integrated=True)
    )
    with pytest.raises(InputError, match="exists"):
        dust.save(tmp_path / "run")


def tables(arrays):
    """The stars in every kind of table that is in use."""
    coords, a_v = arrays
    units = {"glon": "deg", "glat": "deg", "far": "pc", "av": "mag", "e_av": "mag"}
    plain = {
        "glon": coords.l.deg,
        "glat": coords.b.deg,
        "far": coords.distance.pc,
        "av": a_v,
        "e_av": np.full(len(a_v), 0.02),
    }
    masked = Table(plain, units=units, masked=True)
    masked["av"].mask[3] = True
    return {
        "QTable": (QTable(plain, units=units), ()),
        "masked Table": (masked, ()),
        "DataFrame": (pandas.DataFrame(plain), units),
        "mapping": ({n: v * u.Unit(units[n]) for n, v in plain.items()}, ()),
    }


@pytest.mark.parametrize("kind", ["QTable", "masked Table", "DataFrame", "mapping"])
def test_tables_in_memory_are_read_by_name_and_unit(arrays, run, tmp_path, kind):
    table, units = tables(arrays)[kind]
    names = {"l": "glon", "b": "glat", "distance": "far", "extinction": "av"}
    names["extinction_error"] = "e_av"
    mappings = [
        f"{name}={column}" + (f":{units[column]}" if units else "")
        for name, column in names.items()
    ]
    report = dustmap.ingest(table, tmp_path / "stars.parquet", mappings=mappings)
    assert report.rows_read == 300
    assert report.faulty == (1 if kind == "masked Table" else 0)
    found = dustmap.predict(run, table, mappings=mappings[:3])
    expected = dustmap.predict(run, arrays[0])
    assert list(found.colnames[:5]) == ["glon", "glat", "far", "av", "e_av"]
    np.testing.assert_allclose(
        found["extinction_mean"].value, expected["extinction_mean"].value
    )
    assert found["density_std"].unit == u.mag / u.pc


GONE = np.arange(300) % 10 == 3


@pytest.mark.parametrize("name", ["l", "distance", "av", "e_av", "e_far"])
@pytest.mark.parametrize("kind", MASKED)
def test_masked_values_are_dropped_and_counted_at_every_door(
    arrays, tmp_path, capsys, kind, name
):
    coords, a_v = arrays
    columns = {
        "l": coords.l,
        "b": coords.b,
        "distance": coords.distance,
        "av": a_v * u.mag,
        "e_av": np.full(300, 0.02) * u.mag,
        "e_far": np.full(300, 5.0) * u.pc,
    }
    whole = columns[name]
    # Sound values below the mask would be fitted without a trace.
    columns[name] = MASKED[kind](np.array(whole.value), GONE, whole.unit)
    mappings = ["extinction=av:mag", "extinction_error=e_av:mag", "l=l:deg"]
    mappings += ["distance=distance:pc", "distance_error=e_far:pc"]
    report = dustmap.ingest(columns, tmp_path / "table.parquet", mappings=mappings)
    assert report.faulty == 30 and report.rows_kept == 270
    if name in ("l", "distance"):
        if kind not in ("NaN", "Masked quantity"):
            return  # astropy's coordinates take no other masks
        place = {key: columns[key] for key in ("l", "b", "distance")}
        coords = SkyCoord(**place, frame="galactic")
    # The fit ends after the ingestion, since no star lies in this box.
    nowhere = {"box": {axis: [-1, 1] for axis in "xyz"}}
    with pytest.raises(InputError, match="enlarge"):
        dustmap.fit(
            coords,
            columns["av"],
            columns["e_av"],
            distance_error=columns["e_far"],
            output=tmp_path / "run",
            settings=nowhere,
        )
    assert "30 faulty" in capsys.readouterr().err
    stars = read_stars(tmp_path / "run.stars.parquet")
    np.testing.assert_allclose(stars.extinction, a_v[~GONE], rtol=1e-12)


def test_places_that_are_masked_have_no_answer(run):
    parts = {"l": [10, 20, 30, 40] * u.deg, "b": [0, 1, 2, 3] * u.deg}
    parts["distance"] = [100, 110, 120, 130] * u.pc
    coords = SkyCoord(**parts, frame="galactic")
    for number, name in enumerate(parts, start=1):
        parts[name] = Masked(parts[name], mask=np.arange(4) == number)
    masked, dust = SkyCoord(**parts, frame="galactic"), dustmap.open_map(run)
    for door in (
        lambda at: dust.query(at, integrated=True),
        lambda at: dust.query(at, integrated=False, mode="std"),
        lambda at: dust.extinction(at).mean,
        lambda at: dust.density(at).mean,
        lambda at: dust.extinction_and_density(at)[0].mean,
        lambda at: dustmap.predict(run, at)["extinction_mean"].value,
    ):
        whole, found = door(coords), door(masked)
        assert np.isfinite(found[0]) and np.isfinite(whole).all()
        assert np.isnan(found[1:]).all()
    through = dust.query(masked, integrated=True, total=True)
    assert np.isfinite(through).tolist() == [True, False, False, True]
    table = dustmap.predict(run, masked)
    assert table["no_position"].tolist() == [False, True, True, False]
    assert np.isnan(table["l"]).tolist() == [False, True, False, False]


def test_tables_that_cannot_be_read_are_refused(arrays, tmp_path):
    with pytest.raises(InputError, match="no others"):
        dustmap.fit(tables(arrays)["QTable"][0], 1.0, 1.0, output=tmp_path / "run")
    with pytest.raises(InputError, match="2 values per row"):
        dustmap.ingest({"l": np.ones((3, 2))}, tmp_path / "x.parquet")
    mixed = {"l": np.array([1.0, "two", None], dtype=object), "b": np.ones(3)}
    for odd in (mixed, {"l": np.ones(3), "b": np.ones(2)}):
        with pytest.raises(InputError, match="in memory"):
            dustmap.ingest(odd, tmp_path / "x.parquet")


def test_quantities_are_converted_and_others_refused(arrays, tmp_path):
    coords, a_v = arrays
    output = tmp_path / "run"
    with pytest.raises(InputError, match="mag"):
        dustmap.fit(coords, a_v * u.pc, 0.02, output=output)
    with pytest.raises(InputError, match="shape"):
        dustmap.fit(coords, a_v[:-1], 0.02, output=output)
    with pytest.raises(InputError, match="extinction_error"):
        dustmap.fit(coords, a_v, output=output)
    flat = SkyCoord(l=coords.l, b=coords.b, frame="galactic")
    with pytest.raises(InputError, match="no distance"):
        dustmap.fit(flat, a_v, 0.02, output=output)
    with pytest.raises(InputError, match=r"box\.spacings"):
        dustmap.fit(coords, a_v, 0.02, output=output, settings={"box.spacings": 5})
    assert not list(tmp_path.glob("run*"))


def test_simulate_and_ingest_by_their_names(tmp_path):
    dust, truth = {"clouds": 7, "cavities": 0}, {"spacing": 40}
    made = dustmap.simulate(stars=300, seed=1, dust=dust, truth=truth, growth=0.2)
    assert len(made.stars) == 300 and len(made.truth.meta["clouds"]) == 7
    assert made.stars.meta["configuration"]["growth"] == 0.2
    mock = tmp_path / "mock.parquet"
    made.write(mock)
    for wrong in ({"star": 3}, {"dust": {"cloud": 3}}):
        with pytest.raises(InputError, match="did you mean"):
            dustmap.simulate(**wrong)
    report = dustmap.ingest(mock, tmp_path / "stars.parquet", preset="mock")
    assert "300" in str(report) or "rows" in str(report)


def test_the_mathematics_loads_no_files_or_units():
    program = (
        "import sys, dustmap, dustmap.inference, dustmap.models.lognormal\n"
        "assert {'fit', 'open_map', 'regress'} <= set(dir(dustmap))\n"
        "loaded = {'astropy', 'pyarrow', 'pipelines', 'zarr'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with pytest.raises(AttributeError):
        dustmap.no_such_name  # noqa: B018
