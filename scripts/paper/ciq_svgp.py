#!/usr/bin/env python3
"""SVGP whitened by contour quadrature (CIQ) against Cholesky, three likelihoods.

The paper is Pleiss, Jankowiak, Eriksson, Damle & Gardner (2020), "Fast Matrix Square
Roots with Applications to Gaussian Processes and Bayesian Optimization", NeurIPS,
arXiv:2006.11267, section 5.1: 3droad (Gaussian), Precipitation (Student's t), Covtype
(Bernoulli). Smaller sets with the same likelihoods stand in. Matérn-5/2 with a
lengthscale per axis, clusters' centres as points (fixed; learnt in the paper), natural
gradients for q and Adam for the rest. Trained with Cholesky at more and more inducing
points, with CIQ (to 1e-3 in at most 200 iterations in double precision) for as many of
the same steps as end in time; one step of either timed. NLL in nats per test row,
outputs standardised; 'start' and 'trained': hyperparameters before and after training
with Cholesky at the most points. At fixed hyperparameters the whitenings differ by what
the roots are worth; while these move they differ even for exact roots, for a q(ε) that
rests while the kernel moves is another q(u) by either root. With Cholesky whitening a
step factorises the precision of q, with CIQ it takes iterative solves: products, which
a GPU does far faster than factorisations, a CPU both alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ananke_data import default_folder
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
)
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
    TOLERANCE,
    Fitted,
    Model,
    inducing_points,
    step_row,
    train,
)

from dustmap.inference.svi import SvgpSettings
from dustmap.likelihoods import Bernoulli, Gaussian, StudentT
from pipelines.base.errors import InputError
from pipelines.base.progress import say

_METHODS = (CHOLESKY, DENSE)
START, TRAINED = "start", "trained"
NU, NOISE = "ν", "noise variance"
_TIMES, _NLL, _STATS = "training time, figure", "NLL, figure", "likelihood, figure"
# M to the paper's time of Cholesky over that of CIQ, with hyperparameters as here.
_RATIOS = {START: {1_000: "about 1", 4_000: None}, TRAINED: {1_000: "about 1"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Steps by both whitenings, from hyperparameters as ``kernel`` says.

    Without ``learn`` these stay: only q is fitted.
    """

    points: int
    steps: int
    kernel: str = START
    learn: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run.

    ``rows`` and ``tests`` limit a set; ``sizes`` are trained with ``settings``;
    ``timed`` are the M of one step (``hard``: the largest at which trained
    hyperparameters are timed, too).
    """

    rows: int
    tests: int
    sizes: tuple[int, ...]
    settings: SvgpSettings
    pairs: tuple[Pair, ...]
    pair_tests: int
    timed: tuple[int, ...]
    hard: int
    batch: int
    repeats: int


PLANS: dict[Size, Plan] = {
    "quick": Plan(
        rows=600,
        tests=150,
        sizes=(20, 40),
        settings=SvgpSettings(
            steps=12, batch_size=64, natural_rate=0.3, tolerance=TOLERANCE
        ),
        pairs=(
            Pair(points=40, steps=4, kernel=TRAINED, learn=False),
            Pair(points=30, steps=4),
            Pair(points=40, steps=2, kernel=TRAINED),
        ),
        pair_tests=50,
        timed=(30, 60),
        hard=30,
        batch=32,
        repeats=2,
    ),
    "default": Plan(
        rows=30_000,
        tests=4_000,
        sizes=(125, 250, 500, 1_000),
        settings=SvgpSettings(
            steps=200, natural_rate=0.2, rate=0.05, tolerance=TOLERANCE, record_every=20
        ),
        pairs=(
            *(
                Pair(points=count, steps=steps, kernel=TRAINED, learn=False)
                for count, steps in ((250, 8), (500, 6), (1_000, 3))
            ),
            *(
                Pair(points=count, steps=steps)
                for count, steps in ((250, 16), (500, 8), (1_000, 4))
            ),
            Pair(points=250, steps=4, kernel=TRAINED),
            Pair(points=500, steps=3, kernel=TRAINED),
        ),
        pair_tests=256,
        timed=(500, 1_000, 2_000, 4_000),
        hard=2_000,
        batch=256,
        repeats=1,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A data set and where its training starts."""

    data: Split
    start: Model


def main() -> None:
    options = parser(__doc__)
    names = f"{KIN40K}, {PRECIPITATION}, {FLIGHTS}"
    options.add_argument("--data", type=Path, metavar="FOLDER", help=f"of {names}")
    chosen = options.parse_args()
    plan, seed = PLANS[size_of(chosen)], chosen.seed
    report = Report.of("ciq_svgp", __doc__, chosen)
    with refusals():
        tasks, report.notes = find_tasks(chosen, plan)
    heavy = next((t for t in tasks if isinstance(t.start.likelihood, StudentT)), None)
    trained: list[Row] = []
    pairs: list[Row] = []
    timed: list[Row] = []
    for task in tasks:
        rows, end = train_task(task, plan, seed)
        trained += rows
        models = {START: task.start, TRAINED: end}
        pairs += [pair_row(task.data, pair, models, plan, seed) for pair in plan.pairs]
        # Times are taken on the heavy-tailed set, else on the first.
        if task is (heavy or tasks[0]):
            timed = time_task(task.data, models, plan, seed)
    report.comparisons = [*compare_times(timed), *compare_pairs(pairs)]
    if heavy is not None:
        own = [row for row in trained if row["data"] == heavy.data.name]
        report.comparisons += compare_likelihoods(own)
    report.tables = {
        "Training": trained,
        "Both whitenings, the same steps": pairs,
        "One step of learning": timed,
    }
    curves = group(
        timed, lambda r: f"{r['method']}, {r['kernel']}", "M", "seconds per step"
    )
    report.write(chosen.output, plot(curves, "inducing points M", "seconds per step"))


def find_tasks(options: argparse.Namespace, plan: Plan) -> tuple[list[Task], list[str]]:
    """Read the sets that are there; note each that is missing."""
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


def train_task(task: Task, plan: Plan, seed: int) -> tuple[list[Row], Model]:
    """Train at every M; return the rows and the model of the most points."""
    rows, end = [], task.start
    for count in plan.sizes:
        points = inducing_points(task.data, count, seed)
        fit = train(CHOLESKY, task.data, points, task.start, plan.settings, seed)
        rows.append(training_row(task.data, fit))
        say(f"{rows[-1]}")
        end = fit.model
    return rows, end


def training_row(data: Split, fit: Fitted) -> Row:
    """List one fit, in standardised units."""
    row: Row = {
        "data": data.name,
        "M": fit.result.model.whitening.size,
        "NLL": fit.nll,
    }
    likelihood = fit.model.likelihood
    if isinstance(likelihood, StudentT):
        row[NOISE] = float(likelihood.scale) ** 2
        row[NU] = float(likelihood.degrees)
    return row


def pair_row(
    data: Split, pair: Pair, models: dict[str, Model], plan: Plan, seed: int
) -> Row:
    """Take the same steps by both whitenings, q from the prior."""
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
    exact, quadrature = (
        train(method, few, points, start, settings, seed) for method in _METHODS
    )
    roots = quadrature.result.rows
    row: Row = {
        "data": data.name,
        "kernel": pair.kernel,
        "learning": pair.learn,
        "M": len(points),
        "steps": exact.steps,
        "CIQ - Cholesky": quadrature.nll - exact.nll,
        "roots short of 1e-3": f"{roots.unconverged} of {roots.rows}",
    }
    say(f"{row}")
    return row


def time_task(
    data: Split, models: dict[str, Model], plan: Plan, seed: int
) -> list[Row]:
    """Time one step at every M by both whitenings, from either hyperparameters."""
    rows = []
    for count in plan.timed:
        points = inducing_points(data, count, seed)
        for where, model in models.items():
            if where == TRAINED and count > plan.hard:
                continue
            for method in _METHODS:
                row = step_row(
                    method, data, points, model, batch=plan.batch, repeats=plan.repeats
                )
                rows.append({"kernel": where, **row})
                say(f"{rows[-1]}")
    return rows


def ratios(timed: Sequence[Row], where: str) -> dict[int, float]:
    """Divide the time of Cholesky by that of CIQ at every M."""
    seconds = {
        (row["method"], row["M"]): row["seconds per step"]
        for row in timed
        if row["kernel"] == where
    }
    return {
        size: found / seconds[DENSE, size]
        for (method, size), found in seconds.items()
        if method == CHOLESKY and (DENSE, size) in seconds
    }


def compare_times(timed: Sequence[Row]) -> list[Comparison]:
    """Compare times of a step, and the smallest M at which CIQ is faster."""
    found = []
    for where, stated in _RATIOS.items():
        shares = ratios(timed, where)
        remark = f"here: per step on a CPU, hyperparameters: {where}; paper: a GPU"
        found += [
            Comparison(
                what=f"time of Cholesky / CIQ, M = {size:,}",
                source=_TIMES,
                paper=paper,
                here=shares.get(size),
                remark=remark,
            )
            for size, paper in stated.items()
        ]
        found.append(
            Comparison(
                what="smallest M at which CIQ is faster",
                source=_TIMES,
                paper="about 1,000",
                here=crossover(shares),
                remark=remark,
            )
        )
    return found


def crossover(shares: dict[int, float]) -> str | None:
    """Find the first M at which Cholesky takes longer; ``None`` without times."""
    if not shares:
        return None
    faster = [size for size, share in sorted(shares.items()) if share > 1]
    return f"{faster[0]:,}" if faster else f"none up to {max(shares):,}"


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
                source=_NLL,
                paper="very similar (a drawing)" if learning else None,
                here=f"{worst['CIQ - Cholesky']:+.1e}",
                remark=f"here: M (steps) = {steps}",
            )
        )
    return found


def compare_likelihoods(heavy: Sequence[Row]) -> list[Comparison]:
    """Compare the heavy-tailed likelihood learnt with the fewest and most points."""
    first, last = heavy[0], heavy[-1]
    stated = {NOISE: "0.19 to 0.05", NU: "falls (a drawing)"}
    return [
        Comparison(
            what=f"learnt {name} of Student's t, fewest to most points",
            source=_STATS,
            paper=paper,
            here=f"{first[name]:.3g} to {last[name]:.3g}",
            remark=f"paper: M = 1,000 to 10,000; here: {first['M']:,} to {last['M']:,}",
        )
        for name, paper in stated.items()
    ]


if __name__ == "__main__":
    main()
