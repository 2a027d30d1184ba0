"""Places of tables: parallaxes, presets, and distances with errors."""

import numpy as np
import pytest
import ray_field
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.table import Table
from scipy.optimize import brentq
from scipy.stats import lognorm, norm

from pipelines.api import predict
from pipelines.base.errors import InputError
from pipelines.query import mixture, open_map
from pipelines.query.exact import open_exactly
from pipelines.query.map import DustMap
from pipelines.query.table import QueryOptions, ask
from pipelines.query.targets import Targets, TargetTable

GAIA = "parallax={}-gaia_zero_point(g,nu,pc,lat,solved):mas"


def only(path, *mappings, **options):
    (targets,) = TargetTable(path, mappings, **options)
    return targets


def test_a_parallax_is_inverted_without_its_zero_point(tmp_path):
    zpt = pytest.importorskip("zero_point").zpt
    zpt.load_tables()
    rows = np.arange(3)
    table = Table({"l": rows * u.deg, "b": rows * u.deg})
    table["plx"], table["e"] = [5.0, 2.0, -1.0] * u.mas, [0.1, 0.2, 0.3] * u.mas
    table["g"], table["nu"], table["pc"] = [12.0, 17.0, 15.0], 1.5, np.nan
    table["lat"], table["solved"] = 10.0, 31
    table.write(tmp_path / "a.ecsv")
    found = only(tmp_path / "a.ecsv", GAIA.format("plx"), "parallax_error=e")
    zero = [
        *zpt.get_zpt(
            *map(np.array, ([12.0, 17.0], [1.5] * 2, [0.0] * 2, [10.0] * 2, [31] * 2))
        )
    ]
    true = np.array([5.0, 2.0]) - zero
    distance = found.coords.distance.pc
    np.testing.assert_allclose(distance[:2], 1000 / true)
    np.testing.assert_allclose(
        found.errors[:2], [100 / true[0] ** 2, 200 / true[1] ** 2]
    )
    # What is not positive is no distance, and its row stays.
    assert np.isnan(distance[2])
    assert only(tmp_path / "a.ecsv", "parallax=plx+0.03:mas").errors is None
    modulus = only(tmp_path / "a.ecsv", "distance_modulus=g:mag")
    np.testing.assert_allclose(modulus.coords.distance.pc, 10 ** (table["g"] / 5 + 1))


def gspphot(**columns):
    stars = SkyCoord(ra=[80, 85] * u.deg, dec=[-5, 10] * u.deg)
    table = Table({"ra": stars.ra.deg, "dec": stars.dec.deg})
    table["l"], table["b"] = stars.galactic.l.deg, stars.galactic.b.deg
    table["parallax"], table["parallax_error"] = [4.0, 5.0], [0.1, 0.2]
    for name, values in columns.items():
        table[name] = values
    return table


RA_DEC = ("ra=ra:deg", "dec=dec:deg")


def test_a_preset_for_l_and_b_takes_ra_and_dec_and_parallaxes(tmp_path):
    both, path = gspphot(distance_gspphot=[250.0, 200.0]), tmp_path / "a.csv"
    both.write(path)
    preset = {"preset": "gaia-dr3-gspphot"}
    plain = only(path, **preset)
    assert plain.errors is None and plain.coords.frame.name == "galactic"
    # What is mapped goes before the preset, which may be for other columns.
    moved = only(path, "ra=ra+1:deg", "dec=dec:deg", **preset).coords
    np.testing.assert_allclose(moved.ra.deg, both["ra"] + 1)
    both["ra"].unit = both["dec"].unit = u.deg
    both.remove_columns(["l", "b"])
    both.write(tmp_path / "b.ecsv")
    for name, mapped in (("b.ecsv", ()), ("b.ecsv", RA_DEC)):
        found = only(tmp_path / name, *mapped, **preset).coords
        assert (found.separation(plain.coords) < 1e-6 * u.deg).all()
    # The preset's own note.
    note = (
        "parallax=parallax:mas",
        "parallax_error=parallax_error:mas",
        "distance=none",
    )
    found = only(path, *note, **preset)
    np.testing.assert_allclose(found.coords.distance.pc, [250, 200])
    np.testing.assert_allclose(found.errors, [6.25, 8.0])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"distance_error": [3.0, np.nan]}, [3.0, np.nan]),
        ({"distance_lower": [190.0, 192], "distance_upper": [204.0, 210]}, [7, 9]),
        ({"distance_error_lower": [2, 3], "distance_error_upper": [4, 5]}, [3, 4]),
    ],
)
def test_errors_of_distances_are_those_of_ingest(tmp_path, given, error):
    places = {name: [1.0, 2.0] * u.deg for name in "lb"}
    kept = {name: values * u.pc for name, values in given.items()}
    Table({**places, "distance": [200.0, 200] * u.pc, **kept}).write(
        tmp_path / "a.fits"
    )
    mapped = [f"{name}={name}" for name in given]
    np.testing.assert_allclose(only(tmp_path / "a.fits", *mapped).errors, error)
    # Names alone do not ask for an average.
    assert only(tmp_path / "a.fits").errors is None
    wrong = [f"{name}=-{name}:pc" for name in given]
    with pytest.raises(InputError):
        only(tmp_path / "a.fits", *wrong)


def test_a_mixture_is_the_integral_over_the_distance():
    """A cloud of no depth, and one whose extinction grows in proportion."""
    offsets = mixture._OFFSETS
    for mean in (
        np.where(offsets < 0, 0.2, np.where(offsets > 0, 1.0, 0.6)),
        offsets + 6,
    ):
        std = np.full_like(mean, 0.1)
        spread = np.sqrt(np.log1p((std / mean) ** 2))
        middle = np.log(mean) - spread**2 / 2
        levels = zip(("p16", "p50", "p84"), (-1, 0, 1))
        held = {name: np.exp(middle + z * spread)[None] for name, z in levels}
        held |= {"mean": mean[None], "std": std[None]}
        kinds = ("mean", "std", "p2_5", "p16", "p50", "p97_5", "p99")
        found = mixture._mixed(held, kinds)
        z = np.linspace(-4, 4, 20_001)
        weight = norm.pdf(z) / norm.pdf(z).sum()
        m, s = np.interp(z, offsets, mean), np.interp(z, offsets, std)
        average = weight @ m
        true = {"mean": average, "std": np.sqrt(weight @ (s**2 + (m - average) ** 2))}
        scale = np.sqrt(np.log1p((s / m) ** 2))
        law = lognorm(scale, scale=m * np.exp(-(scale**2) / 2))
        for kind, chance in (
            ("p2_5", 0.025),
            ("p50", 0.5),
            ("p97_5", 0.975),
            ("p99", 0.99),
        ):
            below = lambda x, p=chance, f=law, w=weight: w @ f.cdf(x) - p  # noqa: E731
            true[kind] = brentq(below, 0.01, 20)
        for kind, value in true.items():
            assert found[kind][0] == pytest.approx(value, rel=0.01), kind
    assert not found["part_outside"][0]


def test_an_exact_distance_changes_nothing_and_an_uncertain_one_widens(path):
    dust, here = (
        open_map(path),
        ray_field.at([30, 80, 200], [5, 10, -5], [200.0, 150, 470]),
    )
    asked = {
        error: ask(
            dust,
            here,
            QueryOptions(),
            Targets(coords=here, columns={}, errors=np.full(3, error)),
        )
        for error in (0.0, 40.0)
    }
    plain = ask(dust, here, QueryOptions())
    for name, column in plain.items():
        np.testing.assert_allclose(asked[0.0][name], column, rtol=1e-5)
    # By the map's own answers along the sight line.
    z = np.random.default_rng(0).normal(size=40_000)
    for row in range(2):
        distance = np.maximum(here.distance.pc[row] + 40 * z, 1.0)
        line = ray_field.at(np.full_like(z, here.l.deg[row]), here.b.deg[row], distance)
        for what, whole in (
            ("extinction", dust.extinction(line)),
            ("density", dust.density(line)),
        ):
            mean, std = whole.mean.value, whole.std.value
            total = np.sqrt(np.nanmean(std**2) + np.nanvar(mean))
            assert asked[40.0][f"{what}_mean"][row] == pytest.approx(
                np.nanmean(mean), rel=5e-3
            )
            assert asked[40.0][f"{what}_std"][row] == pytest.approx(total, rel=1e-2)
    assert asked[40.0]["part_outside"].tolist() == [False, False, True]


def test_distance_errors_are_used_and_said(command, path, tmp_path):
    table = Table({"l": [30.0, 80, 90] * u.deg, "b": [5.0, 10, 0] * u.deg})
    table["distance"] = [200.0, 150, 100] * u.pc
    table["distance_error"] = [40.0, 0, np.nan] * u.pc
    table.write(tmp_path / "a.fits")
    line = f"query {path} {tmp_path}/a.fits --integrated -o {tmp_path}"
    plainly, line = line, f"{line} --map distance_error=distance_error:pc -o {tmp_path}"
    done = command(f"{line}/o.ecsv")
    assert done.exit_code == 0 and "1 no distance error" in done.output, done.output
    assert command(f"{plainly}/p.ecsv").exit_code == 0
    found, plain = (Table.read(tmp_path / f"{name}.ecsv") for name in "op")
    assert found.meta["averaged_over"] == "distance_error"
    wider = found["extinction_std"] > 1.02 * plain["extinction_std"]
    assert wider.tolist() == [True, False, False]
    for mode, column in (("std", "std"), ("median", "p50"), ("mean", "mean")):
        assert command(f"{line}/{mode}.ecsv --mode {mode}").exit_code == 0
        one = Table.read(tmp_path / f"{mode}.ecsv")[f"extinction_{mode}"]
        np.testing.assert_allclose(one, found[f"extinction_{column}"], rtol=1e-3)
    assert command(f"{line}/s.ecsv --mode samples").exit_code == 2
    # Directions have no distances.
    assert command(f"{plainly}/t.ecsv --total").exit_code == 0
    assert "no_distance_error" not in Table.read(tmp_path / "t.ecsv").colnames


def test_predictions_of_a_run_are_averaged_too(positive_run, places):
    near = {name: getattr(places, name)[:5] for name in ("l", "b", "distance")}
    table = Table({"l": near["l"] * u.deg, "b": near["b"] * u.deg})
    table["distance"], table["distance_error"] = near["distance"] * u.pc, 20.0 * u.pc
    found = predict(
        positive_run.path, table, mappings=["distance_error=distance_error"]
    )
    exact = DustMap(answers=open_exactly(positive_run.path))
    dust, z = exact, np.linspace(-4, 4, 201)
    for row in range(5):
        ends = np.maximum(near["distance"][row] + 20 * z, 0.02 * near["distance"][row])
        line = ray_field.at(np.full_like(z, near["l"][row]), near["b"][row], ends)
        mean, std = (
            dust.query(line, integrated=True, mode=m).value for m in ("mean", "std")
        )
        if found["part_outside"][row]:
            continue
        weight = norm.pdf(z) / norm.pdf(z).sum()
        total = np.sqrt(weight @ (std**2 + (mean - weight @ mean) ** 2))
        assert found["extinction_mean"][row].value == pytest.approx(
            weight @ mean, rel=0.02
        )
        assert found["extinction_std"][row].value == pytest.approx(total, rel=0.03)
    assert found["part_outside"].sum() < 4


def test_a_run_answers_where_an_extinction_is_reached(
    command, positive_run, cloud_run, coords
):
    for run in (positive_run, cloud_run):
        dust = open_map(run.path)
        some = coords[:20]
        wanted = 0.6 * dust.query(some, integrated=True, total=True, mode="median")
        crossing, flags = dust.distance_at(some, wanted, return_flags=True)
        assert flags["inside"].all() and not flags["not_reached"].any()
        kinds = zip(crossing, (50, 84.134475, 15.865525))
        for distance, level in kinds:
            inside = np.isfinite(distance) & (distance > 0)
            there = SkyCoord(some.l, some.b, distance, frame="galactic")[inside]
            back = dust.query(there, integrated=True, mode="percentile", pct=level)
            towards = ray_field.unit_vectors(there.l.deg, there.b.deg)
            # The lower end is at most that of the map.
            reached = distance[inside].value < 0.99 * dust.answers.box.exits(towards)
            np.testing.assert_allclose(
                back[reached], wanted[inside][reached], rtol=0.02
            )
    found = command(f"query {positive_run.path} --l 20 --b -8 --at-extinction 0.1")
    assert found.exit_code == 0 and "distance_reached" in found.output
