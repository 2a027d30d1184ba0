"""Regression and classification by stochastic variational inference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.inducing import kmeans_points
from dustmap.gp.svgp_fit import fit_svgp
from dustmap.gp.svgp_settings import SvgpSettings
from dustmap.kernels import Radial
from dustmap.likelihoods import Bernoulli, Gaussian, Likelihood, StudentT
from dustmap.linalg.ciq import CIQ
from dustmap.linalg.minres import MultiShiftMinres
from dustmap.whitening import CholeskyWhitening, CiqWhitening, Whitening
from pipelines.progress import Progress
from pipelines.regress.fitted import FittedModel
from pipelines.regress.robust import without_outliers
from pipelines.regress.start import Start, find_start

# Inducing points: one for a few rows, within limits.
_FEWEST_POINTS, _ROWS_PER_POINT = 50, 5
# Steps: what Adam needs to move a scale by a factor of ten, and many passes.
_FEWEST_STEPS, _EPOCHS = 800, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """What a whitening can afford: points, rows in a step, steps; and its nugget.

    The nugget is relative to the kernel's variance. On one CPU core a step of contour
    quadrature with 500 points and 256 rows took 80 times that of the factor.
    """

    points: int
    batch: int
    steps: int
    nugget: float


_SIZES = {
    "cholesky": _Size(points=500, batch=256, steps=3000, nugget=1e-6),
    "ciq": _Size(points=200, batch=64, steps=300, nugget=1e-4),
}
# Relative error of the roots by contour quadrature.
_ROOT_ERROR = 1e-3


def fit_variational(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    likelihood: str,
    whitening: str,
    generator: torch.Generator,
) -> FittedModel:
    """Inducing points at the centres of clusters, scales from a subset, then Adam."""
    start, noise = _start(x, y, likelihood, generator)
    size = _SIZES[whitening]
    wanted = min(max(len(x) // _ROWS_PER_POINT, _FEWEST_POINTS), size.points)
    points = kmeans_points(x, min(wanted, len(x)), generator)
    batch = min(size.batch, len(x))
    steps = _EPOCHS * math.ceil(len(x) / batch)
    settings = SvgpSettings(
        batch_size=batch,
        steps=min(max(_FEWEST_STEPS, steps), size.steps),
        natural_rate=0.1,
    )
    with Progress(description="fit", total=settings.total_steps(len(x))) as progress:
        result = fit_svgp(
            PointValues(x),
            y,
            _whitening(whitening, start.kernel, points),
            noise,
            generator=generator,
            mean=start.mean,
            settings=settings,
            on_step=lambda step, total: progress.update(),
        )
    model = result.model
    values = model.kernel.parameters()
    message = (
        f"inducing points: {len(points)}, whitening {whitening}; "
        f"a fixed number of steps "
        f"({settings.total_steps(len(x))} of {batch} rows)"
    )
    return FittedModel(
        latent=lambda where: model.predict(PointValues(where)),
        likelihood=model.likelihood,
        lengthscale=tuple(values["lengthscale"].expand(x.shape[1]).tolist()),
        std=float(values["variance"].sqrt()),
        mean=model.mean,
        kernel=type(model.kernel).__name__,
        why=start.why,
        converged=result.rows.unconverged == 0,
        messages=(message, *result.message.splitlines()),
        facts={"inducing_points": len(points), "bound": result.bound.value},
    )


def _start(
    x: Tensor, y: Tensor, likelihood: str, generator: torch.Generator
) -> tuple[Start, Likelihood]:
    """Scales by the exact evidence of a subset with normal noise.

    Classes are taken for −1 and 1: lengthscales carry over, and the field's variance
    in units of the noise is that of a probit, whose noise has a variance of one.
    """
    if likelihood == "gaussian":
        start = find_start(x, y, generator)
        return start, Gaussian(variance=start.noise)
    if likelihood == "student-t":
        start = find_start(x, without_outliers(y), generator)
        return start, StudentT(scale=math.sqrt(start.noise), degrees=4.0)
    start = find_start(x, 2 * y - 1, generator)
    ratio = float(start.kernel.variance) / start.noise
    variance = torch.tensor(min(max(ratio, 0.5), 30.0), dtype=torch.float64)
    share = y.mean().clamp(1e-3, 1 - 1e-3)
    kernel = start.kernel.with_parameters({"variance": variance})
    mean = float(torch.special.ndtri(share) * (1 + variance).sqrt())
    return replace(start, kernel=kernel, mean=mean), Bernoulli()


def _whitening(name: str, kernel: Radial, points: Float[Tensor, "m d"]) -> Whitening:
    nugget = _SIZES[name].nugget * float(kernel.variance)
    if name == "cholesky":
        return CholeskyWhitening(kernel, points, nugget=nugget)
    ciq = CIQ(solver=MultiShiftMinres(rtol=_ROOT_ERROR))
    return CiqWhitening(kernel, points, nugget=nugget, ciq=ciq)
