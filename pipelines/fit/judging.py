"""Predictions of held-out stars by a finished map and by their neighbours alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.residual.field import ResidualField
from dustmap.residual.learning import GridFree
from dustmap.residual.stacking import learn_stack
from pipelines.base.progress import say
from pipelines.catalog.schema import Stars
from pipelines.fit.context import Context
from pipelines.fit.shared_noise import last_residual, posterior_of
from pipelines.fit.state import FitState
from pipelines.run.assessment import describe_support, sight_line_lengths
from pipelines.run.baseline import NO_BASELINE, krige_stars, learn_baseline
from pipelines.run.held_out import held_out_score, measured_columns, with_law
from pipelines.run.predict import predict_columns, stacked

# Seconds for the held-out stars, and their baseline, on two idle cores, measured for
# 6,000 and 57,000 stars; and the smallest share of the budget reserved for them.
_TESTS, _BASELINE, _LEAST = 5.0, 8.0, 0.05


def seconds_to_judge(at: Context) -> float:
    """Return the part of ``budget.minutes`` reserved for this stage [s]."""
    tested = _TESTS + _BASELINE if at.config.data.holdout > 0 else 0.0
    return max(tested, _LEAST * at.config.budget.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An assessment of a finished map.

    ``supports`` are lengths of sight lines in the cells of every grid [cells], the
    coarsest first; ``columns`` predictions of the held-out stars, ``score`` their
    errors and coverage, ``messages`` lines for the user. ``residual`` is the residual
    shared by neighbours beyond the samples.
    """

    supports: list[torch.Tensor]
    columns: dict[str, np.ndarray]
    score: dict[str, float]
    messages: tuple[str, ...]
    residual: ResidualField | None


def judge(state: FitState, at: Context) -> Judgement | None:
    """Find the cells that rays cross; rank 0 predicts the held-out stars.

    The predictions include the residual shared by neighbours, calibrated here. The
    validation stars, predicted from the others, determine the law of measurements.
    """
    assert state.result is not None
    result, plan = state.result, state.result.plan
    supports = sight_line_lengths(plan, at.fitted, at.group)
    if not at.group.first:
        return None
    test, posterior = at.stars.select(at.split.test), posterior_of(result, at.config)
    residual, lines = last_residual(posterior, state, at)
    if state.raised is not None:
        raised = state.raised[at.split.known]
        middle, most = float(raised.median()), float(raised.max())
        said = f"{middle:.2g} mag at the median and {most:.2g} mag at most"
        lines = (*lines, f"magnitude limit: extinctions raised by {said}")
    unseen = at.stars.select(at.split.validation)
    kriging, beside, more = _baseline(at, test) if len(test) else (None, {}, ())
    lines = (*lines, *more)
    if residual is not None and len(unseen):
        blind = replace(posterior, residual=residual.without_last(len(unseen)))
        known = predict_columns(plan, blind, unseen)
        # Of very many stars kriging has only those near the held-out ones.
        if kriging is not None and len(kriging.observed) == len(residual.rays):
            assert unseen.extinction is not None
            moments = known["extinction_mean"], known["extinction_std"]
            try:
                stack = learn_stack(kriging, *moments, unseen.extinction)
            except FloatingPointError as error:
                stack, lines = None, (*lines, f"map and kriging not joined: {error}")
            if stack is not None:
                gain = f"{100 * stack.gain:.2g}% less mean absolute error"
                lines = (*lines, f"extinctions of stars: map and kriging, {gain}")
                without = stack.without_last(len(unseen))
                known |= stacked(known, without, torch.as_tensor(unseen.positions()))
            residual = replace(residual, stack=stack)
        residual = with_law(residual, unseen, plan, known)
    columns: dict[str, np.ndarray] = {}
    if len(test):
        say("predicting the held-out stars")
        columns = predict_columns(plan, replace(posterior, residual=residual), test)
        columns |= measured_columns(residual, test, plan, columns)
        columns |= beside
    score = held_out_score(columns, test, plan)
    return Judgement(
        supports=supports,
        columns=columns,
        score=score,
        messages=(*result.messages, *lines, describe_support(supports[0])),
        residual=residual,
    )


def _baseline(
    at: Context, test: Stars
) -> tuple[GridFree | None, dict[str, np.ndarray], tuple[str, ...]]:
    """Predict the held-out stars from their neighbours, or explain the omission."""
    if at.seconds_left < _BASELINE:
        why = f"they would exceed budget.minutes = {at.config.budget.minutes:g}"
        return None, {}, (f"no baseline predictions without a map: {why}",)
    say("predicting the held-out stars from their neighbours")
    generator = torch_stream(at.config.inference.seed, Purpose.BASELINE)
    try:
        kriging = learn_baseline(at.stars.select(at.split.known), test, generator)
        if kriging is None:
            return None, {}, (NO_BASELINE,)
        return kriging, krige_stars(kriging, test)._asdict(), ()
    except FloatingPointError as error:
        return None, {}, (f"no baseline: {error}",)
