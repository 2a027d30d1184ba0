"""What is kept of every iteration, and what is shown."""

import dataclasses
import io
import re

import pytest

from dustmap.grid import Grid
from pipelines.base.errors import InputError
from pipelines.base.progress import Progress
from pipelines.base.timing import Countdown
from pipelines.config import FitConfig
from pipelines.fit.fit_logging import (
    Expected,
    announce,
    recorder,
    refuse_too_large,
)
from pipelines.model import cost
from pipelines.model.plan import MeanPlan, Plan, memory_limit

KNOWN = Expected(
    parts={"map": 1e6}, samples=32, tolerances={"samples": 1e-2, "mean": 1e-4}
)


def record_of(stage, value, known):
    records = []
    with Progress(description="inference", stream=io.StringIO()) as progress:
        recorder(records, progress, known)(stage, 3, value)
    return records


@pytest.mark.parametrize(
    ("stage", "tolerance"),
    [
        ("mean", 1e-4),
        ("samples 1-16", 1e-2),
        ("scales mean", None),
        ("starts of samples 1-16", None),
    ],
)
def test_a_residual_has_the_tolerance_its_solve_was_asked_for(stage, tolerance):
    (record,) = record_of(stage, 0.5, KNOWN)
    assert record["residual"] == 0.5 and record["iteration"] == 3
    assert record.get("tolerance") == tolerance
    (record,) = record_of(stage, 0.5, None)
    assert "tolerance" not in record


def test_other_numbers_go_by_their_own_names_and_nan_by_none():
    (record,) = record_of("misfit", 0.5, KNOWN)
    assert record["misfit"] == 0.5 and "residual" not in record
    assert "tolerance" not in record
    assert record_of("preconditioner", float("nan"), KNOWN) == []


def test_time_goes_on_from_the_records_of_before():
    records = [{"stage": "scales", "seconds": 40.0}]
    stream = io.StringIO()
    with Progress(description="inference", stream=stream) as progress:
        recorder(records, progress, KNOWN, Countdown(KNOWN.parts))("mean", 0, 0.5)
    assert 40.0 <= records[-1]["seconds"] < 100.0
    assert "left=" in stream.getvalue()
    with Progress(description="scales", stream=(plain := io.StringIO())) as progress:
        recorder([], progress)("mean", 0, 0.5)
    assert "left=" not in plain.getvalue()


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
def test_the_sky_outside_the_box_is_told(capsys, box, remedy):
    speed = cost.Speed(fft=1e-9, entry=1e-9, flop=1e-10, streamed=1e-10)
    work = cost.Work(torus_points=10**4, stars=100, ray_cells=10.0, lognormal=True)
    wide = Grid(shape=(9, 9, 9), spacing=(50.0,) * 3, origin=(-200.0,) * 3)
    for far, told in ((200.0, True), (90.0, False)):
        settings = {"data": {"max_distance": far}, "box": box}
        config = FitConfig.model_validate(settings)
        announce(PLAN, work, speed, config, lambda _: (wide, work))
        said = capsys.readouterr().err
        assert ("of the sky at data.max_distance = 200" in said) == told
        assert ("box.cover = sphere holds" in said) == (told and remedy)
        assert (f"{wide.size} points every 50 x 50" in said) == (told and remedy)
