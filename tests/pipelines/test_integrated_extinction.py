"""Integrated extinction by pixel and distance: right between them, and whose error."""

from dataclasses import replace

import healpy
import numpy as np
import one_cloud
import pytest
import torch

from dustmap.grid import Grid, Torus
from dustmap.tori import Tori
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box, unit_vectors
from pipelines.cubes.sky import SkyMaps
from pipelines.maps import integrals as outwards
from pipelines.maps.integrals import ray_integrals
from pipelines.maps.sky import (
    grid_nside,
    integrated,
    last_star,
    pixel_directions,
    ray_distances,
)
from pipelines.model.engine import rays
from pipelines.run.predict import predict_columns

SPACING = 70.0
LOWER, UPPER = np.array(one_cloud.BOX).T
QUANTILES = ["p2_5", "p16", "p50", "p84", "p97_5"]


@pytest.fixture(scope="module")
def whole(cloud_run) -> SkyMaps:
    return integrated(cloud_run, nside=16)


def between(maps: SkyMaps, name: str, places: np.ndarray) -> np.ndarray:
    """Bilinear on the sphere, linear in distance from zero at the observer."""
    distance = np.linalg.norm(places, axis=1)
    lon, lat = healpy.vec2ang(places, lonlat=True)
    pixels, weights = healpy.get_interp_weights(
        maps.nside, lon, lat, nest=True, lonlat=True
    )
    edges = np.concatenate([[0.0], maps.distances])
    upper = np.clip(np.searchsorted(edges, distance), 1, len(edges) - 1)
    share = (distance - edges[upper - 1]) / (edges[upper] - edges[upper - 1])
    padded = np.pad(maps.arrays[name], ((1, 0), (0, 0)))
    rays = (1 - share) * padded[upper - 1, pixels] + share * padded[upper, pixels]
    return (weights * rays).sum(axis=0)


def places_inside(count: int) -> np.ndarray:
    """Positions [pc] in the box, a step or more from its faces and the observer."""
    rng = np.random.default_rng(8)
    places = rng.uniform(LOWER + 80, UPPER - 80, size=(count, 3))
    return places[np.linalg.norm(places, axis=1) > SPACING]


def test_arrays_have_a_row_by_pixel_and_a_column_by_half_a_step(whole, positive_maps):
    assert list(whole.arrays) == ["mean", "std"]
    assert list(positive_maps.arrays) == ["mean", "std", *QUANTILES]
    np.testing.assert_allclose(np.diff(whole.distances, prepend=0.0), SPACING / 2)
    farthest = np.hypot.reduce(np.maximum(-LOWER, UPPER))
    assert whole.distances[-1] <= farthest < whole.distances[-1] + SPACING / 2
    assert (whole.nside, positive_maps.nside) == (16, 32)
    assert all(a.dtype == np.float32 for a in positive_maps.arrays.values())


def test_what_lies_between_pixels_and_distances_is_what_predictions_say(
    positive_maps, positive_run
):
    places = places_inside(3000)
    found = predict_columns(
        positive_run.plan,
        positive_run.posterior,
        one_cloud.at(places, np.zeros(len(places)), 0.1),
    )
    for name, share, worst in (
        ("mean", 0.01, 0.12),
        ("std", 0.04, 0.4),
        ("p16", 0.01, 0.15),
        ("p50", 0.01, 0.12),
        ("p84", 0.01, 0.12),
    ):
        ratio = between(positive_maps, name, places) / found[f"extinction_{name}"]
        assert np.median(np.abs(ratio - 1)) < share, name
        assert np.percentile(np.abs(ratio - 1), 99) < worst, name


def test_the_closed_form_extinction_lies_within_the_error(whole):
    directions = np.stack(healpy.pix2vec(16, np.arange(12 * 16**2), nest=True), axis=1)
    ends = whole.distances[:, None, None] * directions
    true = one_cloud.extinction(ends.reshape(-1, 3)).reshape(ends.shape[:2])
    found = whole.arrays["mean"]
    error = np.sqrt(np.nanmean((found - true) ** 2))
    assert error < 0.03 * np.nanmax(found)
    # The prior of this fit is far wider than the dust: errors are on the safe side.
    score = (found - true) / whole.arrays["std"]
    assert np.sqrt(np.nanmean(score**2)) < 0.5
    # Another distance or order of the pixels is far off.
    late = np.sqrt(np.nanmean((found[:-1] - true[1:]) ** 2))
    ring = true[:, healpy.nest2ring(16, np.arange(12 * 16**2))]
    assert late > 3 * error
    assert np.sqrt(np.nanmean((found - ring) ** 2)) > 10 * error


def test_values_are_nan_exactly_where_the_ray_has_left_the_box(whole, positive_maps):
    for maps in (whole, positive_maps):
        directions = pixel_directions(maps.nside)
        ends = maps.distances[:, None, None] * directions
        inside = Box(lower=tuple(LOWER), upper=tuple(UPPER)).contains(ends)
        for array in maps.arrays.values():
            np.testing.assert_array_equal(np.isfinite(array), inside)


def test_quantiles_are_those_of_the_logarithm_of_the_integral(positive_maps):
    low, middle, high = (positive_maps.arrays[k].astype(float) for k in QUANTILES[1:4])
    seen = np.isfinite(low)
    # But where one of them fell along the ray.
    pooled = np.zeros_like(seen)
    for values in (low, middle, high):
        equal = values[1:] == values[:-1]
        pooled[1:] |= equal
        pooled[:-1] |= equal
    assert pooled[seen].mean() < 3e-3
    own = seen & ~pooled
    # Between the nodes of a ray quantiles are means of those at two of them.
    error = np.abs((low * high)[own] / middle[own] ** 2 - 1)
    assert (error < 1e-5).mean() > 0.9 and error.max() < 0.1
    assert (low[seen] < middle[seen]).all() and (middle[seen] < high[seen]).all()
    assert (np.diff(middle, axis=0)[seen[1:]] > 0).all()


@pytest.mark.parametrize("name", ["_SEGMENTS", "_DENSITIES"])
def test_how_the_work_is_cut_up_does_not_matter(monkeypatch, positive_run, name):
    directions, edges = pixel_directions(2), np.array([100.0, 200.0])
    ((_, expected, _),) = ray_integrals(positive_run, directions, edges)
    monkeypatch.setattr(outwards, name, 400)
    parts, found, _ = zip(*ray_integrals(positive_run, directions, edges), strict=True)
    assert np.concatenate([np.arange(48)[part] for part in parts]).tolist() == [
        *range(48)
    ]
    assert (len(parts) > 1) == (name == "_SEGMENTS")
    for field in ("mean", "std"):
        joined = np.concatenate([getattr(each, field) for each in found], axis=1)
        np.testing.assert_array_equal(joined, getattr(expected, field))


def test_moments_along_a_ray_are_those_the_posterior_gives(positive_run):
    # One segment of one ray is a line integral like any other.
    directions = one_cloud.directions(40)
    ((_, moments, _),) = ray_integrals(positive_run, directions, np.array([150.0]))
    plan = replace(positive_run.plan, ray_step=positive_run.plan.ray_step / 2)
    lines = rays(plan, torch.as_tensor(150.0 * directions))
    expected = positive_run.posterior.moments(lines)
    for name, worst in (("mean", 0.02), ("std", 0.2)):
        ratio = getattr(moments, name)[0] / getattr(expected, name).numpy()
        assert np.abs(ratio - 1).max() < worst, name


def test_the_last_star_ends_the_last_stretch_with_support(cloud_run):
    support = torch.zeros(tuple(cloud_run.plan.grid.shape))
    x, y, z = (cloud_run.plan.grid.axis(d).numpy() for d in range(3))
    centre = (int(np.argmin(abs(y))), int(np.argmin(abs(z))))
    support[(x >= 0) & (x <= 140.0), *centre] = 1.0
    support[(x >= 350.0) & (x <= 420.0), *centre] = 0.5
    run = replace(cloud_run, supports=(support,))
    towards = unit_vectors(np.array([0.0, 180.0, 90.0]), np.zeros(3))
    # Cells are 70 pc: the one at 420 ends at 455, that at the observer at 35.
    np.testing.assert_array_equal(last_star(run, towards), [455.0, 35.0, 35.0])
    nowhere = replace(cloud_run, supports=(torch.zeros_like(support),))
    np.testing.assert_array_equal(last_star(nowhere, towards), 0.0)


def on_grid(run, grid):
    tori = Tori(tori=(Torus(grid=grid, shape=grid.shape),))
    return replace(run, plan=replace(run.plan, tori=tori))


def test_distances_of_a_fine_grid_are_thinned_out(cloud_run):
    grid = Grid(shape=(601, 5, 5), spacing=(1.0,) * 3, origin=(0.0, -2.0, -2.0))
    edges = ray_distances(on_grid(cloud_run, grid))
    np.testing.assert_array_equal(edges, 4.0 * np.arange(1, 151))


def test_pixels_are_a_grid_step_at_the_furthest_face(cloud_run):
    # 700 pc at most, in steps of 70 pc: 0.1 rad; pixels of nside 16 are 0.064 rad.
    assert grid_nside(cloud_run) == 16
    for spacing, expected in ((0.02, 64), (0.011, 128), (0.001, 128)):
        grid = Grid(shape=(3, 3, 3), spacing=(spacing,) * 3, origin=(-1.0,) * 3)
        assert grid_nside(on_grid(cloud_run, grid)) == expected


def test_svi_pays_for_few_distances_and_pixels(svi_run):
    maps = integrated(svi_run, nside=1, distances=ray_distances(svi_run)[:2])
    assert len(ray_distances(svi_run)) < 12
    assert np.isfinite(maps.arrays["mean"]).all()
    assert (maps.arrays["std"] > 0).all()
    assert list(maps.arrays) == ["mean", "std"]


def test_impossible_requests_are_refused(cloud_run):
    for edges in ([100.0, 1e6], [-1.0], [200.0, 100.0], [], [np.nan]):
        with pytest.raises(InputError, match="distances"):
            integrated(cloud_run, distances=np.array(edges), nside=1)
    with pytest.raises(InputError, match="power of 2"):
        integrated(cloud_run, nside=12)
