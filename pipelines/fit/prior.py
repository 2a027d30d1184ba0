"""The first stages of a fit: a plan, and the scales of the prior."""

from __future__ import annotations

from dataclasses import replace

from pipelines.base.geometry import Box
from pipelines.fit.budget import machine_of, replanned, require_memory
from pipelines.fit.context import Context
from pipelines.fit.magnitude_limit import selection_beta
from pipelines.fit.stars import FittedStars
from pipelines.fit.state import FitState
from pipelines.planning import prior
from pipelines.planning.planner import make_plan
from pipelines.planning.selection import choose_box
from pipelines.run.surveys import surveys_of


def plan(state: FitState, stars: FittedStars, at: Context) -> FitState:
    """Learn the laws of surveys, and choose box, grid and a first prior."""
    config = at.config

    def learnt() -> FitState:
        laws = surveys_of(stars.stars, stars.split.known, config, stars.source)
        beta = selection_beta(stars.faint, config)
        return replace(state, surveys=laws, selection_beta=beta)

    known = at.by_first(learnt)
    fitted = stars.at(known).fitted

    def make() -> FitState:
        box, notes = choose_box(fitted.positions(), config, stars.source)
        inside = fitted.select(box.contains(fitted.positions()))
        scales, more = prior.start_scales(inside, config)
        machine, notes = machine_of(at), [*notes, *more]
        made = make_plan(scales, box, inside.distance, config, machine, notes=notes)
        planned = replace(known, plan=made, box=Box.of(made.grid))
        require_memory(planned, inside.distance, at)
        return planned

    return at.by_first(make)


def learn_prior(state: FitState, stars: FittedStars, at: Context) -> FitState:
    """Learn the scales of the prior that the configuration does not set."""
    made = state.planned

    def make() -> FitState:
        found = prior.learn_prior(
            made.scales,
            stars.fitted,
            at.config,
            generator=at.device["generator"],
            on_step=at.recorder(alone=True),
            device=at.device["device"],
        )
        return state if found is None else replanned(state, stars, at, *found)

    return at.by_first(make)
