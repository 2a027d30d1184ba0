"""What a finished map is worth: held-out stars, by it and by their neighbours alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from pipelines.base.progress import say
from pipelines.config import FitConfig
from pipelines.fit.context import Context
from pipelines.fit.shared_noise import last_residual, posterior_of
from pipelines.fit.state import FitState, Judgement
from pipelines.run.assessment import crossed, sight_line_lengths
from pipelines.run.baseline import NO_BASELINE, predict_baseline
from pipelines.run.held_out import held_out_score
from pipelines.run.predict import predict_columns
from pipelines.run.residual import residual_bytes

# Seconds that the held-out stars, and their baseline, take on two idle cores, measured
# for 6,000 and 57,000 stars; and the least part of the budget kept for them.
_TESTS, _BASELINE, _LEAST = 5.0, 8.0, 0.05


def seconds_to_judge(config: FitConfig) -> float:
    """Return what an inference leaves of ``budget.minutes`` for this stage [s]."""
    tested = _TESTS + _BASELINE if config.data.holdout > 0 else 0.0
    return max(tested, _LEAST * 60 * config.budget.minutes)


def judge(state: FitState, at: Context) -> FitState:
    """Predict the held-out stars, by the first rank; all find which cells rays cross.

    Learn what neighbours share beyond the samples, which is part of the predictions.
    """
    assert state.result is not None
    result, config = state.result, at.config
    test = at.stars.select(at.split.test)
    support = tuple(sight_line_lengths(result.plan, at.fitted, at.group))
    judged = Judgement(support=support)
    if not at.group.first:
        return replace(state, judgement=judged)
    posterior = posterior_of(result, config)
    residual, told = last_residual(posterior, state, at)
    columns: dict[str, np.ndarray] = {}
    if len(test):
        say("predicting the held-out stars")
        posterior = replace(posterior, residual=residual)
        columns = predict_columns(result.plan, posterior, test)
        beside, said = _baseline(at)
        columns, told = columns | beside, (*told, *said)
    judged = replace(
        judged,
        columns={name: torch.from_numpy(column) for name, column in columns.items()},
        score=held_out_score(columns, test, result.plan),
        messages=(*result.messages, *told, crossed(support[0])),
        residual=None if residual is None else residual_bytes(residual),
    )
    return replace(state, judgement=judged)


def _baseline(at: Context) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Predict the held-out stars from their neighbours, or say why this is not done."""
    minutes = at.config.budget.minutes
    if at.seconds_left < _BASELINE:
        return {}, (
            "no predictions without a map to compare with: they would not end within "
            f"budget.minutes = {minutes:g} (`dustmap fit --quick` makes them)",
        )
    say("predicting them from their neighbours")
    generator = torch.Generator().manual_seed(at.config.inference.seed)
    try:
        known, test = (at.stars.select(r) for r in (at.split.known, at.split.test))
        found = predict_baseline(known, test, generator)
    except FloatingPointError as error:
        return {}, (f"no baseline: {error}",)
    return ({}, (NO_BASELINE,)) if found is None else (found._asdict(), ())
