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

import argparse
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from ananke_data import default_folder
from jaxtyping import Float
from paper_report import (
    NOT_RUN,
    Comparison,
    Report,
    Row,
    Size,
    group,
    parser,
    plot,
    refusals,
    size_of,
    stopwatch,
)
from regression_data import KIN40K, PRECIPITATION, Split, read_colorado, read_kin40k
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.inducing import kmeans_points
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
from pipelines.base.progress import say

_CHOLESKY = "Cholesky"
_CIQ = "CIQ"
# Hyperparameters before and after training at the most points.
_START = "start"
_TRAINED = "trained"
# Of k(0) where training starts; the same for both whitenings.
_NUGGET = 1e-4
# Of conditional variances below zero, by roots that missed their tolerance.
_TOLERANCE = 0.05
# Relative error of a root, and limit on iterations: the paper's of MINRES.
_ROOTS = CIQ(rtol=1e-3, max_steps=200)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """Kernel, likelihood and constant mean, where training starts or ended."""

    kernel: Kernel
    likelihood: Likelihood
    mean: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run.

    ``rows`` and ``tests`` limit a set; ``sizes`` are the M to train at, ``steps`` those
    of both whitenings by M, ``timed`` the M of one step on a ``batch`` of rows,
    ``roots`` and ``limits`` the M and J at which errors of roots are measured.
    """

    rows: int
    tests: int
    sizes: tuple[int, ...]
    settings: SvgpSettings
    steps: dict[int, int]
    timed: tuple[int, ...]
    batch: int
    roots: int
    limits: tuple[int, ...]


PLANS: dict[Size, Plan] = {
    "quick": Plan(
        rows=600,
        tests=150,
        sizes=(20, 40),
        settings=SvgpSettings(steps=12, batch_size=64, tolerance=_TOLERANCE),
        steps={30: 3, 40: 2},
        timed=(30, 60),
        batch=32,
        roots=100,
        limits=(10, 30, 60),
    ),
    "default": Plan(
        rows=30_000,
        tests=1_000,
        sizes=(125, 250, 500),
        settings=SvgpSettings(
            steps=200, natural_rate=0.2, rate=0.05, tolerance=_TOLERANCE, batch_size=128
        ),
        steps={250: 6, 500: 3},
        timed=(500, 1_000, 2_000, 4_000),
        batch=64,
        roots=1_000,
        limits=(25, 50, 100, 200),
    ),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, metavar="FOLDER")
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    plan, seed = PLANS[size_of(chosen)], chosen.seed
    report = Report.of("ciq_svgp", __doc__, chosen)
    with refusals():
        tasks, report.notes = find_tasks(chosen, plan)
    trained, pairs = [], []
    for data, start in tasks:
        rows, end = train_all(data, start, plan, seed)
        trained += rows
        models = {_START: start, _TRAINED: end}
        pairs += pair_rows(data, models, plan, seed)
        if data is tasks[0][0]:
            timed = time_rows(data, models, plan, seed)
            roots = root_rows(data, models, plan, seed)
    report.comparisons = [*compare_steps(roots, timed), *compare_pairs(pairs)]
    report.tables = {
        "Errors of roots": roots,
        "Training": trained,
        "Both whitenings, the same steps": pairs,
        "One step of learning": timed,
    }
    curves = group(
        timed, lambda r: f"{r['method']}, {r['kernel']}", "M", "seconds per step"
    )
    report.write(chosen.output, plot(curves, "inducing points M", "seconds per step"))


def find_tasks(
    options: argparse.Namespace, plan: Plan
) -> tuple[list[tuple[Split, Model]], list[str]]:
    """Read the sets that are there, with their models; note each that is missing."""
    folder = options.data or default_folder()
    choices = (
        (KIN40K, read_kin40k, Gaussian(variance=0.3), 2.0),
        (PRECIPITATION, read_colorado, StudentT(scale=0.5, degrees=4.0), 0.3),
    )
    tasks, missing = [], []
    for file, read, likelihood, scale in choices:
        if options.data is None and not (folder / file).is_file():
            missing.append(f"{NOT_RUN}: {file} was not found")
            continue
        data = read(folder, options.seed).shortened(plan.rows, plan.tests)
        kernel = Matern52(lengthscale=[scale] * data.train.shape[1])
        tasks.append((data, Model(kernel=kernel, likelihood=likelihood)))
    if not tasks:
        raise InputError("no data: give their folder by --data or $DUSTMAP_DATA")
    return tasks, missing


def centres(data: Split, count: int, seed: int) -> Float[Tensor, "m d"]:
    """Return centres of clusters of the training inputs."""
    generator = torch.Generator().manual_seed(seed)
    return kmeans_points(data.train, count, generator, rows=10_000)


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
            PointValues(data.train),
            data.values,
            whitening,
            start.likelihood,
            mean=start.mean,
            generator=torch.Generator().manual_seed(seed),
            settings=settings,
        )
        moments = result.model.predict(PointValues(data.test))
    density = result.model.likelihood.predictive_log_density(
        data.test_values, moments.mean, moments.variance.clamp(min=0)
    )
    return result, -float(density.mean())


def train_all(
    data: Split, start: Model, plan: Plan, seed: int
) -> tuple[list[Row], Model]:
    """Train with Cholesky at every M; return rows, and the model of the most points."""
    rows, end = [], start
    for count in plan.sizes:
        points = centres(data, count, seed)
        result, nll = train(_CHOLESKY, data, points, start, plan.settings, seed)
        last = result.model
        end = Model(kernel=last.kernel, likelihood=last.likelihood, mean=last.mean)
        row = {"data": data.name, "M": count, "NLL": nll}
        if isinstance(end.likelihood, StudentT):
            row["noise variance"] = float(end.likelihood.scale) ** 2
            row["ν"] = float(end.likelihood.degrees)
        rows.append(row)
        say(f"{row}")
    return rows, end


def pair_rows(
    data: Split, models: dict[str, Model], plan: Plan, seed: int
) -> list[Row]:
    """Take the same steps by both whitenings, q from the prior."""
    rows, batch = [], plan.settings.batch_size
    for learning, kernel in ((False, _TRAINED), (True, _START)):
        learn = ("kernel", "likelihood", "mean") if learning else ()
        settings = SvgpSettings(
            batch_size=batch, epochs=1, rest=0.0, learn=learn, tolerance=_TOLERANCE
        )
        for count, steps in plan.steps.items():
            few = data.shortened(steps * batch, plan.tests)
            args = few, centres(data, count, seed), models[kernel], settings, seed
            (_, exact), (result, nll) = (train(m, *args) for m in (_CHOLESKY, _CIQ))
            row = {
                "data": data.name,
                "learning": learning,
                "M": count,
                "steps": result.count,
                "NLL of Cholesky": exact,
                "CIQ - Cholesky": nll - exact,
                "roots short of 1e-3": result.rows.unconverged,
                "solves for q short of 1e-3": result.solves.unconverged,
                "iterations": result.rows.iterations,
            }
            rows.append(row)
            say(f"{row}")
    return rows


def time_rows(
    data: Split, models: dict[str, Model], plan: Plan, seed: int
) -> list[Row]:
    """Time a step of learning at every M by both whitenings, from either model."""
    rows, few = [], data.shortened(plan.batch, 0)
    given = SvgpSettings(
        batch_size=plan.batch,
        steps=2,
        rest=0.0,
        rate=1e-6,
        record_every=10**6,
        tolerance=_TOLERANCE,
    )
    for count in plan.timed:
        points = centres(data, count, seed)
        for where, model in models.items():
            for method in (_CHOLESKY, _CIQ):
                whitening, settings = setup(method, model, points, given)
                prior = RowwiseGaussian(
                    whitening,
                    PointValues(few.train),
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
                    trainer.step(torch.arange(plan.batch))
                row: Row = {"kernel": where, "M": count, "method": method}
                row["seconds per step"] = taken[0]
                row["iterations"] = trainer.forward.report.iterations
                rows.append(row)
                say(f"{row}")
    return rows


def root_rows(
    data: Split, models: dict[str, Model], plan: Plan, seed: int
) -> list[Row]:
    """Compare ``K^{-1/2} k_un`` of 16 rows after J iterations with the dense root."""
    rows, points = [], centres(data, plan.roots, seed)
    for where, model in models.items():
        K = KernelMatrix(model.kernel, points, nugget=_NUGGET)
        values, vectors = torch.linalg.eigh(K.to_dense())
        cross = point_covariance(model.kernel, data.train[:16], points)
        exact = cross @ (vectors / values.sqrt()) @ vectors.mT
        for limit in plan.limits:
            with counted():
                ciq = CIQ(rtol=1e-8, max_steps=limit)
                found = ciq.inverse_root(K.matvec, cross, _NUGGET)
            error = (found.value - exact).norm(dim=1) / exact.norm(dim=1)
            row = {"kernel": where, "M": plan.roots, "J": limit}
            row["condition"] = float(values[-1] / values[0])
            row |= {"error": float(error.max()), "bound": float(found.error.max())}
            rows.append(row)
    return rows


def compare_steps(roots: Sequence[Row], timed: Sequence[Row]) -> list[Comparison]:
    """Compare errors of roots after the most iterations, and times of a step by M."""
    found = {(r["kernel"], r["M"], r["method"]): r["seconds per step"] for r in timed}
    errors = [
        Comparison(
            what=f"error of a root, J = {row['J']}, hyperparameters: {row['kernel']}",
            source="errors of roots, figure",
            paper=None,
            here=row["error"],
            remark=f"M = {row['M']:,}, condition {row['condition']:.1e}",
        )
        for row in roots
    ]
    return errors + [
        Comparison(
            what=f"time of Cholesky / CIQ, M = {size:,}, hyperparameters: {where}",
            source="training time, figure",
            paper="about 1" if size == 1_000 else None,
            here=seconds / found[where, size, _CIQ],
            remark="here: per step on a CPU; paper: a GPU",
        )
        for (where, size, method), seconds in found.items()
        if method == _CHOLESKY
    ]


def compare_pairs(pairs: Sequence[Row]) -> list[Comparison]:
    """Compare the negative log densities after the same steps."""
    found = []
    for name, learning in dict.fromkeys((r["data"], r["learning"]) for r in pairs):
        own = [r for r in pairs if (r["data"], r["learning"]) == (name, learning)]
        worst = max(own, key=lambda row: abs(row["CIQ - Cholesky"]))
        steps = ", ".join(f"{row['M']:,} ({row['steps']})" for row in own)
        how = "learning" if learning else "fixed hyperparameters"
        found.append(
            Comparison(
                what=f"NLL of CIQ - Cholesky, {how}, largest [nats], {name}",
                source="NLL, figure",
                paper="very similar (a drawing)" if learning else None,
                here=f"{worst['CIQ - Cholesky']:+.1e}",
                remark=f"here: M (steps) = {steps}",
            )
        )
    return found


if __name__ == "__main__":
    main()
