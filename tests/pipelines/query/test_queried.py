"""Maps of the package dustmaps, from small files in the layouts of their authors."""

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from click.testing import CliRunner

import dustmap
from pipelines.base.errors import InputError
from pipelines.cli import main

# The package's own, at its first import.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:\s*Configuration file not found"),
    pytest.mark.filterwarnings("ignore:invalid escape sequence"),
]
PLACES = SkyCoord(
    [30.0, 200.0, 300.0] * u.deg,
    [5.0, -20.0, 60.0] * u.deg,
    distance=[120.0, 400.0, 900.0] * u.pc,
    frame="galactic",
)


def test_densities_and_extinctions_are_those_of_the_class(package_maps):
    from dustmaps.bayestar import BayestarQuery
    from dustmaps.edenhofer2023 import Edenhofer2023Query
    from dustmaps.leike2020 import Leike2020Query

    for source in ("dustmaps:edenhofer2023", Edenhofer2023Query()):
        dust = dustmap.open_map(source)
        assert dust.band == "E_ZGR23"
        found = dust.query(PLACES, integrated=False).to_value(u.mag / u.pc)
        np.testing.assert_allclose(found, Edenhofer2023Query()(PLACES), rtol=1e-6)
    whole = Edenhofer2023Query(integrated=True)
    for source in ("dustmaps:edenhofer2023", whole):
        sums = dustmap.open_map(source).query(PLACES, integrated=True).to_value(u.mag)
        np.testing.assert_allclose(sums, whole(PLACES), rtol=1e-6)
    for source in ("dustmaps:bayestar", "dustmaps:bayestar.BayestarQuery"):
        dust = dustmap.open_map(source)
        assert dust.band == "E(B-V)_Bayestar"
        found = dust.query(PLACES, integrated=True).to_value(u.mag)
        np.testing.assert_allclose(found, BayestarQuery()(PLACES, mode="median"))
    near = SkyCoord(l=10 * u.deg, b=0 * u.deg, distance=100 * u.pc, frame="galactic")
    dust = dustmap.open_map(Leike2020Query())
    assert dust.band == "A_G"
    # Optical depth per pc: 2.5 log10(e) magnitudes each, over 100 pc.
    magnitudes = 2.5 * np.log10(np.e) * 2e-3
    found = dust.query(near, integrated=False).to_value(u.mag / u.pc)
    assert found == pytest.approx(magnitudes, rel=1e-6)
    found = dust.query(near, integrated=True).to_value(u.mag)
    assert found == pytest.approx(100 * magnitudes, rel=1e-6)


def test_a_stated_factor_replaces_that_of_the_table(package_maps):
    from dustmaps.edenhofer2023 import Edenhofer2023Query

    source = Edenhofer2023Query()
    dust = dustmap.open_map(source, integrated=False, factor=2.8)
    assert dust.band == ""
    found = dust.query(PLACES, integrated=False).to_value(u.mag / u.pc)
    np.testing.assert_allclose(found, 2.8 * source(PLACES), rtol=1e-6)
    with pytest.raises(InputError, match="densities"):
        dustmap.open_map(source, integrated=True)


def test_what_is_not_in_the_table_must_be_stated(package_maps):
    from dustmaps.bayestar import BayestarQuery

    class Own:
        def query(self, coords):
            return np.full(coords.shape, 0.3)

    old = BayestarQuery(version="bayestar2015")
    for source in (Own(), old):
        for part in ({}, {"integrated": True}, {"factor": 2.0}):
            with pytest.raises(InputError, match="give both"):
                dustmap.open_map(source, **part)
        dust = dustmap.open_map(source, integrated=True, factor=2.0)
        assert dust.band == ""
    found = dustmap.open_map(old, integrated=True, factor=2.0)
    values = found.query(PLACES, integrated=True).to_value(u.mag)
    np.testing.assert_allclose(values, 2.0 * old(PLACES, mode="median"))
    for wrong in (-1.0, 0.0):
        with pytest.raises(InputError, match="above 0"):
            dustmap.open_map(Own(), integrated=True, factor=wrong)


def test_the_command_line_opens_them_by_name(package_maps, positive_run, tmp_path):
    def call(line):
        return CliRunner().invoke(main, line.split())

    place = "--l 30 --b 5 --distance 120"
    line, values = f"query dustmaps:edenhofer2023 {place} --differential", []
    for words, band in (("", "E_ZGR23"), (" --band A_V", "A_V")):
        done = call(line + words)
        assert done.exit_code == 0 and f"band         {band}" in done.output
        values.append(float(done.output.split("density_mean")[1].split()[0]))
    assert values[1] == pytest.approx(2.8 * values[0], rel=1e-4)
    folder = tmp_path / "compared"
    line = f"compare {positive_run.path} dustmaps:edenhofer2023 -o {folder} --points 60"
    done = call(f"{line} --factor 2.8")
    assert done.exit_code == 0 and "2.8 times" in done.output, done.output
    line = "plot dustmaps:edenhofer2023 --kind slice --kind sky --kind los --dpi 40"
    done = call(f"{line} --nside 8 -o {tmp_path}/figures")
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "figures").iterdir())) == 3
    for wrong in (
        f"query dustmaps:sfd.SFDQuery {place}",
        f"export dustmaps:edenhofer2023 --zarr {tmp_path}/a.zarr",
    ):
        assert call(wrong).exit_code == 2
