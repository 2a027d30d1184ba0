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
from dustmap.posterior import Posterior
from dustmap.residual.field import ResidualField
from dustmap.residual.vecchia import Vecchia
from pipelines.base.progress import say
from pipelines.catalog.schema import Split, Stars
from pipelines.config import FitConfig
from pipelines.fit.announcing import announce
from pipelines.fit.context import Context
from pipelines.fit.magnitude_limit import extinction_variances, raised_by
from pipelines.fit.prior import replanned
from pipelines.fit.state import FitState
from pipelines.model.problem import Inference
from pipelines.planning.prior import revised_prior
from pipelines.run.folder import posterior_model
from pipelines.run.residual import (
    NO_RESIDUAL,
    learn_remainder,
    residual_about,
    residual_bytes,
    residual_from,
    residual_in_words,
)


def learn_residual(state: FitState, at: Context) -> FitState:
    """Learn the residual beyond the grids of the last map, on rank 0.

    Where power by wavelength of the first map and of its residual calls for another
    prior, later maps have it, and the residual is learnt again.
    """
    if state.result is None:
        return state
    result, first = state.result, not state.residual
    rows = at.learners if first else at.split
    say("learning the residual that neighbouring stars share beyond the map")

    def learnt() -> bytes:
        posterior = posterior_of(result, at.config)
        box, given = result.plan.grid, _stars_of(at, rows)
        field = learn_remainder(posterior, state.planned[0], box, *given)
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
            return before if found is None else replanned(before, at, *found)

        state = replace(at.by_first(planned), result=result)
        if once := (state.learning or {}).get("revision"):
            gain = f"the stars' log-likelihood gains {once['gain']:.0f}"
            say(f"the first map calls for another prior: {gain}")
            announce(state, at)
            state = replace(state, residual=at.group.from_first(learnt))
    if not state.selection_beta or not state.residual:
        return state
    own = np.concatenate([at.split.known, at.split.test])
    posterior, inside = posterior_of(result, at.config), at.stars.select(own)
    found = extinction_variances(posterior, result.plan, state.residual, inside)
    raised = torch.zeros(len(at.stars), dtype=torch.float64)
    raised[own] = state.selection_beta * found
    at.stars = raised_by(at.measured, raised)
    return replace(state, raised=raised)


def correlation_of(state: FitState, at: Context) -> Vecchia | None:
    """Return the precision of the stars' noise; ``None`` if it is independent."""
    if not state.residual:
        return None
    field = residual_from(state.residual)
    rows = torch.arange(len(field.rays) - len(at.split.validation))
    dtype = at.place["dtype"]
    generator = torch_stream(at.config.inference.seed, Purpose.CONDITIONING)
    return Vecchia.of(field, rows, generator, dtype=dtype)


def last_residual(
    posterior: Posterior, state: FitState, at: Context
) -> tuple[ResidualField | None, tuple[str, ...]]:
    """Return the residual shared by stars beyond the samples, and a line about it.

    It has the covariance of the samples' noise.
    """
    config = at.config
    if not state.residual:
        expected = config.model.residual and config.density == "lognormal"
        return None, (NO_RESIDUAL,) if expected else ()
    assert state.result is not None
    known, plan = residual_from(state.residual), state.result.plan
    field = residual_about(known, posterior, plan, *_stars_of(at, at.split))
    return field, (residual_in_words(field),)


def _stars_of(at: Context, rows: Split) -> tuple[Stars, int, torch.Generator]:
    """Return known stars, validation stars last, their number, and a generator."""
    stars = at.stars.select(rows.known)
    seed = at.config.inference.seed
    return stars, len(rows.validation), torch_stream(seed, Purpose.VALIDATION)


def posterior_of(result: Inference, config: FitConfig) -> Posterior:
    """Return the posterior without functionals."""
    model = posterior_model(
        result.plan,
        dtype=result.mean.dtype,
        device=result.mean.device,
        seed=config.inference.seed,
    )
    return Posterior(model=model, mean=result.mean, samples=result.samples)
