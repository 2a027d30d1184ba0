"""Regression of every place on its nearest rows.

Kernel, lengthscales and noise maximise the log score of some rows, each predicted from
its neighbours among all others. The number of neighbours grows as long as the score
does and the prediction stays within half a minute.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.fitting import LBFGS, EvidenceFit, maximise
from dustmap.gp.neighbours import NeighbourGP
from dustmap.kernels import KERNELS
from dustmap.likelihoods import Gaussian
from pipelines.base.progress import Progress
from pipelines.regress.fitted import FittedModel, Problem
from pipelines.regress.start import NOISES, SCALES, Ranges, ranges_of

_KERNELS = ("matern52", "matern32", "matern12")
# Rows whose log score is maximised; the first of them try the first places, with fewer
# neighbours.
_SCORED, _FEW, _FEW_NEIGHBOURS = 1_000, 300, 16
# How close to the best a kernel stays in the choice [nats per row].
_CLOSE = 0.02
# The second search: so many rows, or so many covariances of neighbours.
_MORE_SCORED, _COVARIANCES = 8_000, 2**23
# Steps of a search, and the derivative by a logarithm at which it ends [nats per row].
_STEPS, _FLAT = 30, 2e-3
# Searches, neighbours chosen anew before each, and the gain at which they end [nats
# per scored row].
_ROUNDS, _STILL = 3, 2e-3
# Neighbours that predict, and the gain for which more are taken [nats per row].
_COUNTS, _GAIN = (32, 64, 100, 200, 400), 5e-3
# Neighbours while scales are learnt; the first number while kernels are compared.
_SEARCHED = _COUNTS[:2]
# What a prediction may take on one core [s], which makes so many operations and so many
# values of a kernel a second.
_PREDICTION, _OPERATIONS, _VALUES = 30.0, 8e9, 5e7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learnt:
    """A model with its number of neighbours, and how its search ended.

    ``score`` is the log score per row of the last search, ``by_count`` those by the
    number of neighbours.
    """

    model: NeighbourGP
    converged: bool
    score: float
    by_count: dict[int, float]


def fit_neighbours(problem: Problem) -> FittedModel:
    """Kernel, scales and noise by the log score of rows, and the number of neighbours.

    Kernels that are close after one search on few rows are both searched on more.
    """
    x, places = problem.x, len(problem.everywhere) - len(problem.x)
    ranges = ranges_of(x)
    order = torch.randperm(len(x), generator=problem.generator)
    with Progress(description="scales", unit="searches") as progress:
        first = {}
        for name in _KERNELS:
            start = _first_place(name, x, problem.y, order[:_SCORED], ranges)
            first[name] = _search(start, ranges)
            progress.update(score=_per_row(first[name]))
        best, *others = sorted(first, key=lambda name: -_per_row(first[name]))
        near = _per_row(first[best]) - _CLOSE
        close = [name for name in others[:1] if _per_row(first[name]) >= near]
        found = {
            name: _settle(first[name].model, order, places, ranges, progress)
            for name in (best, *close)
        }
    best = max(found, key=lambda name: found[name].score)
    rough = {name: _per_row(each) for name, each in first.items()}
    fine = {name: each.score for name, each in found.items()}
    why = f"{KERNELS[best].title} (log score per row: {_listed(rough)}"
    why += f"; of more rows: {_listed(fine)})" if len(fine) > 1 else ")"
    return _fitted(found[best], why)


def prediction_seconds(places: int, count: int) -> float:
    """Estimate of the time of a prediction on one core [s]."""
    return places * (count**3 / 3 / _OPERATIONS + count**2 / _VALUES)


def _first_place(
    name: str,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    scored: Tensor,
    ranges: Ranges,
) -> NeighbourGP:
    """The best of some lengthscales, equal along all axes, and noises."""
    axes = x.shape[1]
    model = NeighbourGP(
        KERNELS[name](lengthscale=[1.0] * axes),
        PointValues(x),
        y,
        noise=1.0,
        mean=float(y.mean()),
        count=_FEW_NEIGHBOURS,
        scored=scored[:_FEW],
    )
    # Distances of random points grow as the root of the dimension.
    places = [
        {
            "lengthscale": torch.full((axes,), scale * math.sqrt(axes))
            .to(x)
            .clamp(*ranges["lengthscale"]),
            "variance": torch.tensor(max(1 - noise, 0.1)),
            "noise": torch.tensor(noise),
        }
        for scale, noise in itertools.product(SCALES, NOISES)
    ]
    models = [model.with_parameters(place) for place in places]
    best = max(models, key=lambda model: model.log_marginal())
    return best.renewed(count=_SEARCHED[0], scored=scored)


def _settle(
    model: NeighbourGP, order: Tensor, places: int, ranges: Ranges, progress: Progress
) -> _Learnt:
    """Scales of more rows, which errors with heavy tails need, and then k."""
    near = _enough(_scores(model, places, _SEARCHED))
    rows = order[: min(_MORE_SCORED, _COVARIANCES // near**2)]
    model, score, still = _learn(model.renewed(scored=rows), near, ranges, progress)
    by_count = _scores(model.renewed(scored=order[:_SCORED]), places, _COUNTS)
    return _Learnt(
        model=model.renewed(count=_enough(by_count)),
        converged=still,
        score=score,
        by_count=by_count,
    )


def _learn(
    model: NeighbourGP, count: int, ranges: Ranges, progress: Progress
) -> tuple[NeighbourGP, float, bool]:
    """Search until neighbours of the lengthscales found bring nothing more.

    The model, its log score per row, and whether that has ceased to grow.
    """
    score = -math.inf
    for _ in range(_ROUNDS):
        before = score
        found = _search(model.renewed(count=count), ranges)
        model, score = found.model, _per_row(found)
        progress.update(score=score)
        if score < before + _STILL:
            return model, score, True
    return model, score, found.converged


def _search(model: NeighbourGP, ranges: Ranges) -> EvidenceFit[NeighbourGP]:
    """Hyperparameters of the largest score with these neighbours."""
    settings = LBFGS(
        max_steps=_STEPS,
        gradient_tolerance=_FLAT * len(model.scored),
        relative_tolerance=1e-5,
        reach=3.0,
        ranges=ranges,
    )
    return maximise(model, settings)


def _scores(
    model: NeighbourGP, places: int, counts: tuple[int, ...]
) -> dict[int, float]:
    """Log score per row by the number of neighbours, while it grows and time allows."""
    scores: dict[int, float] = {}
    for count in counts:
        late = prediction_seconds(places, count) > _PREDICTION
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


def _per_row(found: EvidenceFit[NeighbourGP]) -> float:
    return found.log_marginal / len(found.model.scored)


def _listed(scores: dict[str, float]) -> str:
    """Kernels and their scores, the best first."""
    names = sorted(scores, key=lambda name: -scores[name])
    return ", ".join(f"{KERNELS[name].title} {scores[name]:.3f}" for name in names)


def _fitted(learnt: _Learnt, why: str) -> FittedModel:
    model = learnt.model

    def refit(x: Tensor, y: Tensor) -> FittedModel:
        nobody = torch.empty(0, dtype=torch.int64)
        again = model.renewed(
            functionals=PointValues(x), observations=y, index=None, scored=nobody
        )
        return _fitted(replace(learnt, model=again), why)

    each = ", ".join(f"{score:.3f} of {k}" for k, score in learnt.by_count.items())
    return FittedModel(
        latent=lambda where: model.predict(PointValues(where)),
        likelihood=Gaussian(variance=model.noise),
        kernel=model.kernel,
        mean=float(model.mean),
        why=why,
        converged=learnt.converged,
        messages=(f"neighbours: {model.count}; log score per row {each}",),
        facts={
            "neighbours": model.count,
            "log_score_per_row": learnt.score,
            "log_score_by_neighbours": learnt.by_count,
        },
        refit=refit,
    )
