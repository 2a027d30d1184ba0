#!/usr/bin/env python3
"""Values and derivatives of one function together (section 5.3, Fig. 2).

100 values with noise 0.05 and 20 derivatives with noise 0.2 of a random neural network
with sinusoidal units on [-1, 1]; squared exponential kernel of variance 0.5 and
lengthscale 0.1, zero mean. HIP-GP (full-rank q at its optimum S4-S5, at most 20 PCG
iterations a row) and SVGP (one natural step from the prior, a nugget of 1e-8 k(0))
beside the exact GP, with and without the derivatives. The paper has one function whose
weights it does not state, and does not state M: here are 20 draws and 41 points (a
lengthscale of 2 spacings), so that only the ratios can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from derivative_methods import (
    EXACT,
    HIPGP,
    SVGP,
    Data,
    Predicted,
    all_methods,
    draw_data,
    hipgp,
)
from jaxtyping import Float
from matplotlib.figure import Figure
from paper_report import (
    Comparison,
    Report,
    Size,
    parser,
    plot,
    root_mean_square,
    size_of,
)
from torch import Tensor

from pipelines.base.progress import say

_WITH, _WITHOUT = "with", "without"
# Fig. 2c: RMSE and uncertainty, which is the mean standard deviation.
_PAPER = {HIPGP: (0.0192, 0.0198), SVGP: (0.0192, 0.0206), EXACT: (0.0192, 0.0198)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run: draws of function and data, numbers of inducing points."""

    draws: int
    points: tuple[int, ...]


_SHOWN = 41
PLANS: dict[Size, Plan] = {
    "quick": Plan(draws=2, points=(31, 41)),
    "default": Plan(draws=20, points=(21, 31, 41, 51, 101)),
}


class Score(NamedTuple):
    """At the test points: RMSE, and the mean standard deviation."""

    rmse: float
    uncertainty: float


def score(found: Predicted, truth: Float[Tensor, " t"]) -> Score:
    """Judge a prediction against the noise-free function."""
    uncertainty = found.variance.clamp(min=0).sqrt().mean()
    return Score(root_mean_square(found.mean - truth), float(uncertainty))


# By number of points, whether there are derivatives, and method: one for each draw.
Scores = dict[tuple[int, str, str], list[Score]]


def run(plan: Plan, seed: int) -> tuple[Scores, Data]:
    """Score all draws; return the first draw as well."""
    scores: Scores = {}
    drawn = [draw_data(seed + number) for number in range(plan.draws)]
    for data in drawn:
        for points in plan.points:
            for name in (_WITH, _WITHOUT):
                found = all_methods(data, points, derivatives=name == _WITH)
                for method, moments in found.items():
                    key = (points, name, method)
                    scores.setdefault(key, []).append(score(moments, data.truth))
    say(f"{len(drawn)} draws")
    return scores, drawn[0]


def main() -> None:
    options = parser(__doc__).parse_args()
    report = Report.of("derivative_gp", __doc__, options)
    plan = PLANS[size_of(options)]
    scores, first = run(plan, options.seed)
    report.comparisons = comparisons(scores, plan)
    report.tables = {
        "Means over the draws": [
            {
                "derivatives": name,
                "M": points,
                "method": method,
                **mean_score(own)._asdict(),
            }
            for (points, name, method), own in scores.items()
        ]
    }
    report.write(options.output, draw(first))


def mean_score(scores: Sequence[Score]) -> Score:
    """Average over the draws."""
    return Score(*np.mean(scores, axis=0).tolist())


def farthest(scores: Sequence[Score], exact_ones: Sequence[Score]) -> Score:
    """Find the ratios to the exact GP's that are farthest from one, over the draws."""
    ratios = np.array(scores) / np.array(exact_ones)
    rows = np.abs(ratios - 1).argmax(axis=0)
    return Score(*(float(ratios[row, k]) for k, row in enumerate(rows)))


def comparisons(scores: Scores, plan: Plan) -> list[Comparison]:
    """Compare Fig. 2c, its ratios, and what the derivatives bring."""
    found = []
    for method, paper in _PAPER.items():
        mean = mean_score(scores[_SHOWN, _WITH, method])
        for name, theirs, ours in zip(Score._fields, paper, mean, strict=True):
            found.append(
                Comparison(
                    what=f"{name}, {method}",
                    source="Fig. 2c",
                    paper=theirs,
                    here=f"{ours:.4f}",
                    remark=f"here: mean of {plan.draws} draws of another function",
                )
            )
    for method in (HIPGP, SVGP):
        key = (_SHOWN, _WITH)
        ratio = farthest(scores[*key, method], scores[*key, EXACT])
        for k, (name, ours) in enumerate(ratio._asdict().items()):
            theirs = _PAPER[method][k] / _PAPER[EXACT][k]
            found.append(
                Comparison(
                    what=f"{name}, {method} / exact GP",
                    source="Fig. 2c",
                    paper=f"{theirs:.2f}",
                    here=f"{ours:.6f}",
                    remark=f"here: M = {_SHOWN}, the draw farthest from 1",
                )
            )
    seen, unseen = (
        mean_score(scores[_SHOWN, name, HIPGP]) for name in (_WITH, _WITHOUT)
    )
    found += [
        Comparison(
            what=f"{name}, HIP-GP, with / without derivatives",
            source="Fig. 2b",
            paper="< 1 (a drawing)",
            here=ours / theirs,
            remark="here: ratio of the means",
        )
        for name, ours, theirs in zip(Score._fields, seen, unseen, strict=True)
    ]
    return found


def draw(data: Data) -> Figure:
    """Draw HIP-GP's posterior with derivatives, as Fig. 2b."""
    x = torch.linspace(-1, 1, 401, dtype=torch.float64)
    curve = replace(data, test=x[:, None])
    found = hipgp(curve, _SHOWN, derivatives=True)
    std = found.variance.clamp(min=0).sqrt()
    lines = {
        "truth": curve.truth,
        "mean": found.mean,
        "mean - std": found.mean - std,
        "mean + std": found.mean + std,
    }
    curves = {name: (x.tolist(), y.tolist()) for name, y in lines.items()}
    return plot(curves, "x", "f(x)", ("linear", "linear"))


if __name__ == "__main__":
    main()
