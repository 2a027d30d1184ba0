"""Regression of every place on its nearest rows.

Kernel and first scales are those of the exact evidence of some rows. Lengthscales and
noise then maximise the log score of rows, each predicted from its neighbours among all
others. The number of neighbours grows as long as the score does and the prediction of
as many places as there are rows stays within half a minute.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.fitting import LBFGS, maximise
from dustmap.gp.neighbours import NeighbourGP
from dustmap.likelihoods import Likelihood
from pipelines.base.progress import Progress
from pipelines.regress.fitted import FittedField, field_of
from pipelines.regress.start import find_start

# Rows whose log score decides on the number of neighbours.
_SCORED = 1_000
# The search: so many rows, or so many covariances of neighbours.
_SEARCH_ROWS, _COVARIANCES = 8_000, 2**23
# Steps of a search, and the derivative by a logarithm at which it ends [nats per row].
_STEPS, _FLAT = 30, 2e-3
# Searches, neighbours chosen anew before each, and the gain at which they end [nats
# per scored row].
_ROUNDS, _STILL = 3, 2e-3
# Neighbours that predict, and the gain for which more are taken [nats per row].
_COUNTS, _GAIN = (32, 64, 100, 200, 400), 5e-3
# Neighbours while scales are learnt.
_SEARCHED = _COUNTS[:2]
# What a prediction may take on one core [s], which makes so many operations and so many
# values of a kernel a second.
_PREDICTION, _OPERATIONS, _VALUES = 30.0, 8e9, 5e7


def fit_neighbours(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    kind: type[Likelihood],
    generator: torch.Generator,
) -> FittedField:
    """Scales and noise by the log score of rows, and the number of neighbours."""
    tame = kind.tamed(y)
    start = find_start(x, tame, generator)
    order = torch.randperm(len(x), generator=generator)
    model = NeighbourGP(
        start.kernel,
        PointValues(x),
        tame,
        noise=start.noise,
        mean=start.mean,
        count=_SEARCHED[0],
        scored=order[:_SCORED],
    )
    near = _enough(log_scores(model, _SEARCHED))
    # Errors with heavy tails need many rows.
    rows = order[: min(_SEARCH_ROWS, _COVARIANCES // near**2)]
    model, score, converged = model.renewed(scored=rows), -math.inf, False
    settings = LBFGS(
        max_steps=_STEPS,
        gradient_tolerance=_FLAT * len(rows),
        relative_tolerance=1e-5,
        reach=3.0,
        ranges=start.ranges,
    )
    with Progress(description="scales", unit="searches") as progress:
        for _ in range(_ROUNDS):
            before = score
            # Neighbours of the lengthscales at hand; a search ends the rounds where
            # those that it found bring nothing more.
            found = maximise(model.renewed(count=near), settings)
            model, score = found.model, found.log_marginal / len(rows)
            progress.update(score=score)
            still = score < before + _STILL
            converged = still or found.converged
            if still:
                break
    by_count = log_scores(model.renewed(scored=order[:_SCORED]), _COUNTS)
    nobody = torch.empty(0, dtype=torch.int64)
    model = model.renewed(count=_enough(by_count), scored=nobody)
    each = ", ".join(f"{score:.3f} of {k}" for k, score in by_count.items())
    return field_of(
        model,
        y,
        kind,
        why=start.why,
        converged=converged,
        messages=(f"neighbours: {model.count}; log score per row {each}",),
        facts={
            "neighbours": model.count,
            "log_score_per_row": score,
            "log_score_by_neighbours": by_count,
        },
    )


def prediction_seconds(places: int, count: int) -> float:
    """Estimate the time of a prediction on one core [s]."""
    return places * (count**3 / 3 / _OPERATIONS + count**2 / _VALUES)


def log_scores(model: NeighbourGP, counts: tuple[int, ...]) -> dict[int, float]:
    """Log score per row by the number of neighbours, while it grows and time allows."""
    scores: dict[int, float] = {}
    for count in counts:
        late = prediction_seconds(len(model), count) > _PREDICTION
        if scores and (late or count >= len(model)):
            break
        scores[count] = float(model.renewed(count=count).log_scores().mean())
        if scores[count] < max(scores.values()) or _enough(scores) < count:
            break
    return scores


def _enough(scores: dict[int, float]) -> int:
    """The fewest neighbours whose score is within the gain of the best."""
    best = max(scores.values())
    return min(k for k, score in scores.items() if score >= best - _GAIN)
