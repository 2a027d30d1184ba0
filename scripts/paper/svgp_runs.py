"""SVGP by either whitening: training, and its cost a step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

import torch
from jaxtyping import Float
from paper_report import Row, stopwatch
from regression_data import Split
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.inducing import kmeans_points
from dustmap.inference.svi import SvgpResult, SvgpSettings, fit_svgp
from dustmap.inference.svi.bound import Observations
from dustmap.inference.svi.training import Trainer
from dustmap.kernels import Kernel, Matern52
from dustmap.likelihoods import Likelihood
from dustmap.linalg.ciq import CIQ, RootWarning
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import (
    CholeskyWhitening,
    CiqWhitening,
    Whitening,
)

CHOLESKY, DENSE = "Cholesky", "CIQ"
# The paper's: relative residual and steps of MINRES.
RTOL, STEPS = 1e-3, 200
# Of k(0) where training starts; the same for both whitenings.
NUGGET = 1e-4
# Of conditional variances below zero, by roots that missed their tolerance.
TOLERANCE = 0.05


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
    """A fit, its number of steps, and the score of the tests."""

    result: SvgpResult
    steps: int
    nll: float

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


def whitening_of(
    method: str, kernel: Kernel, points: Float[Tensor, "m d"]
) -> Whitening:
    if method == CHOLESKY:
        return CholeskyWhitening(kernel, points, nugget=NUGGET)
    ciq = CIQ(rtol=RTOL, max_steps=STEPS)
    return CiqWhitening(kernel, points, nugget=NUGGET, ciq=ciq)


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
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1

    with counted_roots():
        result = fit_svgp(
            PointValues(data.train),
            data.values,
            whitening_of(method, start.kernel, points),
            start.likelihood,
            mean=start.mean,
            generator=torch.Generator().manual_seed(seed),
            settings=settings_of(method, settings),
            on_step=step,
        )
        moments = result.model.predict(PointValues(data.test))
    density = result.model.likelihood.predictive_log_density(
        data.test_values, moments.mean, moments.variance.clamp(min=0)
    )
    return Fitted(result=result, steps=count, nll=-float(density.mean()))


def step_row(
    method: str,
    data: Split,
    points: Float[Tensor, "m d"],
    start: Model,
    *,
    batch: int,
    repeats: int,
) -> Row:
    """Time steps of learning on one minibatch; take the median."""
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
    }
