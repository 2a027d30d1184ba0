"""Another map: cubes, runs, objects with a query; axes, units and footprints."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import one_cloud
import pytest
from astropy import units as u

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.compare.maps import compare_map, seen_cells
from pipelines.cubes.cube import Cube
from pipelines.maps.answers import Answers
from pipelines.maps.opening import read_npz
from pipelines.maps.places import Places
from pipelines.maps.queried import QueriedMap, open_queried
from pipelines.maps.stored import of_cube

PLACES = np.array([[300.0, 100.0, -50.0], [420.0, 140.0, -70.0], [-200.0, 50.0, 90.0]])


def rng():
    return np.random.default_rng(1)


@pytest.fixture(scope="module")
def truth() -> Cube:
    """The true density on 25 pc."""
    axes = [np.arange(low - 50, high + 51, 25.0) for low, high in one_cloud.BOX]
    x, y, z = axes
    mesh = np.stack(np.meshgrid(z, y, x, indexing="ij")[::-1], axis=-1)
    return Cube(x=x, y=y, z=z, arrays={"density": one_cloud.density(mesh)})


class Asked:
    """The truth behind ``.query``, in an arbitrary unit."""

    def __init__(self, *, integrated: bool, bare: bool = True) -> None:
        self.integrated, self.bare = integrated, bare

    def query(self, coords, mode="best"):
        assert mode == "median"
        place = coords.galactic.cartesian.xyz.to_value(u.pc).T
        found = one_cloud.extinction if self.integrated else one_cloud.density
        values = found(place) / 3.1
        return values if self.bare else values * u.mag


def queried(*, integrated: bool, **options) -> Answers:
    return QueriedMap(
        path=Path("asked"),
        source=Asked(integrated=integrated, **options),
        integrated=integrated,
        options={"mode": "median"},
        step=5.0,
        scale=3.1,
    )


def at(other: Answers, name: str, points=PLACES) -> np.ndarray:
    places = Places.of_points(points)
    return other.median_or_mean(places, integrated=name == "extinction")


def cube_map(cube: Cube, *, blank=True) -> Answers:
    return of_cube(Path("cube"), cube, blank=blank)


@pytest.mark.parametrize("integrated", [True, False])
@pytest.mark.parametrize("bare", [True, False])
def test_a_queried_map_gives_both_whatever_it_gives(integrated, bare):
    other = queried(integrated=integrated, bare=bare)
    for name in ("extinction", "density"):
        found = at(other, name)
        np.testing.assert_allclose(found, getattr(one_cloud, name)(PLACES), rtol=2e-3)


def test_a_cube_gives_both_in_its_unit(truth):
    per_kpc = Cube(
        x=truth.x,
        y=truth.y,
        z=truth.z,
        arrays={"density": 1000 * truth.arrays["density"]},
        unit="mag kpc-1",
    )
    other = cube_map(per_kpc)
    for name in ("extinction", "density"):
        found = at(other, name)
        np.testing.assert_allclose(found, getattr(one_cloud, name)(PLACES), rtol=0.04)


def test_rays_without_any_dust_are_outside_the_footprint(truth):
    x = np.broadcast_to(truth.x, truth.arrays["density"].shape)
    half = np.where(x > 0, truth.arrays["density"], 0.0)
    holes = Cube(x=truth.x, y=truth.y, z=truth.z, arrays={"density": half})
    places = np.vstack([PLACES, [[-300.0, 0.0, 0.0]]])
    known = np.isfinite(at(cube_map(holes), "extinction", places))
    np.testing.assert_array_equal(known, [True, True, False, False])
    assert np.isfinite(at(cube_map(holes, blank=False), "density", places)).all()


def test_the_true_cube_agrees_and_its_double_is_told(positive_run, truth):
    one = compare_map(positive_run, cube_map(truth), generator=rng()).numbers
    two = compare_map(
        positive_run, cube_map(truth), factor=2.0, generator=rng()
    ).numbers
    assert two["scale"].startswith("2 times")
    assert one["extinction, mean"]["correlation"] > 0.95
    assert one["extinction, mean"]["ratio of means"] == pytest.approx(1, abs=0.05)
    assert one["density, mean"]["correlation"] > 0.8
    assert one["density, mean"]["ratio of means"] == pytest.approx(1, abs=0.2)
    for name in ("extinction, mean", "density, mean"):
        ratio = two[name]["ratio of means"] / one[name]["ratio of means"]
        assert ratio == pytest.approx(0.5)
        assert two[name]["slope"] == pytest.approx(one[name]["slope"] / 2)


def test_only_cells_with_sight_lines_are_asked_for(positive_run, truth):
    support = positive_run.support.clone()
    support[:5] = 0
    half = replace(positive_run, supports=(support,))
    points, total = seen_cells(half, 100, rng())
    assert len(points) == 100 < total <= (support > 0).sum()
    # Where the first five planes are not seen, nothing is asked there.
    assert points[:, 0].min() > half.plan.grid.axis(0)[4]
    again, _ = seen_cells(half, 100, rng())
    np.testing.assert_array_equal(points, again)
    found = compare_map(half, cube_map(truth), points=100, generator=rng())
    counts = found.numbers["counts"]
    assert counts["seen by stars"] == total
    assert counts["asked"] == counts["known to both"] == 100


def test_many_values_for_a_place_are_refused():
    class Samples(Asked):
        def query(self, coords, mode="samples"):
            return np.zeros((*coords.shape, 5))

    many = QueriedMap(path=Path("m"), source=Samples(integrated=True), integrated=True)
    with pytest.raises(InputError, match="one value each"):
        at(many, "extinction")


def test_too_few_common_cells_and_things_that_are_no_map_are_refused(positive_run):
    far = np.arange(5000.0, 5500.0, 50.0)
    cube = Cube(
        x=far - 5225, y=far - 5225, z=far - 5225, arrays={"mean": np.zeros((10,) * 3)}
    )
    with pytest.raises(InputError, match=r"knows 0 of"):
        compare_map(positive_run, cube_map(cube), generator=rng())
    with pytest.raises(InputError, match="is no map"):
        compare_map(positive_run, object(), generator=rng())
    with pytest.raises(InputError, match="give both"):
        compare_map(positive_run, Asked(integrated=True), generator=rng())


def test_an_archive_keeps_its_axes(tmp_path):
    path = tmp_path / "cube.npz"
    grid = np.linspace(-1, 1, 5)
    density = np.arange(125.0).reshape(5, 5, 5)
    np.savez(path, density=density, grid_kpc=grid)
    cube = read_npz(path)
    assert cube.unit == "mag kpc-1"
    # x = 500 pc, y = -1 kpc, z = 0.
    assert cube.sample("density", np.array([500.0, -1000.0, 0.0])) == density[3, 0, 2]
    np.savez(path, density=density)
    with pytest.raises(InputError, match="grid_kpc"):
        read_npz(path)


@pytest.mark.data
def test_the_decoded_map_has_its_dust_in_the_plane(data_dir):
    cube = read_npz(data_dir / "bayestar2019_cart128_20pc.npz")
    by_height = cube.arrays["density"].mean(axis=(1, 2))
    assert abs(cube.z[np.argmax(by_height)]) < 100
    # It ends south of a declination of -30 degrees, which is towards l = 300.
    other = cube_map(cube)
    places = 900.0 * unit_vectors(np.array([120.0, 300.0]), np.zeros(2))
    np.testing.assert_array_equal(
        np.isfinite(at(other, "extinction", places)), [True, False]
    )


def test_packages_and_maps_that_are_not_there_are_named(monkeypatch):
    pytest.importorskip("dustmaps")
    with pytest.raises(InputError, match="nonsense"):
        open_queried("dustmaps:nonsense")
    with pytest.raises(InputError, match=r"bayestar.CLASS: .*BayestarQuery"):
        open_queried("dustmaps:bayestar.Nonsense")
    monkeypatch.setitem(sys.modules, "dustmaps.map_base", None)
    with pytest.raises(InputError, match=r"pip install 'dustmap\[dustmaps\]'"):
        open_queried("dustmaps:bayestar")
