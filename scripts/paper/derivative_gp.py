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

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import torch
from data import grid_of
from engines import EXACT, HIPGP, SVGP, Fit, embedded, optimum
from jaxtyping import Float
from paper_report import Report, Row, averaged, cell, plot, root_mean_square, run_script
from torch import Tensor

from dustmap.functionals import Derivatives, Functionals, PointValues, Stack
from dustmap.gp.exact import ExactGP
from dustmap.grid import Grid
from dustmap.kernels import SquaredExponential
from dustmap.linalg.cg import ConjugateGradients
from dustmap.whitening import CholeskyWhitening, Whitening

VALUES, DERIVATIVES, TESTS = 100, 20, 100
VALUE_NOISE, DERIVATIVE_NOISE = 0.05, 0.2
_KERNEL = SquaredExponential(lengthscale=0.1, variance=0.5)
_ITERATIONS = 20
# Nugget of SVGP's inducing values, relative to k(0).
_JITTER = 1e-8
# Of the network: units, and the spreads of the inner and the outer weights.
_UNITS, _INNER, _OUTER = 9, 9.0, 0.2
_WITH, _WITHOUT = "with", "without"
_SHOWN = 41
# Fig. 2c: RMSE and uncertainty, which is the mean standard deviation.
_SCORES = ("rmse", "uncertainty")
_PAPER = {
    HIPGP: {"rmse": 0.0192, "uncertainty": 0.0198},
    SVGP: {"rmse": 0.0192, "uncertainty": 0.0206},
    EXACT: {"rmse": 0.0192, "uncertainty": 0.0198},
}
SIZES = {"draws": (20, 2), "points": ((21, 31, 41, 51, 101), (31, 41))}


class Data(NamedTuple):
    """One function, what was observed of it and the points to predict at.

    ``observed`` holds functionals, values and noise variances, with derivatives and
    without.
    """

    function: Callable[[Tensor], Tensor]
    observed: dict[str, tuple[Functionals, Tensor, Tensor]]
    test: Float[Tensor, "t 1"]


def experiment(report: Report, given: SimpleNamespace) -> None:
    """Score methods on all draws; trace HIP-GP's posterior of the first (Fig. 2b)."""
    rows = list(run(given))
    means = averaged(rows, by=("derivatives", "M", "method"), columns=_SCORES)
    report.collect("Means over the draws", means)
    compare(report, rows, means)
    report.figure = plot(
        lines(draw_data(given.seed)),
        lambda row: row["line"],
        "f(x)",
        "x",
        scales=("linear", "linear"),
    )


def run(given: SimpleNamespace) -> Iterator[Row]:
    """Score every method on every draw, with and without derivatives."""
    for draw in range(given.draws):
        data = draw_data(given.seed + draw)
        for points, name in product(given.points, (_WITH, _WITHOUT)):
            for method, found in predictions(data, points, name):
                yield {
                    "derivatives": name,
                    "M": points,
                    "method": method,
                    "rmse": root_mean_square(found.mean - data.function(data.test)),
                    "uncertainty": float(found.std.mean()),
                }


def network(generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """``softplus(vᵀ tanh sin(w x + b) + c)``, weights normal (authors' code)."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inner, shift = _INNER * normal(_UNITS), _INNER * normal(_UNITS)
    outer, last = _OUTER * normal(_UNITS), _OUTER * normal(1)

    def function(x: Tensor) -> Tensor:
        hidden = torch.tanh(torch.sin(x * inner + shift))
        return torch.nn.functional.softplus(hidden @ outer + last)

    return function


def draw_data(seed: int) -> Data:
    """A function and its observations by a seed."""
    generator = torch.Generator().manual_seed(seed)
    function = network(generator)

    def uniform(count: int) -> Tensor:
        return 2 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 1

    def noisy(values: Tensor, noise: float) -> Tensor:
        white = torch.randn(len(values), generator=generator, dtype=torch.float64)
        return values + noise * white

    at, slopes_at, test = uniform(VALUES), uniform(DERIVATIVES), uniform(TESTS)
    leaf = slopes_at.clone().requires_grad_(True)
    (slopes,) = torch.autograd.grad(function(leaf).sum(), leaf)
    values = noisy(function(at), VALUE_NOISE)
    noisy_slopes = noisy(slopes[:, 0], DERIVATIVE_NOISE)
    variances = torch.tensor([VALUE_NOISE, DERIVATIVE_NOISE], dtype=torch.float64) ** 2
    both = variances.repeat_interleave(torch.tensor([VALUES, DERIVATIVES]))
    points = PointValues(at)
    observed = {
        _WITH: (
            Stack([points, Derivatives(slopes_at, 0)]),
            torch.cat([values, noisy_slopes]),
            both,
        ),
        _WITHOUT: (points, values, both[:VALUES]),
    }
    return Data(function, observed, test)


def predictions(data: Data, points: int, name: str) -> Iterator[tuple[str, Fit]]:
    """Predict by every method, HIP-GP and SVGP with a full-rank q."""
    functionals, values, noise = data.observed[name]
    wanted = PointValues(data.test)
    dense = CholeskyWhitening(
        _KERNEL, _grid(points).points(), nugget=_JITTER * float(_KERNEL.variance)
    )
    for method, whitening in ((HIPGP, hip_whitening(points)), (SVGP, dense)):
        yield method, optimum(whitening, data.observed[name], wanted, "full")
    common = float(noise.min())
    exact = ExactGP(
        _KERNEL, functionals, values, noise=common, known_noise=noise - common
    )
    yield EXACT, Fit(*exact.predict(wanted))


def hip_whitening(points: int) -> Whitening:
    """HIP-GP's embedding, with PCG stopped early."""
    solver = ConjugateGradients(rtol=1e-10, max_steps=_ITERATIONS)
    return embedded(_KERNEL, _grid(points), solver)


def _grid(points: int) -> Grid:
    return grid_of((-1.0,), (1.0,), points)


def lines(data: Data) -> Iterator[Row]:
    """Trace the function and HIP-GP's posterior with derivatives."""
    x = torch.linspace(-1, 1, 401, dtype=torch.float64)[:, None]
    found = optimum(hip_whitening(_SHOWN), data.observed[_WITH], PointValues(x), "full")
    traced = {
        "truth": data.function(x),
        "mean": found.mean,
        "mean - std": found.mean - found.std,
        "mean + std": found.mean + found.std,
    }
    for name, values in traced.items():
        for place, value in zip(x[:, 0].tolist(), values.tolist(), strict=True):
            yield {"line": name, "x": place, "f(x)": value}


def compare(report: Report, rows: Sequence[Row], means: Sequence[Row]) -> None:
    """Compare Fig. 2c, its ratios, and what the derivatives bring."""
    shown = [row for row in rows if (row["derivatives"], row["M"]) == (_WITH, _SHOWN)]
    scores = {m: [row for row in shown if row["method"] == m] for m in _PAPER}
    draws = len(scores[EXACT])
    remark = f"here: mean of {draws} draws of another function"
    for method, name in product(_PAPER, _SCORES):
        mean = cell(means, name, derivatives=_WITH, M=_SHOWN, method=method)
        paper = _PAPER[method][name]
        report.compare(f"{name}, {method}", "Fig. 2c", paper, f"{mean:.4f}", remark)
    remark = f"here: M = {_SHOWN}, the draw farthest from 1"
    for method, name in product((HIPGP, SVGP), _SCORES):
        pairs = zip(scores[method], scores[EXACT], strict=True)
        ratios = (ours[name] / exact[name] for ours, exact in pairs)
        here = max(ratios, key=lambda ratio: abs(ratio - 1))
        paper = _PAPER[method][name] / _PAPER[EXACT][name]
        what = f"{name}, {method} / exact GP"
        report.compare(what, "Fig. 2c", f"{paper:.2f}", f"{here:.6f}", remark)
    for name in _SCORES:
        seen, unseen = (
            cell(means, name, derivatives=which, M=_SHOWN, method=HIPGP)
            for which in (_WITH, _WITHOUT)
        )
        what = f"{name}, HIP-GP, with / without derivatives"
        remark = "here: ratio of the means"
        report.compare(what, "Fig. 2b", "< 1 (a drawing)", seen / unseen, remark)


if __name__ == "__main__":
    run_script(__file__, __doc__, experiment, SIZES)
