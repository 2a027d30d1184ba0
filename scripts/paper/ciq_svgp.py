#!/usr/bin/env python3
"""SVGP whitened by contour quadrature (CIQ) against Cholesky, three likelihoods.

The paper is Pleiss, Jankowiak, Eriksson, Damle & Gardner (2020), "Fast Matrix Square
Roots with Applications to Gaussian Processes and Bayesian Optimization", NeurIPS,
arXiv:2006.11267, section 5.1. Other sets with the same likelihoods stand in for its
own. Trained with Cholesky at more and more inducing points, with CIQ for as many of the
same steps as end in time; one step of either timed; features on a grid through FFTs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ananke_data import default_folder
from ciq_figure import draw
from ciq_plans import METHODS, PLANS, Pair, Plan
from ciq_report import (
    NOISE,
    NU,
    START,
    TRAINED,
    Results,
    comparisons,
    grid_note,
    trained_pairs,
)
from paper_report import NOT_RUN, Report, Row, parser, size_of
from regression_data import (
    FLIGHTS,
    KIN40K,
    PRECIPITATION,
    Split,
    read_colorado,
    read_flights,
    read_kin40k,
)
from svgp_runs import (
    CHOLESKY,
    DENSE,
    NUGGET,
    RTOL,
    STEPS,
    TOLERANCE,
    Fitted,
    Model,
    grid_rows,
    inducing_points,
    solves_of,
    step_row,
    train,
)

from dustmap.inference.svi import SvgpSettings
from dustmap.likelihoods import Bernoulli, Gaussian, StudentT
from pipelines.base.errors import InputError
from pipelines.base.progress import say


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A data set and where its training starts."""

    data: Split
    start: Model


def main() -> None:
    options = arguments()
    plan = PLANS[size_of(options)]
    try:
        report = Report.of("ciq_svgp", __doc__, options)
        tasks, missing = find_tasks(options, plan)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    results = run(tasks, plan, options.seed)
    report.comparisons = comparisons(results)
    report.tables = results.tables()
    report.notes = [*missing, *notes(tasks, plan, results)]
    report.write(options.output, lambda figure: draw(figure, results), shape=(11, 6.4))


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    names = f"{KIN40K}, {PRECIPITATION}, {FLIGHTS}"
    options.add_argument("--data", type=Path, metavar="FOLDER", help=f"of {names}")
    return options.parse_args()


def find_tasks(options: argparse.Namespace, plan: Plan) -> tuple[list[Task], list[str]]:
    """The sets that are there, and a note on each that is missing."""
    folder, seed = options.data or default_folder(), options.seed
    choices = (
        (KIN40K, read_kin40k, Gaussian(variance=0.3), 2.0),
        (PRECIPITATION, read_colorado, StudentT(scale=0.5, degrees=4.0), 0.3),
        (FLIGHTS, _read_delays, Bernoulli(), 2.0),
    )
    tasks, missing = [], []
    for file, read, likelihood, scale in choices:
        if options.data is not None or (folder / file).is_file():
            data = read(folder, seed).shortened(plan.rows, plan.tests)
            start = Model.start(scale, data.train.shape[1], likelihood)
            tasks.append(Task(data=data, start=start))
        else:
            missing.append(f"{NOT_RUN}: {file} was not found")
    if not tasks:
        raise InputError(
            f"no data: give the folder of {KIN40K}, {PRECIPITATION} and {FLIGHTS} by "
            "--data or $DUSTMAP_DATA"
        )
    return tasks, missing


def _read_delays(folder: Path, seed: int) -> Split:
    return read_flights(folder / FLIGHTS, seed, delayed=True)


def run(tasks: Sequence[Task], plan: Plan, seed: int) -> Results:
    """All parts; times are taken on the heavy-tailed set, else on the first."""
    trained, pairs, timed = [], [], []
    heavy = next((t for t in tasks if isinstance(t.start.likelihood, StudentT)), None)
    for task in tasks:
        rows, end = train_task(task, plan, seed)
        trained += rows
        models = {START: task.start, TRAINED: end}
        pairs += [pair_row(task.data, pair, models, plan, seed) for pair in plan.pairs]
        if task is (heavy or tasks[0]):
            timed = time_task(task.data, models, plan, seed)
    grid = [
        row
        for side in plan.sides
        for row in grid_rows(side, plan.grid_rows, seed, dense=side**2 <= plan.dense)
    ]
    return Results(
        trained=trained,
        pairs=[*pairs, *trained_pairs(trained)],
        timed=timed,
        grid=grid,
        heavy=None if heavy is None else heavy.data.name,
    )


def train_task(task: Task, plan: Plan, seed: int) -> tuple[list[Row], Model]:
    """Every M by every method, and the model of the most points."""
    rows, end = [], task.start
    settings = training_settings(task, plan)
    for count in plan.sizes:
        points = inducing_points(task.data, count, seed)
        for method in plan.methods:
            fit = train(method, task.data, points, task.start, settings, seed)
            rows.append(training_row(task.data, method, fit))
            say(f"{rows[-1]}")
            end = fit.model
    return rows, end


def training_settings(task: Task, plan: Plan) -> SvgpSettings:
    """The plan's, with what the paper has for single sets if it is to be followed."""
    settings = plan.settings
    if not plan.published:
        return settings
    likelihood = task.start.likelihood
    learnt = (
        *(f"kernel.{name}" for name in task.start.kernel.parameters()),
        *(f"likelihood.{name}" for name in likelihood.parameters()),
        "mean",
        "points",
    )
    settings = replace(settings, learn=learnt)
    if isinstance(likelihood, StudentT):
        return replace(settings, natural_rate=0.005, rate=0.005)
    if isinstance(likelihood, Bernoulli):
        return replace(settings, batch_size=512)
    return settings


def training_row(data: Split, method: str, fit: Fitted) -> Row:
    """One fit in the tables, in standardised units."""
    likelihood = fit.model.likelihood
    scales = fit.model.kernel.parameters()
    classes = isinstance(likelihood, Bernoulli)
    noise = nu = None
    if isinstance(likelihood, StudentT):
        noise, nu = float(likelihood.scale) ** 2, float(likelihood.degrees)
    elif isinstance(likelihood, Gaussian):
        noise = float(likelihood.variance)
    return {
        "data": data.name,
        "N": len(data.values),
        "M": fit.result.model.whitening.size,
        "method": method,
        "steps": 1 + len(fit.steps),
        "seconds per step": fit.seconds,
        "NLL": fit.nll,
        "RMSE": None if classes else fit.error,
        "wrong classes": fit.error if classes else None,
        "bound / N": fit.result.bound / len(data.values),
        NOISE: noise,
        NU: nu,
        "lengthscale": float(scales["lengthscale"].log().mean().exp()),
        "k(0)": float(scales["variance"]),
        **solves_of(method, fit.result.rows),
    }


def pair_row(
    data: Split, pair: Pair, models: dict[str, Model], plan: Plan, seed: int
) -> Row:
    """The same steps by both whitenings, q from the prior."""
    batch = plan.settings.batch_size
    few = data.shortened(pair.steps * batch, plan.pair_tests)
    points = inducing_points(data, pair.points, seed)
    settings = SvgpSettings(
        batch_size=batch,
        epochs=1,
        natural_rate=0.3,
        rest=0.0,
        learn=("kernel", "likelihood", "mean") if pair.learn else (),
        record_every=10**6,
        tolerance=TOLERANCE,
    )
    start = models[pair.kernel]
    fits = {m: train(m, few, points, start, settings, seed) for m in METHODS}
    exact, quadrature = fits[CHOLESKY], fits[DENSE]
    row: Row = {
        "data": data.name,
        "kernel": pair.kernel,
        "learning": pair.learn,
        "M": len(points),
        "steps": 1 + len(exact.steps),
        "NLL, Cholesky": f"{exact.nll:.6f}",
        "NLL, CIQ": f"{quadrature.nll:.6f}",
        "CIQ - Cholesky": quadrature.nll - exact.nll,
        "time of CIQ / Cholesky": (
            quadrature.seconds / exact.seconds if pair.learn else None
        ),
        **solves_of(DENSE, quadrature.result.rows),
    }
    say(f"{row}")
    return row


def time_task(
    data: Split, models: dict[str, Model], plan: Plan, seed: int
) -> list[Row]:
    """One step at every M by both whitenings, from either hyperparameters."""
    rows = []
    for count in plan.timed:
        points = inducing_points(data, count, seed)
        for where, model in models.items():
            if where == TRAINED and count > plan.hard:
                continue
            for method in METHODS:
                row = step_row(
                    method,
                    data,
                    points,
                    model,
                    batch=plan.batch,
                    repeats=plan.repeats,
                )
                rows.append({"kernel": where, **row})
                say(f"{rows[-1]}")
    return rows


def notes(tasks: Sequence[Task], plan: Plan, results: Results) -> list[str]:
    """What differs from the paper, and why."""
    sets = ", ".join(
        f"{t.data.name} (N = {len(t.data.values):,}, D = {t.data.train.shape[1]}, "
        f"{type(t.start.likelihood).__name__})"
        for t in tasks
    )
    settings = plan.settings
    return [
        f"{sets}; the paper: 3droad (N = 326,155, D = 2, Gaussian), Precipitation "
        "(75,952, 3, Student-T), Covtype (435,759, 54, Bernoulli)",
        f"Matérn-5/2, a lengthscale per axis, clusters' centres as points "
        f"({'learnt' if plan.published else 'fixed'}), natural gradients "
        f"({settings.natural_rate}) for q, Adam ({settings.rate:g}) for the rest; "
        "the paper: points learnt, 0.01 both (0.005 for Precipitation), a tenth of it "
        "from epochs 1, 5, 10 and 15 of 20, lengthscales of 0.01 at first",
        f"CIQ to {RTOL:g} in at most {STEPS} iterations in double precision, with the "
        "error of the root, not the residual of a shifted system, within that; a "
        f"nugget of {NUGGET:g} in both; with Cholesky whitening a step factorises the "
        "precision of q, with CIQ it takes iterative solves",
        operations_note(plan.batch),
        grid_note(results.grid),
        "at fixed hyperparameters the whitenings differ by what the roots are worth; "
        "while these move they differ even for exact roots, for a q(ε) that rests "
        "while the kernel moves is another q(u) by either root",
        "NLL: nats per test row, outputs standardised; 'start' and 'trained': "
        "hyperparameters before and after training with Cholesky at the most points",
    ]


def operations_note(batch: int) -> str:
    """What a step takes by counting: products there and back, and 15 shifts' own."""
    hard, easy = ((4 * J + 60) * batch // 5 for J in (STEPS, 15))
    return (
        "counted, a step takes some (4 J + 60) |B| M² operations with CIQ and 5 M³ "
        f"with Cholesky: with {batch} rows the former are fewer beyond M = {easy:,} "
        f"for J = 15 and {hard:,} for J = {STEPS}; a GPU does products, of which CIQ "
        "consists, far faster than factorisations, a CPU both alike"
    )


if __name__ == "__main__":
    main()
