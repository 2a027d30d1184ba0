"""A run and the store of its map give the same answers; draws come from the run."""

from dataclasses import replace

import numpy as np
import pytest
import ray_field
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.formats.zarr import read_zarr, write_zarr
from pipelines.maps.density import map_cube
from pipelines.query import open_map
from pipelines.run.predict import predict_columns


@pytest.fixture(scope="module")
def store(positive_run, positive_maps, tmp_path_factory):
    path = tmp_path_factory.mktemp("positive") / "map.zarr"
    write_zarr(path, map_cube(positive_run), positive_maps)
    return path


def test_a_run_answers_as_predict_does(positive_run, places, coords):
    dust = open_map(positive_run.path)
    columns = predict_columns(positive_run.plan, positive_run.posterior, places)
    for what, answer in (
        ("extinction", dust.extinction(coords)),
        ("density", dust.density(coords)),
    ):
        parts = {"mean": answer.mean, "std": answer.std, **answer.quantiles}
        for kind in ("mean", "std", "p16", "p50", "p84"):
            found, wanted = parts[kind].value, columns[f"{what}_{kind}"]
            if what == "density":
                np.testing.assert_allclose(found, wanted)
            # Extinctions are ordered along a ray, and interpolated between its nodes.
            assert np.median(np.abs(found / wanted - 1)) < 0.02


def test_a_store_answers_as_its_run_does(positive_run, store, places, coords):
    columns = predict_columns(positive_run.plan, positive_run.posterior, places)
    answer = open_map(store).extinction(coords)
    assert answer.flags["inside"].all()
    parts = {"mean": answer.mean, "std": answer.std, **answer.quantiles}
    for kind in ("mean", "p50", "std"):
        ratio = parts[kind].value / columns[f"extinction_{kind}"]
        assert abs(np.median(ratio) - 1) < 0.01, kind
        # The cloud is 70 pc wide and the grid's steps are as long as that.
        assert np.quantile(np.abs(ratio - 1), 0.9) < 0.15, kind


def test_flags_of_a_run_are_those_of_its_store(positive_run, store, coords):
    run, kept = open_map(positive_run.path), open_map(store)
    ours, theirs = (
        dust.query(coords, integrated=True, return_flags=True)[1]
        for dust in (run, kept)
    )
    for name in ("inside", "unseen", "no_distance", "to_edge"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert (ours["extrapolated"] == theirs["extrapolated"]).mean() > 0.97


def test_draws_stand_on_a_last_axis_and_scatter_as_the_std_says(
    positive_run, store, coords
):
    dust = open_map(store, samples=positive_run.path)
    count = len(positive_run.posterior.samples)
    shaped = coords.reshape(30, 10)
    draws = dust.query(shaped, integrated=True, mode="samples")
    assert draws.shape == (30, 10, count) and draws.unit == u.mag
    std = open_map(positive_run.path).query(shaped, integrated=True, mode="std")
    ratio = draws.std(axis=-1, ddof=1) / std
    assert abs(np.median(ratio) - 1) < 0.1
    again = dust.query(shaped, integrated=True, mode="samples")
    np.testing.assert_array_equal(again, draws)
    outside = dust.query(ray_field.at([0, 1], 0, 9000), integrated=True, mode="samples")
    assert outside.shape == (2, count) and np.isnan(outside).all()
    run = open_map(positive_run.path)
    with pytest.raises(InputError, match=r"integrated=True.*integrated=False"):
        run.query(shaped)


def test_samples_along_one_direction_are_curves(positive_run):
    """Another order, another frame, another query: the same curves, which rise."""
    dust = open_map(positive_run.path)
    distances = np.arange(5.0, 480.0, 5.0)
    places = ray_field.at(18.4, -9.0, distances)
    draws = dust.query(places, integrated=True, mode="samples").value
    falls = np.diff(draws, axis=0) < 0
    assert falls.mean() < 0.01
    order = np.random.default_rng(1).permutation(len(places))[:20]
    for again in (places[order], places[order].icrs):
        some = dust.query(again, integrated=True, mode="samples").value
        np.testing.assert_allclose(some, draws[order], rtol=1e-6)
    # A direction that is not snapped to its neighbours has curves of its own.
    near = ray_field.at(18.4, -9.0 + 0.1, distances)
    other = dust.query(near, integrated=True, mode="samples").value
    assert not np.allclose(other, draws, rtol=1e-3)


def test_one_random_sample_is_one_of_the_samples(positive_run, store, coords):
    dust = open_map(store, samples=positive_run.path)
    draws = dust.query(coords, integrated=False, mode="samples")
    one = dust.query(
        coords, integrated=False, mode="random_sample", rng=np.random.default_rng(5)
    )
    assert one.shape == coords.shape
    same = (draws == one[:, None]).all(axis=0)
    assert same.sum() == 1
    with pytest.raises(InputError, match="default_rng"):
        dust.query(coords, integrated=False, mode="random_sample")


def test_intervals_of_the_inverse_hold_two_thirds_of_the_draws(positive_run, store):
    """Draws of the extinction along rays, and where each of them gets to a value."""
    rng = np.random.default_rng(8)
    lon, lat = rng.uniform(-30, 60, 120), rng.uniform(-20, 10, 120)
    rays = SkyCoord(l=lon * u.deg, b=lat * u.deg, frame="galactic")
    dust = open_map(store, samples=positive_run.path)
    half = dust.query(rays, integrated=True, mode="median", total=True).value / 2
    crossing, flags = dust.distance_at(rays, half, return_flags=True)
    # The share of draws that are past the value at either end of the interval.
    past = []
    for end in (crossing.lower, crossing.upper):
        kept = flags["bounded"]
        there = SkyCoord(rays.l, rays.b, distance=end, frame="galactic")[kept]
        draws = dust.query(there, integrated=True, mode="samples").value
        past.append((draws >= half[kept, None]).mean())
    assert kept.sum() > 80
    assert 0.58 < past[1] - past[0] < 0.78


def test_samples_of_another_map_or_band_are_refused(positive_run, positive_maps, store):
    with pytest.raises(InputError, match="another map"):
        open_map(cut_short(store), samples=positive_run.path)
    cube = map_cube(positive_run)
    other = replace(cube, meta={**cube.meta, "extinction_band": "E(B-V)"})
    path = store.parent / "other_band.zarr"
    write_zarr(path, other, positive_maps)
    assert open_map(path).band == "E(B-V)"
    with pytest.raises(InputError, match=r"is in E\(B-V\)"):
        open_map(path, samples=positive_run.path)


def cut_short(store):
    """The same map without its last plane in x."""
    cube, path = read_zarr(store), store.parent / "short.zarr"
    arrays = {name: array[..., :-1] for name, array in cube.arrays.items()}
    write_zarr(path, replace(cube, x=cube.x[:-1], arrays=arrays))
    return path
