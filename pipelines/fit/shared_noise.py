"""What neighbouring stars share: learnt on a first map, part of the last one's noise.

The residuals of a first map teach the covariance of what the grid cannot resolve. With
that for noise the map and its samples are inferred, and the covariance is learnt once
more about them. Where neighbouring residuals are uncorrelated the noise stays
independent, and the covariance is learnt about its map alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dustmap.posterior import Posterior
from dustmap.residual.field import ResidualField
from dustmap.residual.vecchia import Vecchia
from pipelines.base.progress import say
from pipelines.catalog.schema import FEWEST_VALIDATION
from pipelines.config import FitConfig
from pipelines.fit.context import Context
from pipelines.fit.state import FitState
from pipelines.model.problem import Inference
from pipelines.run.folder import posterior_model
from pipelines.run.residual import (
    NO_RESIDUAL,
    fit_residual,
    residual_bytes,
    residual_from,
    residual_in_words,
)

# Least gain of held-out stars' log score by a residual that counts [nats]: a few
# weights fit as much by chance.
_LEAST_GAIN = 5.0


def is_wanted(at: Context) -> bool:
    """Return whether noise is to be correlated, and enough stars can teach it."""
    return at.config.shares_noise and len(at.split.validation) >= FEWEST_VALIDATION


def learn_residual(state: FitState, at: Context) -> FitState:
    """Learn what neighbouring stars share beyond the first map, on the first rank.

    It is empty if held-out stars have no better score with it.
    """
    if state.result is None:
        return state
    result = state.result
    say("learning what neighbouring stars share beyond the map")

    def learnt() -> bytes:
        posterior, generator = posterior_of(result, at.config), _generator(at.config)
        known = at.stars.select(at.split.known), len(at.split.validation)
        try:
            field = fit_residual(posterior, result.plan, *known, generator)
        except FloatingPointError:
            return b""
        return b"" if field.gain < _LEAST_GAIN else residual_bytes(field)

    return replace(state, residual=at.group.from_first(learnt))


def correlation_of(state: FitState, at: Context) -> Vecchia | None:
    """Return the precision of the stars' noise; ``None`` if it is independent."""
    if not state.residual:
        return None
    rows, generator = torch.arange(len(at.fitted)), _generator(at.config)
    return Vecchia.of(residual_from(state.residual), rows, generator)


def last_residual(
    posterior: Posterior, state: FitState, at: Context
) -> tuple[ResidualField | None, tuple[str, ...]]:
    """Return what stars share beyond the samples, and a line about it.

    Its covariance has the form that was chosen on the first map, unless the noise is
    independent.
    """
    config = at.config
    if state.residual is None:
        expected = config.model.residual and config.density == "lognormal"
        return None, (NO_RESIDUAL,) if expected else ()
    assert state.result is not None
    stars = at.stars.select(at.split.known), len(at.split.validation)
    known = residual_from(state.residual) if state.residual else None
    try:
        field = fit_residual(
            posterior, state.result.plan, *stars, _generator(config), known=known
        )
    except FloatingPointError as error:
        return None, (f"model.residual: none: {error}",)
    line = residual_in_words(field)
    return field, (line if known is not None else f"{line}; no part of the noise",)


def posterior_of(result: Inference, config: FitConfig) -> Posterior:
    """Return the posterior without functionals."""
    model = posterior_model(
        result.plan,
        dtype=result.mean.dtype,
        device=result.mean.device,
        seed=config.inference.seed,
    )
    return Posterior(model=model, mean=result.mean, samples=result.samples)


def _generator(config: FitConfig) -> torch.Generator:
    return torch.Generator().manual_seed(config.inference.seed)
