"""A fit with a residual: learnt, kept in the run, and in every answer on extinction."""

from __future__ import annotations

import itertools
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from astropy import units as u
from astropy.coordinates import SkyCoord
from safetensors.torch import load, save

from dustmap.functionals import PointValues
from dustmap.kernels import KERNELS
from dustmap.moments import moments_over_samples
from dustmap.tori import Tori
from pipelines.api import predict
from pipelines.base.errors import InputError
from pipelines.base.pixels import pixel_directions
from pipelines.catalog.schema import Stars, read_stars, read_table, write_stars
from pipelines.config import FitConfig, load_config
from pipelines.cubes.cube import truth_extinction
from pipelines.export.exporters import export
from pipelines.fit import fit
from pipelines.maps.answers import ESTIMATES
from pipelines.maps.opening import open_run
from pipelines.maps.places import Places
from pipelines.maps.rays import PixelRays
from pipelines.query import open_map
from pipelines.query.map import DustMap
from pipelines.run.distances import distance_columns
from pipelines.run.folder import Run, read_run
from pipelines.run.held_out import HELD_OUT_FILE as HELD_OUT
from pipelines.run.held_out import read_held_out
from pipelines.run.predict import predict_columns
from pipelines.run.residual import (
    RESIDUAL_FILE,
    VERSION,
    learn_remainder,
    read_residual,
    residual_about,
    residual_bytes,
    residual_from,
    residual_in_words,
)
from pipelines.store.curves import extinction_curves
from pipelines.store.density import density_levels
from pipelines.store.matching import matched
from pipelines.store.writing import write_store

COARSE = ["box.spacing=50", "box.x=[-400,400]", "box.y=[-400,400]", "box.z=[-400,400]"]


def sky(count: int, seed: int) -> tuple[Stars, np.ndarray]:
    """Stars in a narrow field, behind a screen with structure below the grid."""
    rng = np.random.default_rng(seed)
    l, b = rng.uniform(0, 20, count), rng.uniform(0, 20, count)  # noqa: E741
    distance = rng.uniform(250, 390, count)
    true = 1 + 0.6 * np.sin(l) * np.cos(b) + 1e-3 * distance
    stars = Stars(
        l=l,
        b=b,
        distance=distance,
        extinction=true + 0.03 * rng.standard_normal(count),
        extinction_error=np.full(count, 0.03),
    )
    return stars, true


SETTINGS = [
    *COARSE,
    "model.residual=true",
    "data.validation=0.2",
    "data.holdout=0.1",
    "prior.lengthscale=60",
    "prior.std=1.5",
    "inference.learn=false",
    "inference.samples=4",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("residual")
    write_stars(folder / "stars.parquet", sky(1500, 1)[0], overwrite=False)
    config = load_config(FitConfig, overrides=SETTINGS)
    fit(folder / "stars.parquet", folder / "run", config)
    return read_run(folder / "run")


def without_stack(run: Run) -> Run:
    """The run whose predictions of stars are the map's alone."""
    field = run.posterior.residual
    assert field is not None
    alone = replace(run.posterior, residual=replace(field, stack=None))
    return replace(run, posterior=alone)


@pytest.mark.slow
def test_of_many_stars_first_maps_see_a_part_and_the_last_one_all(
    run: Run, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr("pipelines.fit.stars.LEARNERS", 600)
    write_stars(tmp_path / "stars.parquet", sky(1500, 1)[0], overwrite=False)
    config = load_config(FitConfig, overrides=SETTINGS)
    fit(tmp_path / "stars.parquet", tmp_path / "run", config)
    assert "600 of the stars" in capsys.readouterr().err
    found = read_run(tmp_path / "run")
    assert found.posterior.residual is not None
    assert len(found.posterior.residual.rays) == found.summary["counts"]["fitted"] + 300
    errors = [one.summary["held_out"]["rmse"] for one in (found, run)]
    assert errors[0] < 1.15 * errors[1]


@pytest.mark.slow
@pytest.mark.usefixtures("doubled_lengthscale")
def test_later_maps_have_the_scales_that_the_first_one_calls_for(
    run: Run, tmp_path, capsys
) -> None:
    write_stars(tmp_path / "stars.parquet", sky(1500, 1)[0], overwrite=False)
    config = load_config(FitConfig, overrides=SETTINGS)
    fit(tmp_path / "stars.parquet", tmp_path / "run", config)
    assert "another prior" in capsys.readouterr().err
    found = read_run(tmp_path / "run")
    assert found.plan.lengthscale == pytest.approx((120.0,) * 3)
    field = found.posterior.residual
    assert field is not None and field.subgrid is not None
    assert field.subgrid.lengthscale == pytest.approx(120.0)
    assert field.subgrid.bend == found.plan.bend == pytest.approx((0.2, -0.3))
    errors = [one.summary["held_out"]["rmse"] for one in (found, run)]
    assert errors[0] < 1.15 * errors[1]


def test_neighbours_predict_what_the_grid_cannot(run: Run) -> None:
    stars, true = sky(1500, 2)
    assert run.posterior.residual is not None
    found = predict_columns(run.plan, run.posterior, stars)
    field = run.posterior.residual
    bare = replace(run.posterior, residual=None)
    without = predict_columns(run.plan, bare, stars)
    error = found["extinction_mean"] - true
    before = without["extinction_mean"] - true
    assert np.sqrt(np.mean(error**2)) < 0.4 * np.sqrt(np.mean(before**2))
    held = (true > found["extinction_p16"]) & (true < found["extinction_p84"])
    # Four samples state their spread with an error of a third.
    assert 0.5 < held.mean() < 0.95
    assert (found["extinction_p16"] > 0).all()
    assert not np.allclose(found["density_mean"], without["density_mean"], rtol=0.05)
    assert len(field.rays) == run.summary["counts"]["fitted"] + 300


def stored(run: Run, folder: Path) -> DustMap:
    """The map of a run, written anew."""
    write_store(run, read_held_out(run.path), folder / "map.zarr")
    return open_map(folder / "map.zarr")


def test_a_store_agrees_with_predictions(run: Run) -> None:
    stars, _ = sky(400, 3)
    expected = predict_columns(run.plan, run.posterior, stars)
    kinds = ("mean", "std", "p16")
    found = open_run(run.path).moments(placed(stars), kinds, integrated=True)
    for kind in kinds:
        ratio = found[kind] / expected[f"extinction_{kind}"]
        # Between nodes the curves are interpolated, and they never fall.
        assert np.nanmedian(np.abs(ratio - 1)) < 0.08, kind


def placed(stars: Stars) -> Places:
    shape = stars.l.shape
    return Places(l=stars.l, b=stars.b, distance=stars.distance, shape=shape)


@pytest.fixture(params=[0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def random_map(run: Run, request) -> Run:
    """The map with residuals that have nothing to do with the dust."""
    field, generator = run.posterior.residual, torch.Generator()
    assert field is not None
    generator.manual_seed(request.param)
    shared = torch.randn(field.residuals.shape[1], generator=generator)
    own = torch.randn(field.residuals.shape, generator=generator)
    residuals = field.residuals + (0.1 * shared + 0.03 * own).double()
    posterior = replace(run.posterior, residual=replace(field, residuals=residuals))
    return replace(run, posterior=posterior)


def rays(count: int, seed: int) -> SkyCoord:
    """Directions ``(count, 36)`` in the field, at distances in a random order."""
    rng = np.random.default_rng(seed)
    l, b = rng.uniform(1, 19, (2, count, 1))  # noqa: E741
    distance = rng.permutation(np.arange(20.0, 375.0, 10.0))
    l, b, distance = np.broadcast_arrays(l, b, distance)  # noqa: E741
    return SkyCoord(
        l=l * u.deg, b=b * u.deg, distance=distance * u.pc, frame="galactic"
    )


def falls(coords: SkyCoord, values: np.ndarray) -> float:
    """The largest fall along the rays."""
    return float(-np.diff(values[:, np.argsort(coords.distance[0])], axis=1).min())


def test_no_quantile_falls_along_the_rays_of_random_maps(
    random_map: Run, tmp_path, capsys
) -> None:
    coords, dust = rays(30, 4), stored(random_map, tmp_path)
    assert "isotonic regression" in capsys.readouterr().err
    attributes = json.loads((tmp_path / "map.zarr/zarr.json").read_text())["attributes"]
    told = json.loads(attributes["integrated"])["isotonic_regression"]
    assert told["changed"] > 0
    # There is something to project.
    assert told["median_change_mag"] < 0.05 < 20 * told["largest_change_mag"]
    answer = dust.extinction(coords)
    parts = {"mean": answer.mean, "std": answer.std, **answer.quantiles}
    kept = np.stack([parts[n].value for n in ("p2_5", "p16", "p50", "p84", "p97_5")])
    assert (np.diff(kept, axis=0) >= -1e-6).all()
    for name in {*parts} - {"std"}:
        assert falls(coords, parts[name].value) < 1e-6, name
    for pct in (0.5, 30.0, 99.0):
        asked = {"integrated": True, "mode": "percentile", "pct": pct}
        assert falls(coords, dust.query(coords, **asked).value) < 1e-6, pct
    draws = dust.query(coords, integrated=True, mode="samples").value
    assert falls(coords, draws) < 1e-6


def test_answers_are_of_one_distribution_whatever_else_is_asked(
    run: Run, tmp_path
) -> None:
    """Bounds by Cantelli's inequality, samples, and the same bits in any order."""
    coords = rays(12, 4)
    # Above and at the nearest node, at the Sun, and at the edge of the box.
    distance = np.where(np.arange(36) < 3, [5.0, 25.0, 1e-3, *33 * [0]], 0.0)
    distance = np.where(distance > 0, distance, coords.distance.pc)
    distance[:, 3] = np.inf
    coords = SkyCoord(
        l=coords.l, b=coords.b, distance=distance * u.pc, frame="galactic"
    )
    export(run.path, {"healpix": [tmp_path / "sky.fits"]})
    levels = np.array([1e-4, 0.01, 0.025, 0.16, 0.5, 0.84, 0.975, 0.99, 0.9999])
    odds = np.sqrt(levels / (1 - levels))
    of_run = open_map(run.path)
    maps = of_run, open_map(tmp_path / "sky.fits")
    for dust, outward in itertools.product(maps, (True, False)):
        if not outward and dust is maps[1]:
            continue
        asked: dict[str, Any] = {"integrated": outward}
        where = coords if outward else coords[:, 4:]
        mean, std = (dust.query(where, mode=m, **asked).value for m in ("mean", "std"))
        found = dust.query(where, mode="percentile", pct=100 * levels, **asked).value
        known = np.isfinite(mean)
        assert known.mean() > 0.5
        shown, mean, std = found[known], mean[known, None], std[known, None]
        assert (np.diff(shown, axis=1) >= 0).all()
        # Quantiles are interpolated between directions and places.
        slack = 1.1
        assert (shown <= mean + slack * std * odds).all()
        assert (shown >= mean - slack * std / odds).all()
        if dust is not of_run:
            continue
        drawn = dust.query(where, mode="samples", **asked).value[known]
        error = (drawn.mean(axis=1) - mean[:, 0]) / std[:, 0] * 2
        assert (drawn > 0).all() and (np.abs(error) < 3).mean() > 0.99
        assert abs(drawn.mean() / mean.mean() - 1) < 0.2
    order = np.random.default_rng(1).permutation(coords.size)
    for mode in ("samples", "std", "median"):
        whole = of_run.query(coords, integrated=True, mode=mode).value
        for n in range(4):
            alone = of_run.query(coords[n, n], integrated=True, mode=mode).value
            np.testing.assert_array_equal(alone, whole[n, n])
        mixed = of_run.query(coords.ravel()[order], integrated=True, mode=mode).value
        flat = whole.reshape(coords.size, *whole.shape[2:])
        np.testing.assert_array_equal(mixed, flat[order])


@pytest.mark.slow
def test_intervals_of_whole_rays_hold_as_many_as_those_of_single_places(
    run: Run,
) -> None:
    stars, true = sky(3000, 2)
    alone = predict_columns(run.plan, run.posterior, stars)
    angles = stars.l * u.deg, stars.b * u.deg
    coords = SkyCoord(*angles, stars.distance * u.pc, frame="galactic")
    whole = open_map(run.path).extinction(coords)
    changes = np.abs(whole.mean.value - alone["extinction_mean"])
    assert changes.max() > 0 and np.median(changes) < 0.02
    errors = [
        np.abs(each - true).mean()
        for each in (whole.mean.value, alone["extinction_mean"])
    ]
    assert errors[0] < 1.1 * errors[1]
    for low, high in (("p16", "p84"), ("p2_5", "p97_5")):
        ends = [whole.quantiles[name].value for name in (low, high)]
        other = [alone[f"extinction_{name}"] for name in (low, high)]
        held = [np.mean((true > x) & (true < y)) for x, y in (ends, other)]
        assert abs(held[0] - held[1]) < 0.03


def test_a_residual_is_read_as_it_was_written(run: Run) -> None:
    field = run.posterior.residual
    assert field is not None
    assert field.law is not None
    law = replace(
        field.law,
        surveys=("first", "zweite Übersicht"),
        coefficients=np.arange(7.0),
        slopes=np.arange(20.0).reshape(2, 10),
        skewness=0.3,
        outliers=0.02,
        width=0.7,
        excess=-0.2,
    )
    again = residual_from(residual_bytes(replace(field, law=law)))
    assert again.subgrid == field.subgrid
    assert again.law is not None
    for each in fields(law):
        np.testing.assert_array_equal(
            getattr(again.law, each.name), getattr(law, each.name)
        )
    assert again.stack is not None
    assert field.stack is not None
    assert again.stack.gain == field.stack.gain
    one, other = (
        each.stack.kriging.predict(field.rays[:30]) for each in (again, field)
    )
    torch.testing.assert_close(one, other)
    ends = torch.as_tensor(sky(30, 4)[0].positions())
    asked = ends, torch.ones(len(field.residuals), 30, dtype=torch.float64)
    for found, expected in zip(again.correct(*asked), field.correct(*asked)):
        torch.testing.assert_close(found, expected, rtol=5e-3, atol=1e-4)
    torch.testing.assert_close(again.density_weights, field.density_weights)
    # Before version 4 densities had the weights of extinctions.
    tensors = load(residual_bytes(replace(field, law=None)))
    del tensors["density_weights"]
    old = save(tensors, {"version": "3", "kernel": field.subgrid.kernel})
    assert residual_from(old).density_weights is None


def test_a_residual_names_its_kernel_whatever_their_order(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run.posterior.residual is not None
    written = residual_bytes(run.posterior.residual)
    turned = dict(reversed(KERNELS.items()))
    monkeypatch.setattr("pipelines.run.residual.KERNELS", turned)
    assert residual_from(written).subgrid == run.posterior.residual.subgrid


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (None, "without a version"),
        ({"kernel": "matern12"}, "without a version"),
        ({"version": "0", "kernel": "matern12"}, "of version 0"),
        ({"version": "99", "kernel": "matern12"}, "of version 99"),
        ({"version": str(VERSION), "kernel": "turbulence"}, "'turbulence'"),
    ],
)
def test_a_residual_of_another_version_is_refused_by_name(
    run: Run, tmp_path: Path, facts: dict[str, str] | None, told: str
) -> None:
    tensors = load((run.path / RESIDUAL_FILE).read_bytes())
    if facts is None:
        # As it was written before there were versions: the kernel by its number.
        number = torch.zeros(1, dtype=torch.float64)
        tensors["remainder"] = torch.cat([number, tensors["remainder"]])
        tensors["surveys"] = torch.tensor(list(b"first"), dtype=torch.uint8)
    (tmp_path / RESIDUAL_FILE).write_bytes(save(tensors, facts))
    with pytest.raises(InputError, match=told) as raised:
        read_residual(tmp_path)
    assert str(tmp_path / RESIDUAL_FILE) in str(raised.value)


@pytest.fixture(scope="module")
def moderated(run: Run) -> Run:
    """The run with eight samples and the law of their variances."""
    known, posterior = run.posterior.residual, run.posterior
    assert known is not None
    more = replace(
        posterior, samples=torch.cat([posterior.samples, 0.8 * posterior.samples])
    )
    x, y, z = known.rays.directions.T.numpy()
    stars = Stars(
        l=np.degrees(np.arctan2(y, x)) % 360,
        b=np.degrees(np.arcsin(z)),
        distance=known.rays.lengths.numpy(),
        extinction=(known.rays.density * known.rays.lengths).numpy(),
        extinction_error=np.full(len(x), 0.03),
    )
    field = residual_about(known, more, run.plan, stars, 100, torch.Generator())
    return replace(run, posterior=replace(more, residual=field))


def test_densities_have_variances_of_the_law_and_extinctions_have_not(
    run: Run, moderated: Run
) -> None:
    assert run.posterior.residual is not None
    assert run.posterior.residual.variances is None  # From four samples none is learnt.
    posterior = moderated.posterior
    assert posterior.residual is not None and posterior.residual.variances is not None
    own = replace(posterior, residual=replace(posterior.residual, variances=None))
    stars, _ = sky(200, 6)
    one, other = (predict_columns(run.plan, each, stars) for each in (posterior, own))
    for kind in ("mean", "std", "p16"):
        name = f"extinction_{kind}"
        np.testing.assert_array_equal(one[name], other[name])
    points = PointValues(torch.as_tensor(stars.positions()))
    values, left = posterior.sampled(points)
    assert torch.equal(values, own.sampled(points)[0])
    field = posterior.residual
    law, around = field.variances, field.surroundings(points.places)
    most = field.resolved(points.places)
    assert torch.all((most > 0) & (most < run.plan.std**2))
    expected = moments_over_samples(
        values,
        left,
        positive=True,
        moderate=lambda found: law.moderated(found, around, most),
    )
    np.testing.assert_array_equal(one["density_std"], expected.std)
    assert np.abs(one["density_std"] / other["density_std"] - 1).max() > 1e-3
    for n in (0, 42):
        alone = predict_columns(run.plan, posterior, stars.select([n]))
        assert {k: v[0] for k, v in alone.items()} == {k: v[n] for k, v in one.items()}


def test_cubes_and_draws_have_the_same_variances(moderated: Run) -> None:
    ((level,), grid) = density_levels(moderated), moderated.plan.grid
    cube = level.cube
    posterior = moderated.posterior.over_cells(grid.spacing)
    expected = posterior.moments(PointValues(grid.points()))
    for name, values in (("mean", expected.mean), ("std", expected.std)):
        found = cube.arrays[name].T
        np.testing.assert_allclose(found, values.reshape(found.shape), rtol=1e-6)
    np.testing.assert_allclose(
        level.samples.mean(axis=0), cube.arrays["mean"], rtol=1e-4
    )
    assert posterior.residual is not None
    plain = replace(posterior, residual=replace(posterior.residual, variances=None))
    other = plain.moments(PointValues(grid.points()))
    assert not np.allclose(cube.arrays["std"].T.ravel(), other.std, rtol=1e-2)


def test_a_law_of_variances_is_written_and_read(moderated: Run) -> None:
    field = moderated.posterior.residual
    assert field is not None and field.variances is not None
    written = residual_bytes(field)
    again = residual_from(written).variances
    assert again is not None
    for each in fields(again):
        one, other = (getattr(law, each.name) for law in (again, field.variances))
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    # Before there were such laws.
    plain = residual_bytes(replace(field, law=None, variances=None))
    earlier = save(load(plain), {"version": "2", "kernel": "matern12"})
    assert residual_from(earlier).variances is None


def test_grid_and_residual_share_one_prior(run: Run) -> None:
    field, plan = run.posterior.residual, run.plan
    assert field is not None and field.subgrid is not None
    assert field.subgrid.cuts == (plan.cut * max(plan.grid.spacing),)
    assert field.subgrid.variance == pytest.approx(plan.std**2)
    model = run.posterior.model
    assert model.whitening.unresolved == pytest.approx(
        np.log1p(field.subgrid.variances)
    )


def test_cubes_and_columns_hold_the_corrected_density(run: Run):
    grid, (level,) = run.plan.grid, density_levels(run)
    in_cells = run.posterior.over_cells(grid.spacing)
    expected, unresolved = in_cells.sampled(PointValues(grid.points()))
    _, at_points = run.posterior.sampled(PointValues(grid.points()))
    # Here a cell holds about half of the variance at its centre.
    assert 0.2 < float(unresolved.mean() / at_points.mean()) < 0.8
    mean = expected.reshape(-1, *grid.shape).numpy().mean(axis=0)
    np.testing.assert_allclose(level.cube.arrays["mean"].T, mean, rtol=1e-4)
    weights = np.full(grid.shape[2], grid.spacing[2])
    weights[[0, -1]] /= 2
    # Columns along z have y first.
    column = level.columns["z"].arrays["mean"]
    np.testing.assert_allclose(column, (mean @ weights).T, rtol=1e-6)


def test_densities_integrate_to_extinctions_with_all_that_goes_with_them(run: Run):
    levels, curves = density_levels(run), extinction_curves(run, (), lambda _: False)
    (before,), (after,) = levels, matched(levels, curves)
    factor = after.cube.arrays["mean"] / before.cube.arrays["mean"]
    for name in ("std", "p16"):
        ratio = after.cube.arrays[name] / before.cube.arrays[name]
        np.testing.assert_allclose(ratio, factor, rtol=1e-5)
    np.testing.assert_allclose(after.samples, factor * before.samples, rtol=1e-5)
    towards = Places.of_points(pixel_directions(8))
    rays = PixelRays.of(curves, run.box)
    far = towards.at(np.full(len(towards), 250.0))
    far = far.select(run.box.contains(far.positions()))
    wanted = rays.at(("mean",), far)["mean"]
    sums = []
    for level in (before, after):
        through = truth_extinction(level.cube, far.l, far.b, far.distance, name="mean")
        known = np.isfinite(through) & np.isfinite(wanted)
        sums.append(through[known].sum() / wanted[known].sum())
    assert abs(sums[1] - 1) < 0.03 and abs(sums[1] - 1) < abs(sums[0] - 1) + 0.01


def test_the_std_of_a_column_is_that_of_correlated_structure_below_the_grid(run: Run):
    field, grid = run.posterior.residual, run.plan.grid
    assert field is not None
    z = torch.arange(grid.lower[2], grid.upper[2] + 1e-6, 2.0, dtype=torch.float64)
    apart = (z[:, None] - z).abs()
    assert field.subgrid is not None
    scaled = (apart / field.subgrid.cuts[0]).reshape(-1)
    correlation = field.subgrid.relative(0, scaled).reshape(apart.shape)
    correlation = correlation / correlation[0, 0]
    (level,) = density_levels(run)
    columned = level.columns["z"].arrays["std"]
    # Few samples: a single column may be a quarter off.
    ratios = []
    for i, j in itertools.product(range(1, 16, 3), repeat=2):
        points = torch.stack([grid.axis(0)[i], grid.axis(1)[j], z[0]]).repeat(len(z), 1)
        points[:, 2] = z
        values, unresolved = run.posterior.sampled(PointValues(points))
        between = torch.trapezoid(values, z).var()
        root = unresolved.mean(0).sqrt() * 2.0
        within = root @ correlation @ root
        ratios.append(columned[j, i] / float((between + within).sqrt()))
    assert np.median(ratios) == pytest.approx(1.0, rel=0.15)
    np.testing.assert_allclose(ratios, 1.0, rtol=0.3)


def test_a_run_without_it_has_none(tmp_path) -> None:
    assert read_residual(tmp_path) is None


@pytest.mark.usefixtures("no_baseline")
@pytest.mark.parametrize(
    ("more", "message"),
    [("inference.samples=0", "model.residual"), ("inference.samples=2", "times 1;")],
)
def test_a_fit_of_few_stars_takes_the_factor_of_the_prior(
    tmp_path, more: str, message: str
) -> None:
    """Without samples there is no residual, and the grid carries the whole prior."""
    write_stars(tmp_path / "stars.parquet", sky(100, 1)[0], overwrite=False)
    given = ["model.residual=true", "prior.lengthscale=60", "prior.std=1"]
    small = ["inference.learn=false", more]
    config = load_config(FitConfig, overrides=[*COARSE, *given, *small])
    report = fit(tmp_path / "stars.parquet", tmp_path / "run", config)
    assert any(message in told for told in report.messages)
    run = read_run(tmp_path / "run")
    assert (run.posterior.residual is None) == (run.plan.cut == 0)
    assert (run.plan.cut == 0) == (more == "inference.samples=0")


def test_the_covariance_that_was_chosen_is_told(run: Run) -> None:
    field = run.posterior.residual
    assert field is not None
    told = [m for m in run.summary["messages"] if m.startswith("residual:")]
    assert told == [residual_in_words(field)]


def test_the_covariance_is_learnt_on_held_out_stars_in_random_order(
    run: Run, monkeypatch
) -> None:
    asked = []

    def learn(rays, residuals, noise, held, **_):
        asked.append(held.tolist())
        return run.posterior.residual

    monkeypatch.setattr("pipelines.run.residual.learn_residual", learn)
    stars, generator = sky(250, 5)[0], torch.Generator().manual_seed(0)
    learn_remainder(run.posterior, run.plan, run.plan.grid, stars, 100, generator)
    (held,) = asked
    assert sorted(held) == list(range(150, 250)) and held != sorted(held)


def test_a_plan_may_exceed_the_box_of_the_map_it_learns_from(run: Run) -> None:
    torus = run.plan.tori[0]
    grid = replace(torus.grid, shape=(19, 19, 19), origin=(-450.0,) * 3)
    wider = replace(run.plan, tori=Tori(tori=(replace(torus, grid=grid),)))
    stars, generator = sky(250, 5)[0], torch.Generator().manual_seed(0)
    given = run.plan.grid, stars, 100, generator
    field = learn_remainder(run.posterior, wider, *given)
    assert field.cube is not None
    values = field.cube.values.view(19, 19, 19)
    assert float(values[0, 0, 0]) == pytest.approx(float(values[1, 1, 1]))
    same = learn_remainder(run.posterior, run.plan, *given).cube
    assert same is not None
    inside = values[1:-1, 1:-1, 1:-1].flatten()
    torch.testing.assert_close(inside, same.values, rtol=1e-5, atol=0)


def test_measurements_are_judged_by_the_law_of_the_run(run: Run) -> None:
    field = run.posterior.residual
    assert field is not None
    assert field.law is not None
    columns, units, _ = read_table(run.path / HELD_OUT)
    assert units["measured_std"] == "mag"
    z, observed = columns["z"], columns["extinction"]
    for low, high, reach in (("p16", "p84", 1.0), ("p2_5", "p97_5", 1.959964)):
        inside = observed > columns[f"measured_{low}"]
        inside &= observed < columns[f"measured_{high}"]
        np.testing.assert_array_equal(inside, np.abs(z) < reach)
    score = run.summary["held_out"]
    above = np.mean(observed > columns["measured_p97_5"])
    assert score["above_p97_5"] == pytest.approx(above)
    below = np.mean(observed < columns["measured_p2_5"])
    assert score["below_p2_5"] == pytest.approx(below)
    assert score["coverage_95"] == pytest.approx(1 - above - below)
    # A Student-T's standard deviation is larger than half its 68% interval.
    width = columns["measured_p84"] - columns["measured_p16"]
    assert (2 * columns["measured_std"] > width).all()
    # Other stars have the same columns beside posterior distances.
    stars = read_stars(run.path / HELD_OUT)
    stars = replace(stars, distance_error=np.full(len(stars), 5.0))
    found = distance_columns(run, stars)
    inside = np.isfinite(found["posterior_distance"])
    np.testing.assert_allclose(
        found["measured_mean"][inside], columns["measured_mean"][inside], rtol=1e-3
    )


@pytest.mark.slow
def test_predictions_of_stars_are_of_map_and_kriging(run: Run) -> None:
    field = run.posterior.residual
    assert field is not None
    assert field.stack is not None
    assert field.stack.gain >= 0.01
    stars, true = sky(400, 7)
    columns = predict_columns(run.plan, run.posterior, stars)
    alone = predict_columns(run.plan, without_stack(run).posterior, stars)
    errors = [
        np.abs(each["extinction_mean"] - true).mean() for each in (columns, alone)
    ]
    assert errors[0] < errors[1]
    factor = columns["extinction_mean"] / alone["extinction_mean"]
    for name in ("extinction_std", "extinction_p16"):
        np.testing.assert_allclose(columns[name], factor * alone[name])
    np.testing.assert_array_equal(columns["density_mean"], alone["density_mean"])
    coords = SkyCoord(
        stars.l * u.deg, stars.b * u.deg, stars.distance * u.pc, frame="galactic"
    )
    dust = open_map(run.path)
    answer, density = dust.extinction_and_density(coords)
    assert answer.estimate == ESTIMATES["kriged"]
    assert density.estimate == ESTIMATES["map"]
    table: Any = predict(run.path, coords)
    for kind in ("mean", "std", "p16"):
        part = {"mean": answer.mean, "std": answer.std, **answer.quantiles}
        wanted = columns[f"extinction_{kind}"]
        np.testing.assert_allclose(table[f"extinction_{kind}"].value, wanted, rtol=1e-6)
        # Standard deviations are interpolated between nodes of the ray, too.
        assert np.median(np.abs(part[kind].value / wanted - 1)) < 0.1


def test_exports_say_that_kriging_has_a_share(run: Run, tmp_path, command) -> None:
    skies = {"zarr": tmp_path / "map.zarr", "healpix": tmp_path / "sky.fits"}
    export(run.path, {name: [path] for name, path in skies.items()})
    for path in (*skies.values(), run.path):
        asked = f"query {path} --l 10 --b 10 --distance 200 --integrated"
        assert ESTIMATES["kriged"] in command(asked).output


def test_both_quantities_of_one_pass_are_those_of_two(run: Run) -> None:
    stars, _ = sky(40, 6)
    dust = open_map(run.path)
    # The last place is outside the box.
    distance = np.append(stars.distance[1:], 5000.0)
    coords = SkyCoord(
        stars.l * u.deg, stars.b * u.deg, distance * u.pc, frame="galactic"
    )
    both = dust.extinction_and_density(coords)
    for one, other in zip(both, (dust.extinction(coords), dust.density(coords))):
        np.testing.assert_array_equal(one.flags, other.flags)
        for name, part in {"mean": one.mean, "std": one.std, **one.quantiles}.items():
            alone = {"mean": other.mean, "std": other.std, **other.quantiles}[name]
            assert part is not None
            assert alone is not None
            assert part.unit == alone.unit
            np.testing.assert_allclose(part.value, alone.value, rtol=1e-6)
