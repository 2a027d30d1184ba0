"""The first stages of a fit: a plan, and the scales of the prior."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dustmap.inference.scales.prior_scales import PriorScales
from pipelines.base.geometry import Box
from pipelines.fit.announcing import require_memory
from pipelines.fit.context import Context
from pipelines.fit.magnitude_limit import selection_beta
from pipelines.fit.state import FitState
from pipelines.model import cost
from pipelines.planning import prior
from pipelines.planning.planner import RAISED, make_plan
from pipelines.planning.selection import choose_box
from pipelines.run.surveys import calibrated, surveys_of


def plan(state: FitState, at: Context) -> FitState:
    """Choose box, grid and a first prior, and keep the stars in the box."""
    config = at.config
    if not state.surveys:

        def learnt() -> FitState:
            laws = surveys_of(at.stars, at.split.known, config, at.source)
            beta = selection_beta(at.stars, config)
            return replace(state, surveys=laws, selection_beta=beta)

        state = at.by_first(learnt)
        at.stars = at.measured = calibrated(at.stars, state.surveys)

    def make() -> FitState:
        box, notes = choose_box(at.fitted.positions(), config, at.source)
        stars = at.fitted.select(box.contains(at.fitted.positions()))
        scales, more = prior.start_scales(stars, config)
        speed = cost.REFERENCE
        if config.budget.minutes is not None:
            speed = cost.measure(at.place["dtype"], at.place["device"])
        made = make_plan(
            scales,
            box,
            stars.distance,
            config,
            speed,
            ranks=at.group.size,
            here=at.group.here,
            notes=[*notes, *more],
        )
        require_memory(made, stars.distance, at)
        box = Box.of(made.grid)
        return replace(state, plan=made, speed=speed, box=box)

    state = at.by_first(make)
    assert state.box is not None
    at.keep_inside(state.box)
    return state


def learn_prior(state: FitState, at: Context) -> FitState:
    """Learn the scales of the prior that the configuration does not set."""
    made, _ = state.planned

    def make() -> FitState:
        generator = at.place["generator"]
        with at.steps(alone=True) as on_step:
            found = prior.learn_prior(
                made.scales, at.fitted, at.config, generator=generator, on_step=on_step
            )
        return state if found is None else replanned(state, at, *found)

    return at.by_first(make)


def replanned(
    state: FitState, at: Context, scales: PriorScales, learning: dict[str, Any]
) -> FitState:
    """Return a new plan for learnt scales in the same box."""
    made, speed = state.planned
    notes = tuple(note for note in made.notes if not note.startswith(RAISED))
    if not learning["converged"]:
        notes = (*notes, prior.NOT_SETTLED)
    revised = make_plan(
        scales,
        Box.of(made.grid),
        at.fitted.distance,
        at.config,
        speed,
        ranks=at.group.size,
        here=at.group.here,
        notes=notes,
        resolved=not learning["at_edge"],
    )
    return replace(state, plan=revised, learning=learning)
