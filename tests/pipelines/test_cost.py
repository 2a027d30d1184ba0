"""Estimates of memory and work: in proportion, and near what is measured."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import one_cloud
import psutil
import pytest
import torch

from dustmap.grid import Grid
from dustmap.kernels import Matern12
from dustmap.models.gaussian import TorusGaussian
from pipelines.config import FitConfig
from pipelines.model.cost import Machine, Work, machine_memory, most_stars
from pipelines.model.engine import build_model, rays
from pipelines.model.problem import Device


def config(**sections):
    return FitConfig.model_validate({"model": {"density": "gaussian"}, **sections})


WORK = Work(
    config=config(), points=100_000, transformed=100_000, stars=20_000, ray_cells=15.0
)


def total(work):
    return sum(work.memory().values())


@pytest.mark.parametrize(
    "change",
    [
        {"points": 400_000, "transformed": 400_000},
        {"stars": 200_000},
        {"ray_cells": 40.0},
        {"config": config(inference={"samples": 320})},
        {"config": config(inference={"preconditioner_rank": 800})},
    ],
)
def test_more_of_anything_costs_more_work_and_memory(change):
    more = replace(WORK, **change)
    assert more.solves() > WORK.solves()
    assert total(more) > total(WORK)


def test_a_tighter_tolerance_costs_more_work_and_no_memory():
    loose, tight = (
        replace(WORK, config=config(inference={"tolerance": rtol}))
        for rtol in (1e-3, 1e-6)
    )
    assert tight.solves() == pytest.approx(2 * loose.solves(), rel=0.1)
    assert total(tight) == total(loose)


def test_double_precision_doubles_what_numbers_take():
    double = replace(WORK, config=config(inference={"dtype": "float64"}))
    one, two = WORK.memory(), double.memory()
    assert two["posterior samples"] == 2 * one["posterior samples"]
    assert two["program and libraries"] == one["program and libraries"]


def test_memory_and_work_of_a_rank_fall_with_its_share_of_w():
    alone = replace(WORK, points=400_000, stars=40_000, ray_cells=50.0)
    four = replace(alone, machine=Machine(ranks=4, here=2))
    teams = replace(four, config=config(inference={"teams": 2}))
    one = alone.memory()
    assert four.memory()["projection W"] == pytest.approx(one["projection W"] / 4)
    few = replace(alone, stars=10_000).memory()
    assert (
        four.memory()["solver vectors"] == few["solver vectors"] < one["solver vectors"]
    )
    assert teams.memory()["projection W"] == pytest.approx(one["projection W"] / 2)
    assert four.together == 2 * total(four)
    assert max(w.solves() for w in (four, teams)) < alone.solves()


def test_fewer_samples_are_fitted_together_where_memory_is_short():
    def work(gib: float) -> Work:
        settings = config(budget={"memory_gib": gib})
        grid = Grid(shape=(100, 100, 50), spacing=(40.0,) * 3, origin=(-2000.0,) * 3)
        kernel = Matern12(lengthscale=200.0)
        return Work.of((grid,), kernel, np.full(10**6, 1000.0), settings)

    ample = work(64.0)
    short = work(0.95 * ample.together / 2**30)
    assert (ample.block, short.block) == (8, 4)
    assert short.memory()["solver vectors"] == ample.memory()["solver vectors"] / 2


def test_entries_of_many_stars_are_those_of_a_tree():
    many, more = (replace(WORK, stars=n, ray_cells=50.0) for n in (10**6, 2 * 10**6))
    rows = replace(WORK, stars=20_000, ray_cells=50.0).entries
    assert many.entries < 50 * rows / 3
    assert more.entries - many.entries < 30 * 10**6


def test_entries_of_the_projection_are_near_those_of_a_model(cloud_run):
    plan, settings = cloud_run.plan, one_cloud.settings()
    ends = torch.as_tensor(one_cloud.catalogue(1000).positions())
    device = Device(
        device=torch.device("cpu"),
        dtype=torch.float32,
        generator=torch.Generator().manual_seed(0),
    )
    model = build_model(plan, rays(plan, ends), device)
    assert isinstance(model, TorusGaussian)
    distances, given = ends.norm(dim=1).numpy(), FitConfig.model_validate(settings)
    work = Work.of(plan.grids, plan.build_kernel(), distances, given)
    assert work.entries == pytest.approx(model.weights.nonzeros, rel=0.35)
    assert work.points == math.prod(model.whitening.report.shape)


def test_memory_is_as_given_and_no_more_than_the_machine_or_its_device(monkeypatch):
    assert config(budget={"memory_gib": 3.0}).budget.bytes == 3 * 2**30
    assert config().budget.bytes == config(budget={"memory_gib": "auto"}).budget.bytes
    total_memory = psutil.virtual_memory().total
    assert 0.5 * total_memory < machine_memory(config()) < total_memory
    everywhere = WORK.anywhere
    shared = replace(WORK, machine=Machine(ranks=4, here=4))
    plain = WORK.memory()["projection W"]
    device = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: device)
    assert machine_memory(config()) == 64 * 2**30
    assert machine_memory(config(inference={"device": "cpu"})) < total_memory
    assert WORK.anywhere == everywhere
    # With its transpose; and a device for each rank.
    assert WORK.memory()["projection W"] == 2 * plain
    assert shared.together == total(shared)


@pytest.mark.parametrize("here", [1, 2, 4])
@pytest.mark.parametrize("gib", [8, 16, 64])
def test_so_many_stars_leave_the_budget_room_for_a_grid(here, gib):
    several = Machine(ranks=here, here=here)
    settings = FitConfig.model_validate({"budget": {"memory_gib": gib}})
    stars = most_stars(settings, several)
    work = Work(
        config=settings,
        points=100_000,
        transformed=100_000,
        stars=stars,
        ray_cells=30.0,
        machine=several,
    )
    assert 0.7 * gib * 2**30 < work.together < gib * 2**30
    assert most_stars(settings, Machine(ranks=8, here=1)) >= stars
