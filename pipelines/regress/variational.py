"""Regression and classification by stochastic variational inference."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.fitting import LBFGS, maximise
from dustmap.gp.inducing import kmeans_points
from dustmap.gp.sgpr import SGPR
from dustmap.inference.svi import SvgpSettings, fit_svgp
from dustmap.kernels import Radial
from dustmap.likelihoods import Likelihood
from dustmap.whitening import CholeskyWhitening
from pipelines.base.progress import Progress
from pipelines.regress.fitted import FittedField
from pipelines.regress.start import find_start

# Inducing points: one for five rows, within limits, and their relative nugget.
_FEWEST_POINTS, _MOST_POINTS, _ROWS_PER_POINT, _NUGGET = 50, 500, 5, 1e-6
# Rows from which scales and noise start by the collapsed bound. The search begins
# within a factor of e of the start: from afar it can leap to where the whole target is
# noise, and stay. What few points cannot follow is noise to them: it starts with more.
_START_ROWS, _REACHES, _LEAST_NOISE = 3000, (1.0, 3.0), 0.1
# Steps: what Adam needs to move a scale by a factor of ten, and many passes.
_BATCH, _FEWEST_STEPS, _MOST_STEPS, _EPOCHS = 256, 800, 3000, 30
# Of the natural gradient. With 0.3 the bound of 3,000 rows and 200 points ends lower,
# by 0.001 nats per row (kin40k), 0.004 (four inputs) and 0.006 (Student-T noise).
_NATURAL_RATE = 0.1
# Rows that measure whether the bound has ceased to move, and what the last tenth of the
# steps may still move it by [nats per row].
_WATCHED, _STILL = 10_000, 1e-3


def fit_variational(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    kind: type[Likelihood],
    generator: torch.Generator,
) -> FittedField:
    """Inducing points at the centres of clusters, scales from a subset, then Adam."""
    tame = kind.tamed(y)
    start = find_start(x, tame, generator)
    count = min(max(len(x) // _ROWS_PER_POINT, _FEWEST_POINTS), _MOST_POINTS, len(x))
    # In units of the lengthscales: inputs that hardly matter do not spread the points.
    scales = start.kernel.lengthscale
    points = kmeans_points(x / scales, count, generator) * scales
    rows = torch.randperm(len(x), generator=generator)[:_START_ROWS]
    sparse = SGPR(
        start.kernel,
        PointValues(x[rows]),
        tame[rows],
        points,
        noise=max(start.noise, _LEAST_NOISE),
        mean=start.mean,
        jitter=_NUGGET,
    )
    for reach in _REACHES:
        near = LBFGS(
            max_steps=30, gradient_tolerance=1.0, reach=reach, ranges=start.ranges
        )
        sparse = maximise(sparse, near).model
    learnt = sparse.parameters()
    first = kind.start(y, learnt["noise"], learnt["variance"], learnt["mean"])
    kernel = start.kernel.with_parameters(
        {"lengthscale": learnt["lengthscale"], "variance": first.variance}
    )
    batch = min(_BATCH, len(x))
    steps = max(_FEWEST_STEPS, _EPOCHS * math.ceil(len(x) / batch))
    settings = SvgpSettings(
        batch_size=batch,
        steps=min(steps, _MOST_STEPS),
        natural_rate=_NATURAL_RATE,
        watch_rows=_WATCHED,
    )
    with Progress(description="fit", total=settings.steps) as progress:
        result = fit_svgp(
            PointValues(x),
            y,
            CholeskyWhitening(kernel, points, nugget=_NUGGET * float(kernel.variance)),
            first.likelihood,
            generator=generator,
            mean=float(first.mean),
            settings=settings,
            on_step=lambda *_: progress.update(),
        )
    model, rise = result.model, result.rise
    assert rise is not None
    assert isinstance(model.kernel, Radial)
    messages = [
        f"inducing points: {len(points)}; a fixed number of steps ({settings.steps} of "
        f"{batch} rows)",
        *result.message.splitlines(),
    ]
    ended = abs(rise.value) <= _STILL
    if not ended:
        messages.append(
            f"warning: that is more than {_STILL:g} nats per row: the steps ended "
            "before scales and intervals had settled"
        )
    return FittedField(
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
