"""SVGP by either whitening: training, its cost a step, features on a grid."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import torch
from jaxtyping import Float
from paper_report import Row, stopwatch
from regression_data import Split
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.inducing import kmeans_points
from dustmap.grid import Grid
from dustmap.inference.svi import SvgpResult, SvgpSettings, fit_svgp
from dustmap.inference.svi.bound import Observations
from dustmap.inference.svi.training import Trainer
from dustmap.kernels import Kernel, Matern52
from dustmap.likelihoods import Bernoulli, Likelihood
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.ciq import CIQ, RootWarning
from dustmap.linalg.minres import MultiShiftMinres
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowReport, RowwiseGaussian
from dustmap.whitening import (
    CholeskyWhitening,
    CiqWhitening,
    ToeplitzWhitening,
    Whitening,
    point_covariance,
)

CHOLESKY, DENSE = "Cholesky", "CIQ"
TOEPLITZ, PCG = "CIQ, Toeplitz", "PCG, Toeplitz"
# The paper's: relative residual and steps of MINRES.
RTOL, STEPS = 1e-3, 200
# Of k(0) where training starts; the same for both whitenings.
NUGGET = 1e-4
# Of conditional variances below zero, by roots that missed their tolerance.
TOLERANCE = 0.05
_SPACINGS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """Kernel, likelihood and constant mean, where training starts or ended."""

    kernel: Kernel
    likelihood: Likelihood
    mean: float = 0.0

    @classmethod
    def start(cls, lengthscale: float, dimension: int, likelihood: Likelihood) -> Model:
        """A Matérn-5/2 kernel of unit variance with one lengthscale per axis."""
        kernel = Matern52(lengthscale=[lengthscale] * dimension)
        return cls(kernel=kernel, likelihood=likelihood)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """A fit, the time of every step after the first [s], and scores of the tests."""

    result: SvgpResult
    steps: tuple[float, ...]
    nll: float
    error: float

    @property
    def seconds(self) -> float:
        """The median step; not a number if there was but the first."""
        return median(self.steps) if self.steps else math.nan

    @property
    def model(self) -> Model:
        """Where training ended."""
        end = self.result.model
        return Model(kernel=end.kernel, likelihood=end.likelihood, mean=end.mean)


@contextmanager
def counted_roots() -> Iterator[None]:
    """Roots that miss their tolerance are counted by the fit: no warning for each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RootWarning)
        yield


def ciq_whitening(kernel: Kernel, points: Tensor | Grid) -> CiqWhitening:
    """By contour quadrature as the paper has it."""
    ciq = CIQ(solver=MultiShiftMinres(rtol=RTOL, max_steps=STEPS))
    return CiqWhitening(kernel, points, nugget=NUGGET, ciq=ciq)


def whitening_of(
    method: str, kernel: Kernel, points: Float[Tensor, "m d"]
) -> Whitening:
    if method == CHOLESKY:
        return CholeskyWhitening(kernel, points, nugget=NUGGET)
    return ciq_whitening(kernel, points)


def settings_of(method: str, settings: SvgpSettings) -> SvgpSettings:
    """With the precision of q, Cholesky goes with a factor, CIQ with iterations."""
    return replace(settings, solves="cholesky" if method == CHOLESKY else "iterative")


def inducing_points(data: Split, count: int, seed: int) -> Float[Tensor, "m d"]:
    """Centres of clusters of the training inputs."""
    generator = torch.Generator().manual_seed(seed)
    return kmeans_points(data.train, count, generator, rows=10_000)


def train(
    method: str,
    data: Split,
    points: Float[Tensor, "m d"],
    start: Model,
    settings: SvgpSettings,
    seed: int,
) -> Fitted:
    """One fit and what it predicts: every method sees the same minibatches."""
    stamps = [time.perf_counter()]
    with counted_roots():
        result = fit_svgp(
            PointValues(data.train),
            data.values,
            whitening_of(method, start.kernel, points),
            start.likelihood,
            mean=start.mean,
            generator=torch.Generator().manual_seed(seed),
            settings=settings_of(method, settings),
            on_step=lambda *_: stamps.append(time.perf_counter()),
        )
        nll, error = scores(result, data)
    # The first step also makes what all steps keep.
    steps = [b - a for a, b in pairwise(stamps)]
    return Fitted(result=result, steps=tuple(steps[1:]), nll=nll, error=error)


def scores(result: SvgpResult, data: Split) -> tuple[float, float]:
    """Negative log density per test row [nats]; RMSE, or the share of wrong classes."""
    likelihood = result.model.likelihood
    moments = result.model.predict(PointValues(data.test))
    found = (moments.mean, moments.variance.clamp(min=0))
    density = likelihood.predictive_log_density(data.test_values, *found)
    if isinstance(likelihood, Bernoulli):
        wrong = (likelihood.probability(*found) > 0.5) != (data.test_values > 0.5)
        return -float(density.mean()), float(wrong.double().mean())
    off = moments.mean - data.test_values
    return -float(density.mean()), float((off**2).mean().sqrt())


def step_row(
    method: str,
    data: Split,
    points: Float[Tensor, "m d"],
    start: Model,
    *,
    batch: int,
    repeats: int,
) -> Row:
    """Median time of a step of learning on one minibatch, and what CIQ took for it."""
    few = data.shortened(batch, 0)
    settings = SvgpSettings(
        batch_size=batch,
        steps=repeats + 1,
        rest=0.0,
        rate=1e-6,
        record_every=10**6,
        tolerance=TOLERANCE,
    )
    settings = settings_of(method, settings)
    whitening = whitening_of(method, start.kernel, points)
    forward = RowwiseGaussian(
        whitening,
        PointValues(few.train),
        mean=ConstantMean(value=start.mean),
        tolerance=TOLERANCE,
    )
    observed = Observations(
        values=few.values, likelihood=start.likelihood, offset=forward.offset
    )
    trainer = Trainer(forward, observed, settings, torch.Generator().manual_seed(0))
    index, seconds = torch.arange(len(few.values)), []
    # The very first step is recorded, which takes time of its own.
    trainer.steps = 1
    for _ in range(repeats):
        with stopwatch() as taken, counted_roots():
            trainer.step(index)
        seconds.append(taken[0])
    return {
        "M": len(points),
        "method": method,
        "seconds per step": median(seconds),
        **solves_of(method, forward.report),
    }


def solves_of(method: str, rows: RowReport) -> Row:
    """What the roots behind features took; nothing for Cholesky."""
    if method == CHOLESKY:
        return {"most iterations": None, "roots short of 1e-3": None}
    share = rows.unconverged / max(rows.rows, 1)
    return {"most iterations": rows.iterations, "roots short of 1e-3": f"{share:.2%}"}


@torch.no_grad()
def grid_rows(side: int, rows: int, seed: int, *, dense: bool) -> list[Row]:
    """Time of features of some rows on side² points in the unit square, each method.

    The lengthscale is two spacings, whatever M is. ``dense`` includes the methods that
    hold K, with which the others are compared.
    """
    spacing = 1 / (side - 1)
    scale = _SPACINGS * spacing
    grid = Grid(shape=(side, side), spacing=(spacing,) * 2, origin=(0.0, 0.0))
    kernel = Matern52(lengthscale=scale)
    generator = torch.Generator().manual_seed(seed)
    at = torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    cross = point_covariance(kernel, at, grid.points())
    makers = {
        CHOLESKY: lambda: CholeskyWhitening(kernel, grid.points(), nugget=NUGGET),
        DENSE: lambda: ciq_whitening(kernel, grid.points()),
        TOEPLITZ: lambda: ciq_whitening(kernel, grid),
        PCG: lambda: ToeplitzWhitening(
            kernel,
            grid,
            lengthscales=(scale,) * 2,
            nugget=NUGGET,
            solver=ConjugateGradients(rtol=RTOL, max_steps=STEPS),
        ),
    }
    made, reference = [], None
    for name, maker in makers.items():
        if name in (CHOLESKY, DENSE) and not dense:
            continue
        with stopwatch() as taken, counted_roots():
            features, _, solution = maker().features(cross)
        gram = features @ features.mT
        reference = gram if name == CHOLESKY else reference
        made.append(_grid_row(name, side**2, taken[0], solution, gram, reference))
    return made


def _grid_row(
    name: str,
    size: int,
    seconds: float,
    solution: Solution,
    gram: Tensor,
    reference: Tensor | None,
) -> Row:
    iterative = name != CHOLESKY
    apart = None
    if reference is not None and iterative:
        apart = float((gram - reference).abs().max() / reference.abs().max())
    return {
        "M": size,
        "rows": len(gram),
        "method": name,
        "seconds": seconds,
        "most iterations": int(solution.iterations.max()) if iterative else None,
        "short of the tolerance": int((~solution.converged).sum()),
        "largest error of k·k'": apart,
    }
