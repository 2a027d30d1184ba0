#!/usr/bin/env python3
"""SVGP whitened by contour quadrature (CIQ) against Cholesky, two likelihoods.

The paper is Pleiss, Jankowiak, Eriksson, Damle & Gardner (2020), "Fast Matrix Square
Roots with Applications to Gaussian Processes and Bayesian Optimization", NeurIPS,
arXiv:2006.11267, section 5.1: 3droad (Gaussian), Precipitation (Student's t), Covtype
(Bernoulli). kin40k and three years of precipitation in Colorado stand in for the first
two; there is no Bernoulli likelihood here. Matérn-5/2 with a lengthscale per axis,
centres of clusters as points (fixed; learnt in the paper), natural gradients for q and
Adam for the rest. CIQ takes roots to 1e-3 in at most 200 iterations in double precision
and solves iteratively for q, Cholesky factorises its precision. Trained with Cholesky
at more and more points, with both for a few of the same steps; roots and one step of
learning are examined on the first set. NLL in nats per test row, outputs standardised;
'start' and 'trained': hyperparameters before and after training with Cholesky at the
most points. At fixed hyperparameters the whitenings differ by the errors of roots, else
also because a q(ε) that rests while the kernel moves is another q(u) by either root.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from data import Split, read_table, standardised
from engines import centres
from jaxtyping import Float
from paper_report import Report, Row, cell, plot, run_script, stopwatch
from torch import Tensor

from dustmap.inference.svi import SvgpResult, SvgpSettings, fit_svgp
from dustmap.inference.svi.bound import Observations
from dustmap.inference.svi.training import Trainer
from dustmap.kernels import Kernel, Matern52, point_covariance
from dustmap.likelihoods import Gaussian, Likelihood, StudentT
from dustmap.linalg.roots import CIQ, RootWarning
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import CholeskyWhitening, CiqWhitening, KernelMatrix, Whitening
from pipelines.base.errors import InputError

_COLORADO, _KIN40K = "colorado_monthly_precip.csv.gz", "kin40k.csv.gz"
# First year of Colorado's precipitation that is kept: months are nearly independent of
# each other, so that of many years a thousand inducing points see the climate alone.
_FIRST_YEAR = 1995
_CHOLESKY, _CIQ = "Cholesky", "CIQ"
# Hyperparameters before and after training at the most points.
_START, _TRAINED = "start", "trained"
# Of k(0) where training starts; the same for both whitenings.
_NUGGET = 1e-4
# Of conditional variances below zero, by roots that missed their tolerance.
_TOLERANCE = 0.05
# Relative error of a root, and limit on iterations: the paper's of MINRES.
_ROOTS = CIQ(rtol=1e-3, max_steps=200)
_ERRORS, _TRAINING = "Errors of roots", "Training"
_PAIRS, _TIMED = "Both whitenings, the same steps", "One step of learning"
_DIFFERENCE, _SECONDS = "CIQ - Cholesky", "seconds per step"
SIZES = {
    # Of a data set.
    "rows": (30_000, 600),
    "tests": (1_000, 150),
    # M to train at, and how.
    "points": ((125, 250, 500), (20, 40)),
    "training": (
        SvgpSettings(
            steps=200, natural_rate=0.2, rate=0.05, batch_size=128, tolerance=_TOLERANCE
        ),
        SvgpSettings(steps=12, batch_size=64, tolerance=_TOLERANCE),
    ),
    # Steps of both whitenings by M.
    "steps": ({250: 6, 500: 3}, {30: 3, 40: 2}),
    # M of one step on a batch of rows.
    "timed": ((500, 1_000, 2_000, 4_000), (30, 60)),
    "batch": (64, 32),
    # M and J at which errors of roots are measured.
    "roots": (1_000, 100),
    "limits": ((25, 50, 100, 200), (10, 30, 60)),
}


class Model(NamedTuple):
    """Kernel, likelihood and constant mean, where training starts or ended."""

    kernel: Kernel
    likelihood: Likelihood
    mean: float = 0.0


Models = Mapping[str, Model]


def read_kin40k(file: Path, seed: int) -> Split:
    """Read the forward kinematics of an arm: 8 inputs and a distance."""
    table = read_table(file)
    if table.shape[1] != 9:
        raise InputError(
            f"{file} has {table.shape[1]} columns, expected 8 inputs and an output"
        )
    return standardised("kin40k", table[:, :-1], table[:, -1], seed)


def read_colorado(file: Path, seed: int) -> Split:
    """Read monthly precipitation [cm] of Colorado by longitude, latitude and month."""
    table = read_table(file, ("lon", "lat", "year", "month", "ppt_cm"))
    lon, lat, year, month, fallen = table[table[:, 2] >= _FIRST_YEAR].T
    inputs = np.stack([lon, lat, year + (month - 0.5) / 12], axis=1)
    return standardised("Colorado precipitation", inputs, fallen, seed)


# Files and their readers with the likelihood and the lengthscales to start with.
_SETS = (
    (_KIN40K, read_kin40k, Gaussian(variance=0.3), 2.0),
    (_COLORADO, read_colorado, StudentT(scale=0.5, degrees=4.0), 0.3),
)


def experiment(report: Report, given: SimpleNamespace) -> None:
    """Train on the sets that are there; examine roots and steps on the first."""
    report.tables = {title: [] for title in (_ERRORS, _TRAINING, _PAIRS, _TIMED)}
    for file, read, likelihood, scale in _SETS:
        data = report.read(given.data, file, partial(read, seed=given.seed))
        if data is None:
            continue
        data = data.shortened(given.rows, given.tests)
        kernel = Matern52(lengthscale=[scale] * data.train.inputs.shape[1])
        start = Model(kernel, likelihood)
        fits = [train_from(data, count, start, given) for count in given.points]
        report.collect(_TRAINING, (row for row, _ in fits))
        models = {_START: start, _TRAINED: fits[-1][1]}
        report.collect(_PAIRS, pair_rows(data, models, given))
        if not report.tables[_TIMED]:
            report.collect(_TIMED, time_rows(data, models, given))
            report.collect(_ERRORS, root_rows(data, models, given))
    if not report.tables[_TIMED]:
        raise InputError("no data: give their folder by --data or $DUSTMAP_DATA")
    compare(report)
    report.figure = plot(
        report.tables[_TIMED], lambda r: f"{r['method']}, {r['kernel']}", _SECONDS
    )


def setup(
    method: str, model: Model, points: Float[Tensor, "m d"], settings: SvgpSettings
) -> tuple[Whitening, SvgpSettings]:
    """Return the whitening of a method, and settings with its solves for q."""
    if method == _CHOLESKY:
        return CholeskyWhitening(model.kernel, points, nugget=_NUGGET), settings
    whitening = CiqWhitening(model.kernel, points, nugget=_NUGGET, ciq=_ROOTS)
    return whitening, replace(settings, solves="iterative")


@contextmanager
def counted() -> Iterator[None]:
    """Ignore warnings of roots that miss their tolerance: results count them."""
    with warnings.catch_warnings(action="ignore", category=RootWarning):
        yield


def train(
    method: str,
    data: Split,
    points: Float[Tensor, "m d"],
    start: Model,
    settings: SvgpSettings,
    seed: int,
) -> tuple[SvgpResult, float]:
    """Fit, on the same minibatches by every method; return also the tests' NLL."""
    whitening, settings = setup(method, start, points, settings)
    with counted():
        result = fit_svgp(
            data.train.functionals(),
            data.train.values,
            whitening,
            start.likelihood,
            mean=start.mean,
            generator=torch.Generator().manual_seed(seed),
            settings=settings,
        )
        moments = result.model.predict(data.test.functionals())
    density = result.model.likelihood.predictive_log_density(
        data.test.values, moments.mean, moments.variance.clamp(min=0)
    )
    return result, -float(density.mean())


def train_from(
    data: Split, count: int, start: Model, given: SimpleNamespace
) -> tuple[Row, Model]:
    """Train with Cholesky at one M; return its row, and where training ended."""
    points = centres(data, count, given.seed)
    result, nll = train(_CHOLESKY, data, points, start, given.training, given.seed)
    end = result.model
    row = {"data": data.name, "M": count, "NLL": nll}
    if isinstance(end.likelihood, StudentT):
        row["noise variance"] = float(end.likelihood.scale) ** 2
        row["ν"] = float(end.likelihood.degrees)
    return row, Model(end.kernel, end.likelihood, end.mean)


def pair_rows(data: Split, models: Models, given: SimpleNamespace) -> Iterator[Row]:
    """Take the same steps by both whitenings, q from the prior."""
    batch = given.training.batch_size
    for learning, where in ((False, _TRAINED), (True, _START)):
        learn = ("kernel", "likelihood", "mean") if learning else ()
        settings = SvgpSettings(
            batch_size=batch, epochs=1, rest=0.0, learn=learn, tolerance=_TOLERANCE
        )
        for count, steps in given.steps.items():
            few, points = (
                data.shortened(steps * batch),
                centres(data, count, given.seed),
            )
            (_, exact), (result, nll) = (
                train(method, few, points, models[where], settings, given.seed)
                for method in (_CHOLESKY, _CIQ)
            )
            yield {
                "data": data.name,
                "learning": learning,
                "M": count,
                "steps": result.count,
                "NLL of Cholesky": exact,
                _DIFFERENCE: nll - exact,
                "roots short of 1e-3": result.rows.unconverged,
                "solves for q short of 1e-3": result.solves.unconverged,
                "iterations": result.rows.iterations,
            }


def time_rows(data: Split, models: Models, given: SimpleNamespace) -> Iterator[Row]:
    """Time a step of learning at every M by both whitenings, from either model."""
    few = data.train[: given.batch]
    usual = SvgpSettings(
        batch_size=given.batch,
        steps=2,
        rest=0.0,
        rate=1e-6,
        record_every=10**6,
        tolerance=_TOLERANCE,
    )
    for count, where, method in product(given.timed, models, (_CHOLESKY, _CIQ)):
        model, points = models[where], centres(data, count, given.seed)
        whitening, settings = setup(method, model, points, usual)
        prior = RowwiseGaussian(
            whitening,
            few.functionals(),
            mean=ConstantMean(value=model.mean),
            tolerance=_TOLERANCE,
        )
        seen = Observations(
            values=few.values, likelihood=model.likelihood, offset=prior.offset
        )
        trainer = Trainer(prior, seen, settings, torch.Generator())
        # The very first step is recorded, which takes time of its own.
        trainer.steps = 1
        with stopwatch() as taken, counted():
            trainer.step(torch.arange(given.batch))
        yield {
            "kernel": where,
            "M": count,
            "method": method,
            _SECONDS: taken[0],
            "iterations": trainer.forward.report.iterations,
        }


def root_rows(data: Split, models: Models, given: SimpleNamespace) -> Iterator[Row]:
    """Compare ``K^{-1/2} k_un`` of 16 rows after J iterations with the dense root."""
    points = centres(data, given.roots, given.seed)
    for where, model in models.items():
        K = KernelMatrix(model.kernel, points, nugget=_NUGGET)
        values, vectors = torch.linalg.eigh(K.to_dense())
        cross = point_covariance(model.kernel, data.train.inputs[:16], points)
        exact = cross @ (vectors / values.sqrt()) @ vectors.mT
        for limit in given.limits:
            with counted():
                ciq = CIQ(rtol=1e-8, max_steps=limit)
                found = ciq.inverse_root(K.matvec, cross, _NUGGET)
            error = (found.value - exact).norm(dim=1) / exact.norm(dim=1)
            yield {
                "kernel": where,
                "M": given.roots,
                "J": limit,
                "condition": float(values[-1] / values[0]),
                "error": float(error.max()),
                "bound": float(found.error.max()),
            }


def compare(report: Report) -> None:
    """Compare errors of roots, times of a step, and losses after the same steps."""
    for row in report.tables[_ERRORS]:
        what = f"error of a root, J = {row['J']}, hyperparameters: {row['kernel']}"
        remark = f"M = {row['M']:,}, condition {row['condition']:.1e}"
        report.compare(what, "errors of roots, figure", None, row["error"], remark)
    timed = report.tables[_TIMED]
    for row in timed:
        if row["method"] == _CHOLESKY:
            where, size = row["kernel"], row["M"]
            what = f"time of Cholesky / CIQ, M = {size:,}, hyperparameters: {where}"
            paper = "about 1" if size == 1_000 else None
            seconds = cell(timed, _SECONDS, kernel=where, M=size, method=_CIQ)
            remark = "here: per step on a CPU; paper: a GPU"
            here = row[_SECONDS] / seconds
            report.compare(what, "training time, figure", paper, here, remark)
    pairs = report.tables[_PAIRS]
    for name, learning in dict.fromkeys((r["data"], r["learning"]) for r in pairs):
        own = [r for r in pairs if (r["data"], r["learning"]) == (name, learning)]
        worst = max((row[_DIFFERENCE] for row in own), key=abs)
        steps = ", ".join(f"{row['M']:,} ({row['steps']})" for row in own)
        how = "learning" if learning else "fixed hyperparameters"
        what = f"NLL of CIQ - Cholesky, {how}, largest [nats], {name}"
        paper = "very similar (a drawing)" if learning else None
        remark = f"here: M (steps) = {steps}"
        report.compare(what, "NLL, figure", paper, f"{worst:+.1e}", remark)


if __name__ == "__main__":
    run_script(
        __file__,
        __doc__,
        experiment,
        SIZES,
        data=f"folder of {_KIN40K} and {_COLORADO}",
    )
