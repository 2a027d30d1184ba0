"""Uncertain distances in a box: where rays leave it, what blurs, who is near."""

from dataclasses import replace

import numpy as np
import one_cloud
import pytest
import torch

from dustmap.functionals import DistanceMarginalizedIntegrals, LineIntegrals
from dustmap.grid import Grid, Torus
from dustmap.models.means import ConstantMean
from dustmap.noise import Normal, StudentT
from dustmap.tori import Tori
from pipelines.config import FitConfig
from pipelines.model.observations import (
    exit_distances,
    near_stars,
    noise_of,
    sight_lines,
)
from pipelines.model.plan import Plan

BOX = Grid(shape=(5, 4, 3), spacing=(10.0, 10.0, 10.0), origin=(-10.0, -20.0, -5.0))
PLAN = Plan(
    tori=Tori(tori=(Torus(grid=BOX, shape=(8, 8, 8)),)),
    kernel="matern32",
    lengthscale=(20.0, 20.0, 20.0),
    std=1.0,
    mean=ConstantMean(value=0.002),
    common_noise=0.0,
    density="lognormal",
)

GIVEN = FitConfig.model_validate({"model": {"common_noise": 0.0, "subgrid_share": 1}})


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def data(ends, error=None):
    stars = one_cloud.at(np.array(ends), np.zeros(len(ends)), 0.2)
    return replace(stars, distance_error=None if error is None else np.array(error))


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        # The box spans -10..30, -20..10 and -5..15.
        ([1.0, 0.0, 0.0], 30.0),
        ([-1.0, 0.0, 0.0], 10.0),
        ([0.0, 2.0, 0.0], 10.0),
        ([0.0, -3.0, 0.0], 20.0),
        ([0.0, 0.0, 4.0], 15.0),
        ([0.0, 0.0, -4.0], 5.0),
        ([5.0, 5.0, 0.0], 10.0 * 2**0.5),
        ([3.0, 0.0, 4.0], 18.75),
        ([1.0, -1.0, -1.0], 5.0 * 3**0.5),
        # On a face already, and beside an axis by less than rounding.
        ([30.0, 0.0, 0.0], 30.0),
        ([3.0, 1e-14, 0.0], 30.0),
    ],
)
def test_a_ray_leaves_the_box_at_its_first_face(end, expected):
    found = exit_distances(BOX, double([end]))
    assert float(found[0]) == pytest.approx(expected, rel=2e-9)
    at = double([end]) / double(end).norm() * found
    assert bool(BOX.contains(at).all())


def test_a_star_at_the_observer_has_a_finite_or_infinite_but_no_absurd_exit():
    found = exit_distances(BOX, double([[0.0, 0.0, 0.0]]))
    assert float(found[0]) >= 0 and not bool(torch.isnan(found).any())


def test_exact_distances_give_plain_sight_lines_and_uncertain_ones_averages():
    ends = [[20.0, 0.0, 0.0], [0.0, 5.0, 5.0]]
    assert isinstance(sight_lines(PLAN, data(ends)), LineIntegrals)
    blurred = sight_lines(PLAN, data(ends, [4.0, 0.0]))
    assert isinstance(blurred, DistanceMarginalizedIntegrals)
    torch.testing.assert_close(
        blurred.reach,
        exit_distances(BOX, torch.as_tensor(data(ends).positions())),
        rtol=0,
        atol=0,
    )
    # The mean density times E[d]: the star without error keeps its distance.
    mean = PLAN.mean.observed(blurred)
    plain = PLAN.mean.observed(sight_lines(PLAN, data(ends)))
    torch.testing.assert_close(mean[1], plain[1])
    # Cut off at the face (30 pc, 2.5 sigma) it is hardly nearer.
    assert float(mean[0]) == pytest.approx(0.002 * 20.0, rel=0.005)


def test_sight_lines_stay_in_the_box_however_large_the_error():
    ends = [[20.0, 0.0, 0.0], [-9.0, 0.0, 0.0], [0.0, 9.0, 14.0]]
    nodes = sight_lines(PLAN, data(ends, [500.0, 50.0, 5.0])).nodes()
    assert bool(BOX.contains(nodes.points).all())
    assert bool((nodes.weights >= 0).all())


def test_blur_is_the_stretch_between_one_error_before_and_after_within_the_box():
    ends = [[20.0, 0.0, 0.0], [20.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 5.0, 0.0]]
    noise = noise_of(PLAN, data(ends, [4.0, 25.0, 5.0, 0.0]), GIVEN)
    assert isinstance(noise.blur, LineIntegrals) and noise.blur_scale is not None
    # 16..24; 0..30, cut at the observer and the face; 0..7; nothing.
    torch.testing.assert_close(noise.blur.start[:, 0], double([16.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(
        noise.blur.end[:, 0], double([24.0, 30.0, 7.0, 0.0]), rtol=1e-8, atol=1e-8
    )
    assert bool(BOX.contains(noise.blur.end).all())
    # Scaled so that an even density rho gives rho times the error.
    added = noise.blur_scale * PLAN.mean.observed(noise.blur)
    expected = 0.002 * double([4.0, 25.0, 5.0, 0.0])
    torch.testing.assert_close(added, expected, rtol=1e-6, atol=1e-15)


def test_noise_is_the_stars_own_and_the_common_one_and_student_t_for_outliers():
    stars = data([[20.0, 0.0, 0.0]] * 20)
    plain = noise_of(replace(PLAN, common_noise=0.3), stars, GIVEN)
    torch.testing.assert_close(
        plain.variance, torch.full((20,), 0.13, dtype=torch.float64)
    )
    assert isinstance(plain, Normal) and plain.degrees is None
    assert plain.blur is None and not plain.learn_common
    free = noise_of(replace(PLAN, outliers=True), stars, FitConfig())
    assert isinstance(free, StudentT) and free.learn_degrees and free.learn_common
    assert free.neighbours is not None and free.neighbours.shape == (20, 8)
    given = noise_of(replace(PLAN, outliers=True, degrees=3.0), stars, GIVEN)
    assert given.degrees == 3.0 and not given.learn_degrees


def test_near_stars_are_near_in_direction_and_distance_and_never_the_star_itself():
    ends = torch.as_tensor(one_cloud.catalogue(300).positions())
    found = near_stars(ends)
    assert found is not None and found.shape == (300, 8)
    own = torch.arange(300)[:, None]
    assert not bool((found == own).any())
    distance = ends.norm(dim=1)
    apart = ends / distance[:, None]
    # By every pair, as it is defined: chord and a quarter of ln d.
    square = torch.cdist(apart, apart) ** 2
    square += (0.25 * (distance[:, None] / distance).log()) ** 2
    square.fill_diagonal_(torch.inf)
    expected = square.topk(8, largest=False).values
    torch.testing.assert_close(
        square.gather(1, found).sort(dim=1).values, expected, rtol=1e-6, atol=1e-9
    )


def test_few_stars_have_no_neighbours_to_be_judged_by():
    ends = torch.as_tensor(one_cloud.catalogue(17).positions())
    assert near_stars(ends[:16]) is None
    assert near_stars(ends) is not None


def test_stars_at_one_place_are_each_others_neighbours():
    # As in a cluster, or a catalogue with repeated rows.
    found = near_stars(double([[20.0, 0.0, 0.0]] * 20))
    assert found is not None
    assert not bool((found == torch.arange(20)[:, None]).any())
