"""Box, grid and spacing: what is chosen, and that it survives a file."""

import json
import math
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dustmap.grid import Grid, Torus
from dustmap.kernels import KERNELS
from dustmap.models.means import ExponentialDisc
from dustmap.residual.covariance import GRID_CUT
from dustmap.tori import Tori
from dustmap.whitening import nested_tori
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.config import FitConfig
from pipelines.model import cost
from pipelines.model.cost import REFERENCE, Work
from pipelines.model.hipgp import spacing_limits
from pipelines.model.plan import RESOLVED, EmbeddingPlan, Plan
from pipelines.planning.grids import (
    StarSeparation,
    choose_grids,
    make_grid,
    mean_log_cell,
    nested_grids,
)
from pipelines.planning.planner import make_plan, resolved_std
from pipelines.planning.selection import choose_box

KERNEL = KERNELS["matern12"](lengthscale=[80.0] * 3)


def config(**sections):
    return FitConfig.model_validate(sections)


def box_of(positions, **sections):
    """Corners of the chosen box, and notes."""
    box, notes = choose_box(positions, config(**sections), Path("stars"))
    return np.array(box.lower), np.array(box.upper), notes


def cloud_of_stars(count=400, seed=1):
    return np.random.default_rng(seed).normal(size=(count, 3)) * [300.0, 300.0, 80.0]


def plan(**changes):
    grid = Grid(shape=(9, 8, 7), spacing=(10.0, 10.0, 20.0), origin=(-40.0, 0.0, -60.0))
    values = {
        "tori": Tori(tori=(Torus(grid=grid, shape=(12, 12, 10)),)),
        "kernel": "matern52",
        "lengthscale": (30.0, 30.0, 60.0),
        "std": 0.1 + 0.2,
        "mean": ExponentialDisc(
            value=1 / 3, scale_height=90.0, scale_length=3200.0, centre_distance=8178.0
        ),
        "common_noise": 1e-17,
    }
    return Plan(**{**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"engine": "svi", "embedding": EmbeddingPlan(nugget=1e-9, shape=(12, 9, 9))},
        {"notes": ("one", "two"), "subgrid_noise": False},
    ],
)
def test_a_plan_comes_back_from_json_exactly(changes):
    original = plan(**changes)
    text = json.dumps(original.as_dict(), allow_nan=False)
    assert Plan.from_dict(json.loads(text)) == original


def test_a_plan_of_an_earlier_version_is_refused():
    old = {name: x for name, x in plan().as_dict().items() if name != "tori"}
    with pytest.raises(InputError, match="fit again"):
        Plan.from_dict(old)


def test_a_box_from_the_data_spans_the_stars_and_the_observer():
    positions = cloud_of_stars(150) + np.array([900.0, 0.0, 0.0])
    lower, upper, _ = box_of(positions[positions[:, 0] > 50])
    assert lower[0] == 0.0
    assert (upper >= positions.max(axis=0)).all()
    assert (lower <= positions.min(axis=0))[1:].all()
    mirrored = -positions[positions[:, 0] > 50]
    lower, upper, _ = box_of(mirrored)
    assert upper[0] == 0.0 and lower[0] == mirrored[:, 0].min()


def between(lower, upper):
    return Box(lower=tuple(lower), upper=tuple(upper))


def around(*half):
    """A box around the observer."""
    return Box(lower=tuple(-x for x in half), upper=half)


def covering(sections, positions=None):
    positions = cloud_of_stars() if positions is None else positions
    lower, upper, _ = box_of(positions, **sections)
    return lower, upper


def test_the_box_holds_the_sphere_asked_for_where_that_is_cheap():
    cube = np.random.default_rng(2).uniform(-900.0, 900.0, size=(400, 3))
    lower, upper = covering({"data": {"max_distance": 1000.0}}, cube)
    assert [*lower, *upper] == [-1000.0] * 3 + [1000.0] * 3
    # A flat cloud fills a fifth of that: the cylinder costs less.
    flat = np.abs(cloud_of_stars()).max()
    lower, upper = covering({"data": {"max_distance": flat}})
    assert upper[0] == upper[1] == flat and upper[2] < 0.5 * flat
    # What that leaves of twice the volume of the stars' box makes it taller.
    bare = covering({})
    ratio = np.prod(upper - lower) / np.prod(bare[1] - bare[0])
    assert ratio == pytest.approx(2.0) and upper[2] > bare[1][2]
    given = {"data": {"max_distance": flat}, "box": {"z": [-100.0, 90.0]}}
    lower, upper = covering(given)
    assert (lower[2], upper[2]) == (-100.0, 90.0)
    # And both cost much more than stars in one direction.
    beam = cloud_of_stars() * [0.6, 0.1, 0.3] + [900.0, 0.0, 0.0]
    lower, upper = covering({"data": {"max_distance": 2000.0}}, beam)
    assert lower[0] == 0.0 and upper[1] < 200.0


def test_a_flat_catalogue_gets_a_box_with_a_third_dimension():
    positions = cloud_of_stars() * [1, 1, 0]
    lower, upper, notes = box_of(positions)
    extent = upper - lower
    assert extent[2] == pytest.approx(0.02 * extent.max(), rel=1e-6)
    assert any("z widened" in note for note in notes)


def test_a_grid_covers_the_box_and_has_a_point_at_the_observer():
    lower, upper = np.array([-101.0, -55.0, 0.0]), np.array([99.0, 45.0, 30.0])
    grid = make_grid(between(lower, upper), (10.0, 10.0, 10.0), config())
    assert all(a <= b for a, b in zip(grid.lower, lower))
    assert all(a >= b for a, b in zip(grid.upper, upper))
    for axis in range(3):
        assert np.abs(grid.axis(axis).numpy()).min() < 1e-9
    assert grid.shape == (22, 12, 4)


def test_a_given_shape_spans_the_given_box_exactly():
    box = {"x": [-9.0, 9.0], "y": [-4.0, 4.0], "z": [-1.0, 3.0], "shape": [10, 9, 5]}
    lower, upper, _ = box_of(0.01 * cloud_of_stars(), box=box)
    grid = make_grid(between(lower, upper), (1.0,) * 3, config(box=box))
    assert grid.shape == (10, 9, 5) and grid.spacing == (2.0, 1.0, 1.0)
    assert grid.upper == (9.0, 4.0, 3.0)


@contextmanager
def limited(work):
    """Fits of at most so much work, whatever their stars."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "fit_work", lambda _: work)
        yield


def spacing_for(work=150.0, gib=8.0, samples=32, lengthscale=100.0, stars=3000):
    settings = config(
        budget={"memory_gib": gib},
        inference={"samples": samples},
        prior={"kernel": "matern32"},
    )
    box, distances = around(1000.0, 1000.0, 300.0), np.full(stars, 700.0)
    scales = [lengthscale] * 3
    kernel = KERNELS["matern32"](lengthscale=scales)
    with limited(work):
        grids, _ = choose_grids(box, kernel, distances, settings, REFERENCE)
    return grids[0].spacing[0]


def test_less_work_or_memory_or_more_samples_make_a_coarser_grid():
    ample = spacing_for()
    assert spacing_for(work=1.0) > ample
    # The programs alone take 1.02 GiB.
    assert spacing_for(gib=1.1) > ample
    assert spacing_for(work=1.0, samples=64) > spacing_for(work=1.0)
    assert spacing_for(work=5.0, stars=20_000) > spacing_for(work=5.0)


def test_no_grid_is_finer_than_the_lengthscale_calls_for():
    ample = {"work": 1e8, "gib": 1e6}
    assert spacing_for(**ample, lengthscale=210.0) == pytest.approx(42.0)
    many = spacing_for(**ample, lengthscale=210.0, stars=30_000)
    assert many == pytest.approx(30.0)


def test_the_chosen_grid_keeps_the_budget_it_was_given():
    settings = config(budget={"memory_gib": 1.5})
    box, distances = around(1000.0, 1000.0, 300.0), np.full(20_000, 700.0)
    kernel = KERNELS[settings.kernel](lengthscale=[80.0] * 3)
    with limited(8.0):
        grids, _ = choose_grids(box, kernel, distances, settings, REFERENCE)
    work = Work.of(grids, kernel, distances, settings)
    assert work.together <= 1.5 * 2**30
    assert 4.0 <= work.solves() <= 8.0


def dense_centre(count: int = 48_000) -> np.ndarray:
    """Distances of stars 6 pc apart within 100 pc, and as many out to 600 pc."""
    rng = np.random.default_rng(2)
    near, far = rng.random((2, count // 2)) ** (1 / 3)
    return np.concatenate([100 * near, 600 * far])


def test_finer_grids_follow_the_stars():
    coarsest = Grid(shape=(31, 31, 13), spacing=(40.0,) * 3, origin=(-600, -600, -240))
    separation = StarSeparation.of(dense_centre())
    alone = nested_grids(coarsest, separation, config(), 1)
    assert alone == (coarsest,)
    grids = nested_grids(coarsest, separation, config(), None)
    # Stars are 6 pc apart: cells of 5 pc, as far as they are dense, and none of 2.5 pc.
    assert [grid.spacing[0] for grid in grids] == [40.0, 20.0, 10.0, 5.0]
    assert 100.0 <= grids[3].reach <= 120.0
    assert grids[1].lower[2] >= coarsest.lower[2]
    more = nested_grids(coarsest, separation, config(), 5)
    assert more[:4] == grids and more[4].spacing[0] == 2.5 and more[4].reach >= 20.0
    least = config(box={"finest": 15.0})
    assert nested_grids(coarsest, separation, least, None) == alone
    assert config(box={"spacing": 40.0}).levels == 1


def test_finer_grids_cost_the_coarsest_a_factor_of_two_at_most():
    box, distances = around(600.0, 600.0, 240.0), dense_centre()

    def grids_of(work, **settings):
        with limited(work):
            given = config(**settings)
            return choose_grids(box, KERNEL, distances, given, REFERENCE)[0]

    alone = grids_of(150.0, box={"levels": 1})
    nested = grids_of(150.0)
    assert len(alone) == 1 and len(nested) > 1
    assert 1 <= nested[0].spacing[0] / alone[0].spacing[0] <= 2.1
    assert nested[-1].spacing[0] < alone[0].spacing[0]
    # A limit that finer grids would exceed is kept by one grid.
    poor = [grids_of(work) for work in (10.0, 5.0, 4.0)]
    assert min(len(grids) for grids in poor) == 1


def test_no_finer_grids_for_the_sake_of_a_few_stars():
    box = around(600.0, 600.0, 600.0)
    far = 600 * np.random.default_rng(3).random(200_000) ** (1 / 3)
    for dense, one in ((dense_centre(200_000), False), (dense_centre(4_000), True)):
        distances = np.concatenate([dense[: len(dense) // 2], far])
        grids, _ = choose_grids(box, KERNEL, distances, config(), REFERENCE)
        assert (len(grids) == 1) == one
        alone = config(box={"levels": 1})
        best, _ = choose_grids(box, KERNEL, distances, alone, REFERENCE)
        assert mean_log_cell(grids, distances) <= mean_log_cell(best, distances)


def test_a_plan_with_finer_grids_is_read_back():
    coarsest = Grid(shape=(31, 31, 13), spacing=(40.0,) * 3, origin=(-600, -600, -240))
    grids = nested_grids(coarsest, StarSeparation.of(dense_centre()), config(), 3)
    nested = plan(density="lognormal", tori=nested_tori(grids, KERNEL, 0.05))
    assert nested.grids == grids
    assert Plan.from_dict(json.loads(json.dumps(nested.as_dict()))) == nested


@pytest.mark.parametrize(
    "settings",
    [{"model": {"density": "gaussian"}}, {"prior": {"kernel": "squared-exponential"}}],
)
def test_levels_need_a_rough_positive_density(settings):
    with pytest.raises(ValidationError, match=r"box\.levels"):
        config(box={"levels": 2}, **settings)
    assert config(**settings).levels == 1


def test_more_stars_make_no_coarser_cells_and_more_work():
    few, many = (spacing_for(work=5.0, stars=n) for n in (100_000, 2_000_000))
    assert many <= few
    assert cost.fit_work(1_000_000) > cost.fit_work(0)


@pytest.mark.parametrize(
    ("change", "limit"),
    [({"work": 1e-9}, "work"), ({"gib": 0.01}, "memory_gib = 0.01")],
)
def test_a_limit_that_no_grid_keeps_is_named_with_the_remedy(change, limit):
    with pytest.raises(InputError, match=rf"{limit}.*: raise budget\.memory_gib"):
        spacing_for(**change)


def test_the_published_engine_gets_a_coarser_grid_for_more_stars():
    extent = np.array([2000.0, 2000.0, 600.0])

    def least(stars: int, work: float) -> float:
        return spacing_limits(extent, stars, work, config())[1]

    assert least(50_000, 600.0) > least(500, 600.0)
    assert least(5000, 6.0) > least(5000, 600.0)


def planned(lengthscale=(150.0,) * 3, std=0.8, resolved=False, **sections):
    """A plan on a grid of 100 pc, or another, for scales that may be given."""
    settings = config(**{"box": {"spacing": 100.0}, **sections})
    scales = replace(
        plan().scales,
        lengthscale=torch.tensor(lengthscale, dtype=torch.float64),
        std=std,
        common_noise=0.04,
    )
    box, distances = around(900.0, 800.0, 300.0), np.full(60, 500.0)
    place, notes = (scales, box, distances, settings, REFERENCE), ["as found"]
    return make_plan(*place, notes=notes, resolved=resolved)


def test_the_plan_has_the_scales_with_the_median_of_a_lognormal_density():
    made = planned()
    assert (made.lengthscale, made.std) == ((150.0,) * 3, 0.8)
    assert made.common_noise == pytest.approx(0.2) and made.notes == ("as found",)
    mean = plan().scales.mean
    assert made.mean.value == pytest.approx(mean.value * math.exp(-0.32))
    assert made.scales.mean == mean
    assert (made.density, made.outliers, made.degrees) == ("lognormal", True, None)
    made = planned(model={"density": "gaussian", "outliers": False, "degrees": 5.0})
    assert (made.density, made.outliers, made.degrees) == ("gaussian", False, 5.0)
    assert made.mean.value == mean.value
    assert all(n > m for n, m in zip(made.tori[0].shape, made.grid.shape))
    made = planned(inference={"engine": "svi"})
    assert made.embedding.shape == () and made.engine == "svi"
    assert (made.density, made.outliers) == ("gaussian", False)


@pytest.mark.parametrize(("residual", "resolved"), [(True, False), (False, True)])
def test_a_lengthscale_the_grid_cannot_carry_is_raised_and_said(residual, resolved):
    alone = {"model": {"residual": residual}, "resolved": resolved}
    short = (90.0,) * 3
    made = planned(lengthscale=short, **alone)
    assert made.lengthscale == (RESOLVED * 100.0,) * 3 and made.std < 0.8
    assert any("lengthscale raised" in note for note in made.notes)
    given = planned(lengthscale=short, prior={"lengthscale": 90.0}, **alone)
    assert (given.lengthscale, given.std) == (short, 0.8)
    assert planned(lengthscale=short, prior={"std": 0.8}, **alone).std == 0.8
    long = (600.0,) * 3
    assert planned(lengthscale=long, **alone).notes == ("as found",)


def test_what_stars_share_needs_no_raised_lengthscale():
    made = planned(lengthscale=(90.0,) * 3, resolved=True)
    assert (made.lengthscale, made.std) == ((90.0,) * 3, 0.8)
    assert made.cut == GRID_CUT and made.notes == ("as found",)
    for whole in (
        {"model": {"residual": False}},
        {"model": {"density": "gaussian"}},
        {"inference": {"samples": 0}},
        {"prior": {"kernel": "squared-exponential"}},
    ):
        assert planned(**whole).cut == 0.0


def test_a_plan_made_again_for_its_own_scales_is_the_same():
    made = planned(lengthscale=(90.0,) * 3)
    box = Box(lower=made.grid.lower, upper=made.grid.upper)
    settings = config(box={"spacing": 100.0})
    again = make_plan(
        made.scales, box, np.full(60, 500.0), settings, REFERENCE, notes=made.notes
    )
    assert again.tori == made.tori
    assert again.lengthscale == made.lengthscale and again.notes == made.notes


def test_a_raised_lengthscale_keeps_the_variance_of_a_cells_mean_density():
    grid = Grid(shape=(5, 5, 5), spacing=(30.0,) * 3, origin=(-60.0,) * 3)
    settings = config(prior={"kernel": "matern32"})
    std = resolved_std(1.5, [15.0] * 3, (45.0,) * 3, grid, settings)
    # Simulated: pairs of points of a cell, and the covariance of their densities.
    generator = torch.Generator().manual_seed(0)
    pairs = 30 * torch.rand(2, 400_000, 3, generator=generator, dtype=torch.float64)
    apart = pairs[0] - pairs[1]

    def variance(std, scale):
        kernel = KERNELS["matern32"](lengthscale=[scale] * 3, variance=std**2)
        return float(kernel(apart).expm1().mean())

    assert 0.3 < std < 1.5
    assert variance(std, 45.0) == pytest.approx(variance(1.5, 15.0), rel=0.02)
    assert resolved_std(1.5, [45.0] * 3, (45.0,) * 3, grid, settings) == 1.5
