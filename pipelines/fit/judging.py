"""Predictions of held-out stars by a finished map and by their neighbours alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.posterior import Posterior
from dustmap.residual.field import ResidualField
from dustmap.residual.learning import LocalMeanKriging
from dustmap.residual.stacking import learn_stack
from pipelines.base.progress import say
from pipelines.catalog.schema import Stars
from pipelines.fit.context import Context
from pipelines.fit.stars import FittedStars
from pipelines.fit.state import FitState, Judgement
from pipelines.run.assessment import describe_support, sight_line_lengths
from pipelines.run.held_out import held_out_score, measured_columns, with_law
from pipelines.run.kriged import NO_BASELINE, krige_stars, learn_baseline
from pipelines.run.predict import predict_columns, stacked
from pipelines.run.residual import (
    NO_RESIDUAL,
    residual_about,
    residual_bytes,
    residual_from,
    residual_in_words,
)


def judge(state: FitState, stars: FittedStars, at: Context) -> FitState:
    """Find the cells that rays cross; rank 0 predicts the held-out stars.

    The predictions include the residual shared by neighbours, calibrated here. The
    validation stars, predicted from the others, determine the law of measurements.
    """
    assert state.result is not None
    result, plan = state.result, state.result.plan
    supports = sight_line_lengths(plan, stars.fitted, at.group)
    if not at.group.first:
        return state
    test = stars.stars.select(stars.split.test)
    posterior = state.posterior(at.config.inference.seed)
    residual, lines = _last_residual(posterior, state, stars, at)
    doubts: tuple[str, ...] = ()
    if residual is None:
        lines, doubts = (), lines
    if state.raised is not None:
        raised = state.raised[stars.split.known]
        middle, most = float(raised.median()), float(raised.max())
        said = f"{middle:.2g} mag at the median and {most:.2g} mag at most"
        lines = (*lines, f"magnitude limit: extinctions raised by {said}")
    unseen = stars.stars.select(stars.split.validation)
    kriging, beside = None, {}
    if len(test):
        kriging, beside, more = _baseline(stars, at, test)
        doubts = (*doubts, *more)
    if residual is not None and len(unseen):
        seen = torch.arange(len(residual.rays) - len(unseen))
        blind = replace(posterior, residual=residual.select(seen))
        known = predict_columns(plan, blind, unseen)
        # Of very many stars kriging has only those near the held-out ones.
        if kriging is not None and len(kriging.observed) == len(residual.rays):
            assert unseen.extinction is not None
            moments = known["extinction_mean"], known["extinction_std"]
            try:
                stack = learn_stack(kriging, *moments, unseen.extinction)
            except FloatingPointError as error:
                stack, failed = None, f"map and kriging not joined: {error}"
                doubts = (*doubts, failed)
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
    judged = Judgement(
        supports=tuple(supports),
        columns={name: torch.as_tensor(column) for name, column in columns.items()},
        score=held_out_score(columns, test, plan),
        messages=(*result.messages, *lines, *doubts, describe_support(supports[0])),
        warnings=(*result.warnings, *doubts),
        residual=b"" if residual is None else residual_bytes(residual),
    )
    return replace(state, judged=judged)


def _last_residual(
    posterior: Posterior, state: FitState, stars: FittedStars, at: Context
) -> tuple[ResidualField | None, tuple[str, ...]]:
    """Return the residual shared by stars beyond the samples, and a line about it.

    It has the covariance of the samples' noise.
    """
    config, rows = at.config, stars.split
    if not state.residual:
        expected = config.model.residual and config.density == "lognormal"
        return None, (NO_RESIDUAL,) if expected else ()
    assert state.result is not None
    field = residual_about(
        residual_from(state.residual, device=posterior.mean.device),
        posterior,
        state.result.plan,
        stars.stars.select(rows.known),
        len(rows.validation),
        torch_stream(config.inference.seed, Purpose.VALIDATION),
    )
    return field, (residual_in_words(field),)


def _baseline(
    stars: FittedStars, at: Context, test: Stars
) -> tuple[LocalMeanKriging | None, dict[str, np.ndarray], tuple[str, ...]]:
    """Predict the held-out stars from their neighbours, or explain the omission."""
    say("predicting the held-out stars from their neighbours")
    generator = torch_stream(at.config.inference.seed, Purpose.BASELINE)
    try:
        known = stars.stars.select(stars.split.known)
        kriging = learn_baseline(known, test, generator, at.device["device"])
        if kriging is None:
            return None, {}, (NO_BASELINE,)
        return kriging, krige_stars(kriging, test)._asdict(), ()
    except FloatingPointError as error:
        return None, {}, (f"no baseline: {error}",)
