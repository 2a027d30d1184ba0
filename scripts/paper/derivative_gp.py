#!/usr/bin/env python3
"""Values and derivatives of one function together (section 5.3, Fig. 2).

100 values with noise 0.05 and 20 derivatives with noise 0.2 of a random neural network
with sinusoidal units on [-1, 1]; squared exponential kernel of variance 0.5 and
lengthscale 0.1, zero mean. HIP-GP (full-rank q, at most 20 PCG iterations a row) and
SVGP beside the exact GP, with and without the derivatives.
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
    ITERATIONS,
    JITTER,
    KERNEL,
    SVGP,
    Data,
    Predicted,
    all_methods,
    draw_data,
    hipgp,
)
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_report import Comparison, Report, Row, Size, parser, size_of
from torch import Tensor

from pipelines.base.progress import say
from pipelines.figures.style import BLACK, BLUE, ORANGE

_WITH, _WITHOUT = "with", "without"
# Fig. 2c: RMSE and uncertainty, which is the mean standard deviation.
_PAPER = {HIPGP: (0.0192, 0.0198), SVGP: (0.0192, 0.0206), EXACT: (0.0192, 0.0198)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run: draws of function and data, numbers of inducing points."""

    draws: int
    points: tuple[int, ...]
    shown: int = 41


PLANS: dict[Size, Plan] = {
    "quick": Plan(draws=2, points=(31, 41)),
    "default": Plan(draws=20, points=(21, 31, 41, 51, 101)),
    "full": Plan(draws=100, points=(21, 31, 41, 51, 101)),
}


class Score(NamedTuple):
    """At the test points: RMSE, mean standard deviation, worst residual of a row."""

    rmse: float
    uncertainty: float
    residual: float = 0.0


def score(found: Predicted, truth: Float[Tensor, " t"]) -> Score:
    """Against the noise-free function."""
    rmse = ((found.mean - truth) ** 2).mean().sqrt()
    uncertainty = found.variance.clamp(min=0).sqrt().mean()
    return Score(float(rmse), float(uncertainty), found.residual)


# By number of points, whether there are derivatives, and method: one for each draw.
Scores = dict[tuple[int, str, str], list[Score]]


def run(plan: Plan, seed: int) -> tuple[Scores, Data]:
    """Scores of all draws, and the first draw."""
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
        "Scores, means over the draws; ratios of one draw to the exact GP's": table(
            scores
        )
    }
    report.notes = notes(plan)
    report.write(
        options.output, lambda figure: draw(figure, first, plan), shape=(9.6, 4.2)
    )


class Pair(NamedTuple):
    """Something of the RMSE and of the uncertainty."""

    rmse: float
    uncertainty: float


def mean_score(scores: Sequence[Score]) -> Pair:
    """Averages over the draws."""
    return Pair(*np.mean([s[:2] for s in scores], axis=0).tolist())


def farthest(scores: Sequence[Score], exact_ones: Sequence[Score]) -> Pair:
    """The ratios to the exact GP's that are farthest from one, over the draws."""
    ratios = np.array(scores)[:, :2] / np.array(exact_ones)[:, :2]
    rows = np.abs(ratios - 1).argmax(axis=0)
    return Pair(*(float(ratios[row, k]) for k, row in enumerate(rows)))


def table(scores: Scores) -> list[Row]:
    """A row for each method and number of points."""
    rows = []
    for (points, name, method), own in scores.items():
        mean = mean_score(own)
        ratio = farthest(own, scores[points, name, EXACT])
        rows.append(
            {
                "derivatives": name,
                "M": points,
                "method": method,
                "RMSE": mean.rmse,
                "uncertainty": mean.uncertainty,
                "worst RMSE / exact": f"{ratio.rmse:.6f}",
                "worst uncertainty / exact": f"{ratio.uncertainty:.6f}",
                "worst PCG residual": max(s.residual for s in own) or None,
            }
        )
    return rows


def comparisons(scores: Scores, plan: Plan) -> list[Comparison]:
    """Fig. 2c, its ratios, and what the derivatives bring."""
    found = []
    for method, paper in _PAPER.items():
        mean = mean_score(scores[plan.shown, _WITH, method])
        for name, theirs, ours in zip(Pair._fields, paper, mean, strict=True):
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
        key = (plan.shown, _WITH)
        ratio = farthest(scores[*key, method], scores[*key, EXACT])
        for k, (name, ours) in enumerate(ratio._asdict().items()):
            theirs = _PAPER[method][k] / _PAPER[EXACT][k]
            found.append(
                Comparison(
                    what=f"{name}, {method} / exact GP",
                    source="Fig. 2c",
                    paper=f"{theirs:.2f}",
                    here=f"{ours:.6f}",
                    remark=f"here: M = {plan.shown}, the draw farthest from 1",
                )
            )
    gain = gains(scores, plan)
    found += [
        Comparison(
            what=f"{name}, HIP-GP, with / without derivatives",
            source="Fig. 2b",
            paper="< 1 (a drawing)",
            here=ratio,
            remark="here: ratio of the means",
        )
        for name, ratio in gain._asdict().items()
    ]
    return found


def gains(scores: Scores, plan: Plan) -> Pair:
    """What is left of error and uncertainty with derivatives."""
    seen, unseen = (
        mean_score(scores[plan.shown, name, HIPGP]) for name in (_WITH, _WITHOUT)
    )
    return Pair(seen.rmse / unseen.rmse, seen.uncertainty / unseen.uncertainty)


def notes(plan: Plan) -> list[str]:
    spacing = float(KERNEL.lengthscale) * (plan.shown - 1) / 2
    return [
        f"{plan.draws} draws of network, observations and test points; the paper has "
        "one, whose weights are not stated, so that only the ratios can be compared",
        f"the paper does not state M: {plan.shown} points in the comparison, a "
        f"lengthscale of {spacing:g} spacings; the number of units and the spreads of "
        "the weights are those of the authors' code",
        f"{ITERATIONS} PCG iterations a row at most, for training and test points: "
        "too few where a lengthscale is more than some two spacings (see residuals)",
        "HIP-GP: S4-S5; SVGP: one natural step from the prior, Cholesky whitening with "
        f"a nugget of {JITTER:g} k(0)",
    ]


def draw(figure: Figure, data: Data, plan: Plan) -> None:
    """The posterior of HIP-GP without and with derivatives, as Fig. 2b."""
    panels: list[Axes] = list(figure.subplots(1, 2, sharex=True, sharey=True))
    for axes, name in zip(panels, (_WITHOUT, _WITH), strict=True):
        derivatives = name == _WITH
        scored = score(hipgp(data, plan.shown, derivatives=derivatives), data.truth)
        curve = replace(data, test=torch.linspace(-1, 1, 401).double()[:, None])
        found = hipgp(curve, plan.shown, derivatives=derivatives)
        draw_posterior(axes, curve, found, derivatives=derivatives)
        axes.set_title(
            f"{name} derivatives: RMSE {scored.rmse:.4f}, mean std "
            f"{scored.uncertainty:.4f}",
            fontsize="medium",
        )
        axes.set_xlabel("x")
    panels[0].set_ylabel("f(x)")
    panels[1].legend(frameon=False, fontsize="small")


def draw_posterior(
    axes: Axes, data: Data, found: Predicted, *, derivatives: bool
) -> None:
    x, mean = data.test[:, 0], found.mean
    std = found.variance.clamp(min=0).sqrt()
    axes.fill_between(x, mean - std, mean + std, color=BLUE, alpha=0.3, linewidth=0,
                      label="± 1 std")  # fmt: skip
    axes.plot(x, mean, color=BLUE, linewidth=1.2, label="HIP-GP mean")
    axes.plot(x, data.truth, "--", color=BLACK, linewidth=1.0, label="truth")
    axes.plot(data.at[:, 0], data.values, ".", color="0.55", markersize=3.5,
              label="values")  # fmt: skip
    if derivatives:
        # The truth where a derivative was observed, as a short piece of its slope.
        for place, value, slope in zip(
            data.slopes_at[:, 0], data.function(data.slopes_at), data.slopes
        ):
            dx = torch.tensor([-0.02, 0.02], dtype=torch.float64)
            axes.plot(place + dx, value + slope * dx, color=ORANGE, linewidth=2)
        axes.plot([], [], color=ORANGE, linewidth=2, label="derivatives")


if __name__ == "__main__":
    main()
