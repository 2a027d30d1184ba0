"""The first stages of a fit: a plan, and the scales of the prior."""

from __future__ import annotations

from dataclasses import replace

from pipelines.base.geometry import Box
from pipelines.fit.announcing import refuse_too_large
from pipelines.fit.context import Context
from pipelines.fit.state import FitState
from pipelines.planning.learning import ChooseGrid, learn_plan
from pipelines.planning.planner import grid_chooser, make_plan
from pipelines.planning.selection import planning_view


def plan(state: FitState, at: Context) -> FitState:
    """Choose box, grid and a first prior, and keep the stars in the box."""
    config, group = at.config, at.group

    def make() -> FitState:
        view = planning_view(at.sample.train, config)
        shared = {"ranks": group.size, "here": group.here}
        made, work, speed = make_plan(view, config, **at.place, **shared)
        if made.is_full_batch:
            refuse_too_large(made, work, config)
        box = Box(lower=made.grid.lower, upper=made.grid.upper)
        return replace(state, plan=made, speed=speed, box=box)

    state = at.by_first(make)
    assert state.box is not None
    at.keep_inside(state.box)
    return state


def learn_prior(state: FitState, at: Context) -> FitState:
    """Learn the scales of the prior that the configuration leaves open."""
    made, _ = state.planned

    def make() -> FitState:
        with at.steps(alone=True) as on_step:
            found = learn_plan(
                made,
                at.data,
                at.config,
                generator=at.place["generator"],
                on_step=on_step,
                choose_grid=chooser(state, at),
            )
        if found is None:
            return state
        return replace(state, plan=found.plan, learning=found.facts)

    return at.by_first(make)


def chooser(state: FitState, at: Context) -> ChooseGrid | None:
    """Return the function that chooses another grid for other scales."""
    made, speed = state.planned
    return grid_chooser(
        made,
        at.sample.train.distance,
        at.config,
        speed,
        ranks=at.group.size,
        here=at.group.here,
    )
