"""What a fit says before it begins, and when it refuses to."""

import dataclasses
import re

import pytest

from dustmap.grid import Grid
from pipelines.base.errors import InputError
from pipelines.config import FitConfig
from pipelines.fit.announcing import plan_in_words, refuse_too_large
from pipelines.model import cost
from pipelines.model.cost import memory_limit
from pipelines.model.plan import MeanPlan, Plan

GRID = Grid(shape=(40, 40, 20), spacing=(10.0,) * 3, origin=(-200.0, -200.0, -100.0))
PLAN = Plan(
    grid=GRID,
    torus_shape=(48, 48, 32),
    kernel="matern32",
    lengthscale=(20.0,) * 3,
    std=0.8,
    mean=MeanPlan(kind="constant", value=0.01),
    common_noise=0.0,
    density="lognormal",
)


def refusal(points, gib):
    work = cost.Work(torus_points=points, stars=100, ray_cells=10.0, lognormal=True)
    config = FitConfig.model_validate({"budget": {"memory_gib": gib}})
    with pytest.raises(InputError) as refused:
        refuse_too_large(PLAN, work, config)
    return work, config, str(refused.value)


def test_a_grid_too_large_is_refused_with_the_finest_that_fits():
    work, config, said = refusal(10**8, 4.0)
    found = re.search(r"box.spacing=(\S+),", said)
    assert found is not None and "raise budget.memory_gib" in said
    assert "(390 x 390 x 190 pc)" in said
    factor = float(found[1]) / 10.0
    for by, fits in ((factor, True), (0.8 * factor, False)):
        less = dataclasses.replace(
            work, torus_points=int(10**8 / by**3), ray_cells=10.0 / by
        )
        assert (cost.foreseen(less) <= memory_limit(config)) == fits


def test_where_no_grid_fits_it_says_so():
    assert "no spacing fits" in refusal(10**8, 0.5)[2]


@pytest.mark.parametrize(
    ("box", "remedy"),
    [({}, True), ({axis: [-1.0, 1.0] for axis in "xyz"}, False)],
)
def test_the_sky_outside_the_box_is_named(box, remedy):
    for far, missing in ((200.0, True), (90.0, False)):
        settings = {"data": {"max_distance": far}, "box": box}
        said = "\n".join(plan_in_words(PLAN, FitConfig.model_validate(settings)))
        assert ("of the sky at data.max_distance = 200" in said) == missing
        assert ("box.cover = sphere holds" in said) == (missing and remedy)
