"""Integrated extinction by pixel and distance: right between them, and whose error."""

from dataclasses import replace

import numpy as np
import one_cloud
import pytest
import torch
from ray_moments import cumulative

from dustmap.grid import Grid
from dustmap.nested_grids import NestedGrids
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.pixels import pixel_directions
from pipelines.base.quantiles import NAMES
from pipelines.maps.opening import open_run
from pipelines.maps.places import Places
from pipelines.maps.rays import last_seen
from pipelines.run.predict import predict_columns
from pipelines.store import curves as curves_of_a_store
from pipelines.store.curves import curve_distances, extinction_curves, nsides_at

SPACING = 70.0
LOWER, UPPER = np.array(one_cloud.BOX).T


@pytest.fixture(scope="module")
def whole(cloud_store):
    return cloud_store.sky_maps([*cloud_store.rays.distance])


def places_inside(count: int) -> Places:
    """Places in the box, a step or more from its faces and the observer."""
    rng = np.random.default_rng(8)
    places = rng.uniform(LOWER + 80, UPPER - 80, size=(count, 3))
    return Places.of_points(places[np.linalg.norm(places, axis=1) > SPACING])


def test_distances_are_half_a_step_apart_near_the_sun_and_a_step_beyond(
    whole, positive_maps, positive_store
):
    assert list(whole.arrays) == ["mean", "std"]
    assert list(positive_maps.arrays) == ["mean", "std", *NAMES]
    steps = np.diff(whole.distances, prepend=0.0)
    np.testing.assert_allclose(steps[:16], SPACING / 2)
    farthest = np.hypot.reduce(np.maximum(-LOWER, UPPER))
    assert whole.distances[-1] <= farthest < whole.distances[-1] + SPACING
    known = positive_store.rays.known
    assert len(known) < len(whole.distances) and known[-1] == len(whole.distances) - 1


def test_what_lies_between_pixels_and_distances_is_what_predictions_say(
    positive_store, positive_run
):
    places = places_inside(3000)
    exact = predict_columns(positive_run.plan, positive_run.posterior, places)
    kinds = ("mean", "std", "p16", "p50", "p84")
    stored = positive_store.moments(places, kinds, integrated=True)
    for name, share, worst in (
        ("mean", 0.01, 0.12),
        ("std", 0.04, 0.4),
        ("p16", 0.01, 0.15),
        ("p50", 0.01, 0.12),
        ("p84", 0.01, 0.12),
    ):
        ratio = stored[name] / exact[f"extinction_{name}"]
        assert np.median(np.abs(ratio - 1)) < share, name
        assert np.percentile(np.abs(ratio - 1), 99) < worst, name


def test_the_store_says_what_it_loses_at_held_out_stars(positive_store, positive_run):
    judged = positive_store.meta["held_out"]
    exact = positive_run.summary["held_out"]
    for name in ("rmse", "coverage_68", "coverage_95"):
        assert judged[name]["exact"] == exact[name]
    # Of 40 stars on cells of 70 pc; on the demo 0.0%.
    assert judged["rmse"]["store"] < 1.06 * exact["rmse"]


def test_the_closed_form_extinction_lies_within_the_error(whole):
    directions = pixel_directions(whole.nside)
    ends = whole.distances[:, None, None] * directions
    true = one_cloud.extinction(ends.reshape(-1, 3)).reshape(ends.shape[:2])
    found = whole.arrays["mean"]
    error = np.sqrt(np.nanmean((found - true) ** 2))
    assert error < 0.03 * np.nanmax(found)
    # The prior of this fit is far wider than the dust: errors are on the safe side.
    score = (found - true) / whole.arrays["std"]
    assert np.sqrt(np.nanmean(score**2)) < 0.5
    # Another distance is far off.
    late = np.sqrt(np.nanmean((found[:-1] - true[1:]) ** 2))
    assert late > 3 * error


def test_values_are_nan_where_the_ray_has_left_the_box(
    whole, positive_maps, cloud_store
):
    for maps in (whole, positive_maps):
        ends = maps.distances[:, None, None] * pixel_directions(maps.nside)
        inside = cloud_store.box.contains(ends)
        for array in maps.arrays.values():
            assert (np.isfinite(array) == inside).mean() > 0.999


def test_quantiles_are_ordered_and_rise(positive_maps):
    low, middle, high = (positive_maps.arrays[k].astype(float) for k in NAMES[1:4])
    seen = np.isfinite(low)
    assert (low[seen] < middle[seen]).all() and (middle[seen] < high[seen]).all()
    both = seen[1:] & seen[:-1]
    for values in (low, middle, high):
        assert (np.diff(values, axis=0)[both] >= -1e-6).all()


@pytest.mark.parametrize("name", ["_STEPS", "_DENSITIES"])
def test_how_the_work_is_cut_up_does_not_matter(monkeypatch, positive_run, name):
    expected = extinction_curves(positive_run, (), lambda _: False)
    monkeypatch.setattr(curves_of_a_store, name, 20_000)
    again = extinction_curves(positive_run, (), lambda _: False)
    for kind, values in expected.arrays.items():
        np.testing.assert_allclose(again.arrays[kind], values, rtol=1e-5)


def test_the_error_is_that_of_the_integral_as_the_posterior_has_it(
    cloud_store, cloud_run
):
    directions = one_cloud.directions(200)
    mean, std = cumulative(cloud_run, directions, np.array([205.0]))
    places = Places.along(directions, np.full((200, 1), 205.0))
    stored = cloud_store.moments(places, ("mean", "std"), integrated=True)
    np.testing.assert_allclose(stored["mean"], mean[0], atol=0.02 * mean.max())
    # Sixteen draws of the unresolved part know its variance to a third.
    assert np.median(stored["std"] / std[0]) == pytest.approx(1.0, abs=0.1)


def test_the_last_star_ends_the_last_stretch_with_support(cloud_run):
    support = torch.zeros(tuple(cloud_run.plan.grid.shape))
    x, y, z = (cloud_run.plan.grid.axis(d).numpy() for d in range(3))
    centre = (int(np.argmin(abs(y))), int(np.argmin(abs(z))))
    support[(x >= 0) & (x <= 140.0), *centre] = 1.0
    support[(x >= 350.0) & (x <= 420.0), *centre] = 0.5
    towards = unit_vectors(np.array([0.0, 180.0, 90.0]), np.zeros(3))

    def last_star(supports: torch.Tensor) -> np.ndarray:
        run = replace(cloud_run, supports=(supports,))
        return last_seen(run.support_at, run.plan.nested_grids, towards)

    # Cells are 70 pc: the one at 420 ends at 455, that at the observer at 35.
    np.testing.assert_array_equal(last_star(support), [455.0, 35.0, 35.0])
    np.testing.assert_array_equal(last_star(torch.zeros_like(support)), 0.0)


def grids(count: int, spacing: float) -> NestedGrids:
    grid = Grid(shape=(count, 5, 5), spacing=(spacing,) * 3, origin=(0.0, -2.0, -2.0))
    return NestedGrids(grids=(grid,))


def test_distances_of_a_fine_grid_are_thinned_out():
    edges = curve_distances(grids(601, 1.0))
    assert len(edges) < 180 and np.diff(edges).max() == 4.0
    np.testing.assert_array_equal(edges[:16], 0.5 * np.arange(1, 17))


def test_pixels_are_small_beside_the_cells_at_their_distance():
    # Pixels of nside 8 are 0.128 rad wide.
    far = np.array([10.0, 100.0, 1000.0])
    assert nsides_at(grids(100, 10.0), far, 1.0, finest=128) == [8, 16, 128]
    assert nsides_at(grids(100, 10.0), far, 2.0, finest=32) == [8, 32, 32]


def test_curves_of_svi_are_integrals_of_its_values_on_the_grid(svi_run):
    store = open_run(svi_run.path)
    maps, directions = store.sky_maps([150.0]), one_cloud.directions(30)
    assert list(maps.arrays) == ["mean", "std"]
    assert np.isfinite(maps.arrays["mean"]).all() and (maps.arrays["std"] > 0).all()
    exact, error = cumulative(svi_run, directions, np.array([200.0]))
    places = Places.along(directions, np.full((30, 1), 200.0))
    stored = store.moments(places, ("mean", "std"), integrated=True)
    steps = np.linspace(0.25, 199.75, 400)
    cells = store.moments(
        Places.along(directions, np.tile(steps, (30, 1))), ("mean",), integrated=False
    )
    sums = cells["mean"].reshape(30, 400).sum(axis=1) * 0.5
    np.testing.assert_allclose(stored["mean"], sums, rtol=0.05)
    assert (np.abs(stored["mean"] - exact[0]) < 0.5 * error[0]).all()


def test_impossible_requests_are_refused(cloud_store):
    for edges in ([100.0, 1e6], [-1.0], [200.0, 100.0], [], [np.nan]):
        with pytest.raises(InputError):
            cloud_store.sky_maps(edges, 1)
    for nside in (12, 256):
        with pytest.raises(InputError):
            cloud_store.sky_maps(nside=nside)
