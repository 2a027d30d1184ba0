"""Regression and classification by stochastic variational inference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.inference.svi import SvgpSettings, fit_svgp
from dustmap.kernels import Radial
from dustmap.likelihoods.base import Initial
from dustmap.linalg.ciq import CIQ
from dustmap.linalg.minres import MultiShiftMinres
from dustmap.whitening import CholeskyWhitening, CiqWhitening, Whitening
from pipelines.base.progress import Progress
from pipelines.regress.dense import inducing_points, learn_sparse
from pipelines.regress.fitted import FittedModel, Problem
from pipelines.regress.start import Start, find_start

# Inducing points: one for a few rows, within limits.
_FEWEST_POINTS, _ROWS_PER_POINT = 50, 5
# Steps: what Adam needs to move a scale by a factor of ten, and many passes.
_FEWEST_STEPS, _EPOCHS = 800, 30
# Rows from which scales and noise start.
_START_ROWS = 3000
# Of the natural gradient. With 0.3 the bound of 3,000 rows and 200 points ends lower,
# by 0.001 nats per row (kin40k), 0.004 (four inputs) and 0.006 (Student-T noise).
_NATURAL_RATE = 0.1
# What the last tenth of the steps may still move the bound by [nats per row].
_STILL = 1e-3
# Relative error of the roots by contour quadrature.
_ROOT_ERROR = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """What a whitening can afford: points, rows in a step, steps; and its nugget.

    ``watched`` rows measure whether the bound has ceased to move. The nugget is
    relative to the kernel's variance. On one CPU core a step of contour quadrature with
    500 points and 256 rows took 80 times that of the factor.
    """

    points: int
    batch: int
    steps: int
    watched: int
    nugget: float


_SIZES = {
    "cholesky": _Size(points=500, batch=256, steps=3000, watched=10_000, nugget=1e-6),
    "ciq": _Size(points=200, batch=64, steps=300, watched=1_000, nugget=1e-4),
}


def fit_variational(problem: Problem) -> FittedModel:
    """Inducing points at the centres of clusters, scales from a subset, then Adam."""
    x, y, size = problem.x, problem.y, _SIZES[problem.whitening]
    start, first, points = _start(problem, size)
    kernel = start.kernel.with_parameters({"variance": first.variance})
    batch = min(size.batch, len(x))
    steps = max(_FEWEST_STEPS, _EPOCHS * math.ceil(len(x) / batch))
    settings = SvgpSettings(
        batch_size=batch,
        steps=min(steps, size.steps),
        natural_rate=_NATURAL_RATE,
        watch_rows=size.watched,
    )
    with Progress(description="fit", total=settings.steps) as progress:
        result = fit_svgp(
            PointValues(x),
            y,
            _whitening(problem.whitening, kernel, points),
            first.likelihood,
            generator=problem.generator,
            mean=float(first.mean),
            settings=settings,
            on_step=lambda *_: progress.update(),
        )
    model, rise = result.model, result.rise
    assert rise is not None
    assert isinstance(model.kernel, Radial)
    messages = [
        f"inducing points: {len(points)}, whitening {problem.whitening}; a fixed "
        f"number of steps ({settings.steps} of {batch} rows)",
        *result.message.splitlines(),
    ]
    ended = abs(rise.value) <= _STILL
    if not ended:
        messages.append(
            f"warning: that is more than {_STILL:g} nats per row: the steps ended "
            "before scales and intervals had settled"
        )
    return FittedModel(
        latent=lambda where: model.predict(PointValues(where)),
        likelihood=model.likelihood,
        kernel=model.kernel,
        mean=model.mean,
        why=start.why,
        converged=ended and result.rows.unconverged == 0,
        messages=tuple(messages),
        facts={
            "inducing_points": len(points),
            "bound": result.bound,
            "late_rise_per_row": rise.value,
            "late_rise_error": rise.error,
        },
    )


def _start(
    problem: Problem, size: _Size
) -> tuple[Start, Initial, Float[Tensor, "m d"]]:
    """Inducing points and scales, by the bound of a subset with normal noise."""
    x, generator = problem.x, problem.generator
    tame = problem.likelihood.tamed(problem.y)
    start = find_start(x, tame, generator)
    count = min(max(len(x) // _ROWS_PER_POINT, _FEWEST_POINTS), size.points)
    points = inducing_points(start, x, count, generator)
    rows = torch.randperm(len(x), generator=generator)[:_START_ROWS]
    learnt = learn_sparse(start, x[rows], tame[rows], points).model.parameters()
    first = problem.likelihood.start(
        problem.y, learnt["noise"], learnt["variance"], learnt["mean"]
    )
    kernel = start.kernel.with_parameters({"lengthscale": learnt["lengthscale"]})
    return replace(start, kernel=kernel), first, points


def _whitening(name: str, kernel: Radial, points: Float[Tensor, "m d"]) -> Whitening:
    nugget = _SIZES[name].nugget * float(kernel.variance)
    if name == "cholesky":
        return CholeskyWhitening(kernel, points, nugget=nugget)
    ciq = CIQ(solver=MultiShiftMinres(rtol=_ROOT_ERROR))
    return CiqWhitening(kernel, points, nugget=nugget, ciq=ciq)
