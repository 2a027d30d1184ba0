"""``import dustmap``: from arrays to a queried map."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord

import dustmap
from pipelines.base.errors import InputError

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
    dustmap.fit(coords, a_v, 0.02, output=output, band="A_V", settings=SMALL)
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
    close = np.isclose(table["extinction_mean"].value, found, rtol=1e-5)
    assert close[inside].all()
    again = dustmap.predict(run, run.with_name("run.stars.parquet"))
    assert np.allclose(again["extinction_std"], table["extinction_std"], equal_nan=True)


def test_a_map_says_what_it_is_at_the_prompt_and_in_a_notebook(run):
    dust = dustmap.open_map(run)
    for text in (repr(dust), dust._repr_html_()):
        for word in ("A_V", "100 x 100 x 100", "held-out", "RMSE", str(run)):
            assert word in text
    assert "<table>" in dust._repr_html_()


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
    with pytest.raises(InputError, match="number 7"):
        dustmap.fit(
            coords, np.where(np.arange(300) == 7, np.nan, a_v), 0.02, output=output
        )
    with pytest.raises(InputError, match=r"box\.spacings"):
        dustmap.fit(coords, a_v, 0.02, output=output, settings={"box.spacings": 5})
    assert not list(tmp_path.glob("run*"))


def test_simulate_ingest_and_regress_by_their_names(tmp_path):
    mock = dustmap.simulate(
        tmp_path / "mock.parquet", settings={"stars": 300, "seed": 1}
    )
    report = dustmap.ingest(mock, tmp_path / "stars.parquet", preset="mock")
    assert "300" in str(report) or "rows" in str(report)
    found = dustmap.regress(
        mock,
        tmp_path / "regressed",
        target="extinction",
        inputs=("l", "b", "distance"),
        method="exact",
    )
    assert found.metrics["rmse"] > 0


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
