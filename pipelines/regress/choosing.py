"""The method of a regression: as asked for, or the best on rows that are held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from pipelines.base.progress import say
from pipelines.base.timing import in_words
from pipelines.regress.dense import fit_exact, fit_sgpr
from pipelines.regress.fitted import FittedModel, Problem
from pipelines.regress.neighbours import fit_neighbours
from pipelines.regress.options import Options
from pipelines.regress.torus import fit_torus
from pipelines.regress.variational import fit_variational

_METHODS: dict[str, Callable[[Problem], FittedModel]] = {
    "exact": fit_exact,
    "neighbours": fit_neighbours,
    "sgpr": fit_sgpr,
    "hip": fit_torus,
    "svgp": fit_variational,
}
# Held-out rows: at most so many, and such a share.
_HELD, _SHARE = 1_000, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A fitted model and how its method was chosen.

    Parameters
    ----------
    method, why, model
        The method, the reason for people, and its fit to all rows.
    tried
        Mean log density of the held-out rows, standardised target [nats], by method.
    untried
        Estimated times [s] of the methods that the budget excludes.
    """

    method: str
    why: str
    model: FittedModel
    tried: dict[str, float] = field(default_factory=dict)
    untried: dict[str, float] = field(default_factory=dict)


def choose(problem: Problem, options: Options) -> Choice:
    """Fit the method that is asked for, or compare those that can have the table."""
    rows, axes = problem.x.shape
    names, why = options.candidates(rows, axes)
    if len(names) == 1:
        return Choice(method=names[0], why=why, model=_METHODS[names[0]](problem))
    times = {name: seconds(name, rows, axes) for name in names}
    able = _affordable(times, options.time_budget)
    tried, models = _compare(problem, {name: times[name] for name in able})
    best = max(tried, key=lambda name: tried[name])
    refit = models[best].refit
    say(f"{best} predicts held-out rows best: fitting it to all rows")
    every = refit(problem.x, problem.y) if refit else _METHODS[best](problem)
    return Choice(
        method=best,
        why="the only one tried" if len(tried) == 1 else "the best on held-out rows",
        model=every,
        tried=tried,
        untried={name: s for name, s in times.items() if name not in tried},
    )


def seconds(method: str, rows: int, axes: int) -> float:
    """Estimated time of a comparison on one core [s].

    From measured CPU times; methods that have to be fitted again to all rows count
    twice.
    """
    if method == "neighbours":
        return 20.0
    if method == "hip":
        return (120.0 if axes < 3 else 60.0) * (rows / 1e4) ** 0.35
    if method == "exact":
        return 2 * (60.0 + rows**3 / 1e10)
    return 2 * (20.0 + 0.06 * min(3_000.0, max(800.0, 30 * rows / 256)))


def _affordable(times: dict[str, float], budget: float) -> list[str]:
    """The fastest, and the next ones while all together keep the budget."""
    chosen, spent = [], 0.0
    for name in sorted(times, key=lambda name: times[name]):
        spent += times[name]
        if chosen and spent > budget:
            break
        chosen.append(name)
    return chosen


def _compare(
    problem: Problem, times: dict[str, float]
) -> tuple[dict[str, float], dict[str, FittedModel]]:
    """Mean log density of held-out rows by method, and the fits to the others."""
    rows = len(problem.x)
    order = torch.randperm(rows, generator=problem.generator)
    count = min(_HELD, int(_SHARE * rows))
    held, kept = order[:count], order[count:]
    part = replace(problem, x=problem.x[kept], y=problem.y[kept])
    scores, models = {}, {}
    left = sum(times.values())
    for name, seconds in times.items():
        say(f"trying {name}; about {in_words(left)} left")
        left -= seconds
        models[name] = _METHODS[name](part)
    for name, model in models.items():
        latent = model.latent(problem.x[held])
        density = model.likelihood.predictive_log_density(problem.y[held], *latent)
        scores[name] = float(density.mean())
    return scores, models
