"""Regression and classification by stochastic variational inference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.inference.svi import SvgpResult, SvgpSettings, fit_svgp
from dustmap.kernels import Radial
from dustmap.likelihoods import Likelihood
from dustmap.linalg.ciq import CIQ
from dustmap.linalg.minres import MultiShiftMinres
from dustmap.whitening import CholeskyWhitening, CiqWhitening, Whitening
from pipelines.base.progress import Progress
from pipelines.regress.dense import inducing_points, learn_sparse
from pipelines.regress.fitted import FittedModel
from pipelines.regress.start import Start, find_start

# Inducing points: one for a few rows, within limits.
_FEWEST_POINTS, _ROWS_PER_POINT = 50, 5
# Steps: what Adam needs to move a scale by a factor of ten, and many passes.
_FEWEST_STEPS, _EPOCHS = 800, 30
# Rows that tell scales and noise to start from.
_START_ROWS = 3000
# Of the natural gradient. With 0.3 the bound of 3,000 rows and 200 points ends lower,
# by 0.001 nats per row (kin40k), 0.004 (four inputs) and 0.006 (Student-T noise).
_NATURAL_RATE = 0.1
# What the last tenth of the steps may still move the bound by [nats per row].
_STILL = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """What a whitening can afford: points, rows in a step, steps; and its nugget.

    By ``watched`` rows it is told whether the bound has ceased to move. The nugget is
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
# Relative error of the roots by contour quadrature.
_ROOT_ERROR = 1e-3


def fit_variational(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    likelihood: type[Likelihood],
    whitening: str,
    generator: torch.Generator,
) -> FittedModel:
    """Inducing points at the centres of clusters, scales from a subset, then Adam."""
    size = _SIZES[whitening]
    wanted = min(max(len(x) // _ROWS_PER_POINT, _FEWEST_POINTS), size.points)
    start, noise, points = _start(x, y, likelihood, wanted, generator)
    settings = _settings(size, len(x))
    total = settings.total_steps(len(x))
    with Progress(description="fit", total=total) as progress:
        result = fit_svgp(
            PointValues(x),
            y,
            _whitening(whitening, start.kernel, points),
            noise,
            generator=generator,
            mean=start.mean,
            settings=settings,
            on_step=lambda *_: progress.update(),
        )
    how = (
        f"inducing points: {len(points)}, whitening {whitening}; a fixed number of "
        f"steps ({total} of {settings.batch_size} rows)"
    )
    return _fitted(result, start.why, how)


def _settings(size: _Size, rows: int) -> SvgpSettings:
    """How the bound of so many rows is maximised."""
    batch = min(size.batch, rows)
    steps = max(_FEWEST_STEPS, _EPOCHS * math.ceil(rows / batch))
    return SvgpSettings(
        batch_size=batch,
        steps=min(steps, size.steps),
        natural_rate=_NATURAL_RATE,
        watch_rows=size.watched,
    )


def _fitted(result: SvgpResult, why: str, how: str) -> FittedModel:
    """What was found, and whether it had ceased to move."""
    model, rise = result.model, result.rise
    assert rise is not None
    ended = abs(rise.value) <= _STILL
    messages = [how, *result.message.splitlines()]
    if not ended:
        messages.append(
            f"warning: that is more than {_STILL:g} nats per row: the steps ended "
            "before scales and intervals had settled"
        )
    assert isinstance(model.kernel, Radial)
    return FittedModel(
        latent=lambda where: model.predict(PointValues(where)),
        likelihood=model.likelihood,
        kernel=model.kernel,
        mean=model.mean,
        why=why,
        converged=ended and result.rows.unconverged == 0,
        messages=tuple(messages),
        facts={
            "inducing_points": len(model.whitening.points),
            "bound": result.bound.value,
            "late_rise_per_row": rise.value,
            "late_rise_error": rise.error,
        },
    )


def _start(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    noise: type[Likelihood],
    count: int,
    generator: torch.Generator,
) -> tuple[Start, Likelihood, Float[Tensor, "m d"]]:
    """Inducing points and scales, by the bound of a subset with normal noise."""
    tame = noise.tamed(y)
    start = find_start(x, tame, generator)
    points = inducing_points(start, x, count, generator)
    rows = torch.randperm(len(x), generator=generator)[:_START_ROWS]
    learnt = learn_sparse(start, x[rows], tame[rows], points).model.parameters()
    likelihood, variance, mean = noise.start(
        y, learnt["noise"], learnt["variance"], learnt["mean"]
    )
    kernel = start.kernel.with_parameters(
        {"lengthscale": learnt["lengthscale"], "variance": variance}
    )
    return replace(start, kernel=kernel, mean=float(mean)), likelihood, points


def _whitening(name: str, kernel: Radial, points: Float[Tensor, "m d"]) -> Whitening:
    nugget = _SIZES[name].nugget * float(kernel.variance)
    if name == "cholesky":
        return CholeskyWhitening(kernel, points, nugget=nugget)
    ciq = CIQ(solver=MultiShiftMinres(rtol=_ROOT_ERROR))
    return CiqWhitening(kernel, points, nugget=nugget, ciq=ciq)
