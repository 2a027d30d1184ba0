"""What neighbouring stars share in a fit: learnt on a first map, part of the last one.

A first map has independent noise. Its power by wavelength tells whether the prior's
scales suit; where they do not there is another. If stars are few it has samples. Its
residuals teach the covariance of what the grid cannot resolve; with that for noise the
map and its samples are inferred, and the covariance is learnt once more about them.
Where neighbours tell nothing of one another the noise stays independent, and the
covariance is learnt about its map alone.
"""

from __future__ import annotations

import base64
from dataclasses import replace

import torch
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.posterior import Posterior
from dustmap.residual.field import ResidualField
from dustmap.residual.vecchia import VecchiaPrecision
from pipelines.catalog.schema import FEWEST_VALIDATION
from pipelines.config import FitConfig
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference
from pipelines.planning.selection import Sample
from pipelines.run.folder import posterior_model
from pipelines.run.residual import (
    NO_RESIDUAL,
    fit_residual,
    residual_bytes,
    residual_from,
    residual_in_words,
)
from pipelines.saving.fit_state import FitState

# Of the unresolved variance in the first map's noise. With 1 that map follows its stars
# less than the last one does, and residuals seem larger than they are: errors of
# extinctions were 5% larger in a simulated sky.
_FIRST_SHARE = 0.1
# Where stars are sparse, the mode lies far below the mean density, and stars seem to
# share several times of it. With samples of the first map errors of 4,135 clusters were
# 0.562 and 0.578 mag with two seeds; without 0.573 and 0.636.
_FEW_STARS, _FIRST_SAMPLES = 20_000, 8
# Of held-out stars' log score by a residual that counts [nats]: a few weights fit as
# much by chance.
_LEAST_GAIN = 5.0


def is_wanted(sample: Sample, config: FitConfig) -> bool:
    """Whether the stars' noise is to be correlated, and enough of them can teach it."""
    return config.shares_noise and len(sample.split.validation) >= FEWEST_VALIDATION


def first_samples(config: FitConfig, stars: int) -> int:
    """How many the map has whose residuals teach the covariance."""
    few = min(_FIRST_SAMPLES, config.inference.samples)
    return few if stars <= _FEW_STARS else 0


def first_map(plan: Plan, config: FitConfig, samples: int) -> tuple[Plan, FitConfig]:
    """Plan and configuration of a map with independent noise."""
    inference = config.inference.model_copy(update={"samples": samples})
    share = config.model.subgrid_share or _FIRST_SHARE
    model = config.model.model_copy(update={"subgrid_share": share})
    config = config.model_copy(update={"inference": inference, "model": model})
    return replace(plan, subgrid_share=share), config


def learn_first(
    result: Inference, sample: Sample, config: FitConfig, group: Group
) -> Tensor:
    """The residual of a first map as bytes, on all ranks.

    None if stars tell nothing of one another: held-out ones have no better score with
    it. The first rank learns it.
    """

    def text() -> str:
        posterior, generator = posterior_of(result, config), _generator(config)
        known = sample.stars.select(sample.split.known), len(sample.split.validation)
        try:
            field = fit_residual(posterior, result.plan, *known, generator)
        except FloatingPointError:
            return ""
        if field.gain < _LEAST_GAIN:
            return ""
        return base64.b85encode(residual_bytes(field)).decode()

    found = bytearray(base64.b85decode(group.from_first(text)))
    return torch.frombuffer(found or bytearray(1), dtype=torch.uint8)[: len(found)]


def correlation_of(
    state: FitState, sample: Sample, config: FitConfig
) -> VecchiaPrecision | None:
    """The precision of the stars' noise; ``None`` if it is independent."""
    if state.residual is None or not len(state.residual):
        return None
    rows = torch.arange(len(sample.split.train))
    return VecchiaPrecision.of(_field_of(state.residual), rows, _generator(config))


def last_residual(
    posterior: Posterior, state: FitState, sample: Sample, config: FitConfig
) -> tuple[ResidualField | None, tuple[str, ...]]:
    """What stars share beyond the samples; a line about it, or why there is nothing.

    Its covariance has the form that was chosen on the first map, unless the noise is
    independent.
    """
    if state.residual is None:
        asked = config.model.residual and config.density == "lognormal"
        return None, (NO_RESIDUAL,) if asked else ()
    assert state.result is not None
    stars = sample.stars.select(sample.split.known), len(sample.split.validation)
    plan = state.result.plan
    known = _field_of(state.residual) if len(state.residual) else None
    try:
        field = fit_residual(posterior, plan, *stars, _generator(config), known=known)
    except FloatingPointError as error:
        return None, (f"model.residual: none: {error}",)
    line = residual_in_words(field)
    return field, (line if known is not None else f"{line}; no part of the noise",)


def posterior_of(result: Inference, config: FitConfig) -> Posterior:
    """The posterior without functionals."""
    model = posterior_model(
        result.plan,
        dtype=result.mean.dtype,
        device=result.mean.device,
        seed=config.inference.seed,
    )
    return Posterior(model=model, mean=result.mean, samples=result.samples)


def _field_of(content: Tensor) -> ResidualField:
    return residual_from(content.cpu().numpy().tobytes())


def _generator(config: FitConfig) -> torch.Generator:
    return torch.Generator().manual_seed(config.inference.seed)
