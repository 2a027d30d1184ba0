"""The residual shared by neighbouring stars, as correlated noise.

Grids represent a band of the prior, and the rest is a covariance of stars
(:mod:`dustmap.residual.covariance`). Only its density along rays, its factor and the
noise are learnt, from a first map's residuals. The map, its samples and its predictions
use the same covariance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from dustmap.inference.scales.band_power import BandPower
from dustmap.keyed_noise import Purpose, torch_stream
from pipelines.base.progress import say
from pipelines.fit.budget import announce, replanned
from pipelines.fit.context import Context
from pipelines.fit.magnitude_limit import extinction_variances
from pipelines.fit.stars import FittedStars
from pipelines.fit.state import FitState
from pipelines.planning.prior import revised_prior
from pipelines.run.residual import learn_remainder, residual_bytes, residual_from


def learn_residual(state: FitState, stars: FittedStars, at: Context) -> FitState:
    """Learn the residual beyond the grids of the last map, on rank 0.

    Where power by wavelength of the first map and of its residual calls for another
    prior, later maps have it, and the residual is learnt again.
    """
    if state.result is None:
        return state
    result, first = state.result, not state.residual
    rows, seed = stars.learners if first else stars.split, at.config.inference.seed
    say("learning the residual that neighbouring stars share beyond the map")

    def learnt() -> bytes:
        field = learn_remainder(
            state.posterior(seed),
            state.planned,
            result.plan.grid,
            stars.stars.select(rows.known),
            len(rows.validation),
            torch_stream(seed, Purpose.VALIDATION),
        )
        return residual_bytes(field)

    residual = at.group.from_first(learnt)
    state = replace(state, residual=residual)
    if first:
        bands = [BandPower(**band) for band in result.facts.get("spectrum", ())]
        alphas = residual_from(residual).weights.tolist()
        about = result.plan, bands, state.learning, at.config, alphas
        # Without the map, which every rank has.
        before = replace(state, result=None)

        def planned() -> FitState:
            found = revised_prior(*about)
            return before if found is None else replanned(before, stars, at, *found)

        state = replace(at.by_first(planned), result=result)
        if once := (state.learning or {}).get("revision"):
            gain = f"the stars' log-likelihood gains {once['gain']:.0f}"
            say(f"the first map calls for another prior: {gain}")
            announce(state, stars, at)
            state = replace(state, residual=at.group.from_first(learnt))
    if state.selection_beta and state.residual:
        own = np.concatenate([stars.split.known, stars.split.test])
        inside = stars.stars.select(own)
        posterior = state.posterior(seed)
        found = extinction_variances(posterior, result.plan, state.residual, inside)
        raised = torch.zeros(len(stars.stars), dtype=torch.float64)
        raised[own] = state.selection_beta * found
        state = replace(state, raised=raised)
    # The last map needs no samples of the second, which would take its memory.
    few = result.samples[:0].clone()
    return replace(state, result=replace(result, samples=few))
