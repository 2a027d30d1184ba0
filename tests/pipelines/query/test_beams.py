"""Averages over beams: of known fields, of samples, on the command line."""

import numpy as np
import pytest
import ray_field
from astropy import units as u
from astropy.table import Table

import dustmap
from pipelines.base.errors import InputError
from pipelines.maps.places import places_of
from pipelines.query.beams import Beam, averaged

at = ray_field.at


COORDS = at([10.0, 200.0, 359.9], [5.0, -60.0, 89.9], [100.0, 150.0, 120.0])


@pytest.mark.parametrize(
    ("beam", "expected"),
    # The mean of sin^2 of the angle from the centre, as far as it is small.
    [
        (Beam(radius=2.0), np.deg2rad(2.0) ** 2 / 2),
        (Beam(fwhm=120 * u.arcmin), 2 * (np.deg2rad(2.0) / 2.354820) ** 2),
        (Beam(radius=40.0), 1 - (1 - np.cos(np.deg2rad(40)) ** 3) / 3
         / (1 - np.cos(np.deg2rad(40)))),
    ],
)  # fmt: skip
def test_directions_stand_around_the_centre_with_the_right_spread(beam, expected):
    places = places_of(COORDS)
    around = beam.around(places)
    centre = np.repeat(places.directions, beam.directions, axis=0)
    cosine = (around.directions * centre).sum(axis=1).reshape(3, -1)
    np.testing.assert_allclose((1 - cosine**2).mean(axis=1), expected, rtol=0.01)
    mean = around.directions.reshape(3, -1, 3).mean(axis=1)
    aside = mean - (mean * places.directions).sum(1)[:, None] * places.directions
    assert (np.linalg.norm(aside, axis=1) < 0.02 * np.sqrt(expected)).all()
    np.testing.assert_array_equal(around.distance, np.repeat(places.distance, 128))


def test_averages_of_samples_have_the_error_of_the_average():
    rng = np.random.default_rng(1)
    common, own = rng.normal(size=(1, 1, 2000)), rng.normal(size=(5, 128, 2000))
    mean, std, scatter = averaged((common + own).reshape(-1, 2000), Beam(radius=1.0))
    np.testing.assert_allclose(std, np.sqrt(1 + 1 / 128), rtol=0.1)
    np.testing.assert_allclose(scatter, 1.0, rtol=0.02)
    assert (np.abs(mean) < 0.1).all()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ray_field.write(tmp_path_factory.mktemp("beams") / "map.zarr", nside=64)


def test_a_store_gives_the_mean_and_the_scatter_of_a_known_field(store):
    beam, dust = Beam(radius=3.0), dustmap.open_map(store)
    found, flags = dust.beam(COORDS, beam, return_flags=True)
    points = beam.around(places_of(COORDS)).positions()
    values = ray_field.spread(ray_field.extinction(points))["mean"].reshape(3, -1)
    np.testing.assert_allclose(found.mean.value, values.mean(axis=1), rtol=1e-3)
    np.testing.assert_allclose(found.scatter.value, values.std(axis=1), rtol=0.05)
    assert np.isnan(found.std.value).all() and flags["inside"].all()
    # The centre is inside, but not all of the beam.
    edge = at(0.0, 0.0, 0.999 * ray_field.HALF[0])
    assert np.isfinite(dust.query(edge, integrated=True).value)
    found, flags = dust.beam(edge, Beam(radius=20.0), return_flags=True)
    assert np.isfinite(found.mean.value) == bool(flags["inside"])
    far, flags = dust.beam(at(90.0, 0.0, 399.0), Beam(radius=20), return_flags=True)
    assert flags["inside"] and np.isfinite(far.mean.value)
    out, flags = dust.beam(at(90.0, 30.0, 399.0), Beam(radius=5), return_flags=True)
    assert not flags["inside"] and np.isnan(out.mean.value)


def test_a_run_gives_the_error_of_the_average(positive_run):
    dust = dustmap.open_map(positive_run.path)
    beam = Beam(fwhm=1.0, directions=32)
    where = at([40.0, 130.0], [2.0, -4.0], [100.0, 130.0])
    found = dust.beam(where, beam)
    one = dust.query(where, integrated=True, mode="std").value
    assert (found.std.value > 0.3 * one).all() and (found.std.value < 1.2 * one).all()
    mean = dust.query(where, integrated=True).value
    np.testing.assert_allclose(found.mean.value, mean, rtol=0.2)
    assert found.mean.shape == (2,) and found.mean.unit == u.mag


def test_beams_on_the_command_line(command, store, tmp_path):
    line = f"query {store} --l 10 --b 5 --distance 100 --radius 180arcmin"
    said = command(line)
    assert said.exit_code == 0 and "--samples" in said.output
    numbers = dict(row.split()[:2] for row in said.output.splitlines()[1:])
    expected = dustmap.open_map(store).beam(COORDS[0], Beam(radius=3.0))
    found = float(numbers["extinction_mean"])
    assert found == pytest.approx(expected.mean.value, rel=1e-2)
    Table(
        {"l": [10.0], "b": [5.0], "distance": [100.0]}, units=["deg", "deg", "pc"]
    ).write(tmp_path / "rows.ecsv")
    line = f"query {store} {tmp_path}/rows.ecsv -o {tmp_path}/answers.ecsv --fwhm 1"
    assert command(line).exit_code == 0
    answers = Table.read(tmp_path / "answers.ecsv")
    assert "between directions" in answers["extinction_scatter"].description
    for wrong in ("--fwhm 1 --radius 1", "--radius 1 --total", "--radius -1"):
        said = command(f"query {store} --l 1 --b 1 --distance 9 {wrong}")
        assert said.exit_code == 2
    with pytest.raises(InputError):
        Beam()
