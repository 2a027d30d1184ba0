#!/usr/bin/env python3
"""A plane field on more and more inducing points (section 5.4, Figs. 3 and 4).

Matérn-5/2 kernel of one lengthscale, chosen with the noise by the evidence of a subset,
zero mean after centring. The full-batch engine at every M; HIP-GP's engine (blocks of
10 × 10, at most 20 PCG iterations a row in training, 50 in evaluation) and SVGP, the
optimum of its bound in closed form, on 2,000 observations. The full batch weighs
observations with what the grid cannot resolve as further noise; the others climb the
bound without it, as in the paper. RMSE is of noisy observations that were held out. An
epoch of HIP-GP: its steps and the solves of all its rows. The paper's prices are not
shipped; US precipitation and a simulated field of as many observations (Matérn-5/2,
variance 1, lengthscale 1/75 of the box, noise 0.3) stand in, and times are of a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from data import Rows, Split, drawn_field, read_table, split
from engines import (
    FULL_BATCH,
    Fit,
    Scales,
    best_scales,
    collapsed,
    dropped,
    embedded,
    full_batch,
)
from paper_report import (
    Report,
    Row,
    cell,
    plot,
    ratio,
    root_mean_square,
    run_script,
    stopwatch,
)
from torch import Tensor

from dustmap.inference.svi import HipSettings, fit_svi, solve_mean
from dustmap.inference.svi.bound import Observations
from dustmap.kernels import Matern52
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening

_PRECIPITATION = "us_precip_april1948.csv.gz"
# Of the simulated field, which fills the unit square.
_LATTICE, _LENGTHSCALE, _NOISE = 1_000, 1 / 75, 0.3
STEPS, SOLVED, SVGP = "svi, steps alone", "svi, mean solved", "SVGP (dense)"
# Fig. 3c: RMSE of HIP-GP with M = 10,000 and 40,000 and of SVGP with M = 10,000, and
# seconds per epoch of the observations.
_RMSE = (0.411, 0.389, 0.412)
_EPOCH = {"HIP-GP": 91.2, "SVGP": 193.6}
_OBSERVATIONS = 160_947
# PCG iterations in training and in evaluation.
_TRAINING, _EVALUATION = 20, 50
# Bytes of rows that are kept; beyond, they are solved anew in every epoch.
_ROWS = 2**31
# The paper's blocks: 10 points per axis.
_BLOCK = 10
_BATCH = 200
_MEAN = ConjugateGradients(rtol=1e-6, max_steps=3_000)
# Of what the covariance may change, relative, where an embedding has to be clipped.
_CLIP = EmbeddingLimits(max_points=2**20, clip=True, max_error=1e-3)
SIZES = {
    # Points per axis of the full batch; rows of the simulated field.
    "sides": ((100, 120, 140, 160, 180, 200), (20, 30)),
    "train": (_OBSERVATIONS, 1_500),
    "test": (20_000, 400),
    "searched": (1_000, 150),
    # Rows to train and to test on, and points per axis, of svi and SVGP.
    "some": ((2_000, 500), (400, 150)),
    "some_side": (100, 20),
    "epochs": (2, 1),
    # Likewise of the early stopping.
    "early": ((1_000, 300), (300, 100)),
    "early_side": (120, 20),
    "iterations": ((1, 2, 5, 10, 20, 50), (1, 3, 10)),
}


def experiment(report: Report, given: SimpleNamespace) -> None:
    """Fit the simulated field, and precipitation where it is there."""
    fallen = report.read(
        given.data, _PRECIPITATION, lambda file: read_precipitation(file, given.seed)
    )
    field = simulate_field(given.train, given.test, given.seed)
    for data in (field, fallen):
        if data is not None:
            compare(report, data.name, report.collect("Fits", run(data, given)))
    full = [row for row in report.tables["Fits"] if row["engine"] == FULL_BATCH]
    report.figure = plot(
        full, lambda row: row["data"], "RMSE", scales=("log", "linear")
    )


def read_precipitation(file: Path, seed: int) -> Split:
    """Read standardised anomalies of US stations in April 1948; test on a fifth.

    Of 11,918 stations those that observed. Longitudes are shortened by the cosine of
    the mean latitude.
    """
    lon, lat, anomaly, infill = read_table(file, ("lon", "lat", "anomaly", "infill")).T
    observed = infill == 1
    lon = lon * math.cos(math.radians(float(lat[observed].mean())))
    positions = np.stack([lon, lat], axis=1)[observed]
    count = len(positions)
    return split(
        "US precipitation",
        Rows.of(positions, anomaly[observed]),
        np.random.default_rng(seed).permutation(count),
        count - count // 5,
        count // 5,
        (positions.min(axis=0).tolist(), positions.max(axis=0).tolist()),
    ).scaled()


def simulate_field(train: int, test: int, seed: int) -> Split:
    """A Matérn-5/2 field of variance 1, lengthscale 1/75 of the box, noise 0.3.

    It is drawn on a lattice of 1,000² points, at random ones of which it is observed.
    """
    generator = torch.Generator().manual_seed(seed)
    kernel, lattice = Matern52(lengthscale=_LENGTHSCALE), _LATTICE
    field = drawn_field(kernel, lattice, 1_120, generator).reshape(-1)
    rows = torch.randperm(len(field), generator=generator)[: train + test]
    white = torch.randn(len(rows), generator=generator, dtype=torch.float64)
    truth = field[rows]
    places = torch.stack([rows // lattice, rows % lattice], dim=1) / (lattice - 1)
    return split(
        "simulated",
        Rows.of(places.to(torch.float64), truth + _NOISE * white, truth=truth),
        torch.arange(len(rows)),
        train,
        test,
        ((0.0, 0.0), (1.0, 1.0)),
    ).scaled()


def run(data: Split, given: SimpleNamespace) -> Iterator[Row]:
    """Fit one data set by every engine."""
    lengthscales = math.sqrt(math.prod(data.sides)) * np.geomspace(0.0067, 0.2, 12)
    scales = best_scales(
        [Matern52], data, lengthscales.tolist(), count=given.searched, seed=given.seed
    )
    for side in given.sides:
        yield row_of(data, FULL_BATCH, side, on_torus(data, scales, side, given.seed))
    some, side = data.shortened(*given.some), given.some_side
    fits = svi(some, scales, side, given.seed, epochs=given.epochs)
    fits[SVGP] = svgp(some, scales, side)
    for engine, fit in fits.items():
        yield row_of(some, engine, side, fit)
    few, side = data.shortened(*given.early), given.early_side
    for iterations in given.iterations:
        fit = stopped_early(few, scales, side, iterations)
        yield {"PCG iterations": iterations, **row_of(few, SOLVED, side, fit)}


def row_of(data: Split, engine: str, side: int, fit: Fit) -> Row:
    """Make one row of the table."""
    row: Row = {
        "data": data.name,
        "N": len(data.train),
        "M": side**2,
        "engine": engine,
        "RMSE": root_mean_square(fit.mean - data.test.values),
        "epoch [s]": fit.seconds,
        "converged": fit.converged,
        "modes set to zero": fit.dropped,
    }
    if bool(data.test.truth.isfinite().all()):
        row["RMSE of the noise-free"] = root_mean_square(fit.mean - data.test.truth)
    return row


def on_torus(data: Split, scales: Scales, side: int, seed: int) -> Fit:
    """The mean of the full batch."""
    grid = data.grid(side, side)
    with stopwatch() as taken:
        fit = full_batch(
            data, scales, grid, solver=_MEAN, samples=0, draws=8, rank=0, seed=seed
        )
    return fit._replace(seconds=taken[0])


def whitening_of(
    data: Split, scales: Scales, side: int, iterations: int
) -> ToeplitzWhitening:
    """HIP-GP's whitening with PCG stopped after so many iterations."""
    solver = ConjugateGradients(rtol=1e-8, max_steps=iterations, restarts=0)
    return embedded(scales.kernel, data.grid(side, side), solver, _CLIP)


def observed(
    data: Split, scales: Scales, whitening: ToeplitzWhitening
) -> tuple[RowwiseGaussian, Observations]:
    """HIP-GP's model of the training rows, and what was observed there."""
    rows = RowwiseGaussian(whitening, data.train.functionals())
    noise = data.train.noise + scales.noise
    return rows, Observations.of(rows, data.train.values, noise)


def predicted(model: RowwiseGaussian, data: Split, *means: Tensor) -> Tensor:
    """``k_*ᵀ m`` at the test points for every m, each row solved once."""
    wanted = model.at(data.test.functionals())
    wanted.keep_rows()
    return wanted.apply(torch.stack(means))


def svi(
    data: Split,
    scales: Scales,
    side: int,
    seed: int,
    *,
    epochs: int,
    training: int = _TRAINING,
    evaluation: int = _EVALUATION,
) -> dict[str, Fit]:
    """Natural-gradient steps with blocks of 10 × 10, and the exact mean after them."""
    whitening = whitening_of(data, scales, side, training)
    rows, seen = observed(data, scales, whitening)
    with stopwatch() as solving:
        if rows.kept_bytes <= _ROWS:
            rows.keep_rows()
    settings = HipSettings(
        block=_BLOCK,
        batch_size=_BATCH,
        epochs=epochs,
        solve_mean=False,
        row_memory=_ROWS,
    )
    with stopwatch() as stepping:
        generator = torch.Generator().manual_seed(seed)
        q = fit_svi(rows, seen, settings, generator=generator).q
    solution = solve_mean(rows, seen, solver=_MEAN, start=q.mean)
    evaluating = rows.on(whitening_of(data, scales, side, evaluation))
    stepped, solved = predicted(evaluating, data, q.mean, solution.value[0])
    seconds, zeroed = solving[0] + stepping[0] / epochs, dropped(whitening)
    converged = bool(solution.converged.all())
    return {
        STEPS: Fit(stepped, dropped=zeroed, seconds=seconds),
        SOLVED: Fit(solved, converged=converged, dropped=zeroed, seconds=seconds),
    }


def stopped_early(data: Split, scales: Scales, side: int, iterations: int) -> Fit:
    """The optimal mean with all rows, of training and test, stopped after so many."""
    whitening = whitening_of(data, scales, side, iterations)
    rows, seen = observed(data, scales, whitening)
    with stopwatch() as taken:
        rows.keep_rows()
        solution = solve_mean(rows, seen, solver=_MEAN)
    (mean,) = predicted(rows, data, solution.value[0])
    return Fit(
        mean,
        converged=bool(solution.converged.all()),
        dropped=dropped(whitening),
        seconds=taken[0],
    )


def svgp(data: Split, scales: Scales, side: int) -> Fit:
    """The optimum of SVGP's bound on the same points, dense."""
    with stopwatch() as taken:
        model = collapsed(data, scales, data.grid(side, side).points())
        moments = model.predict(data.test.functionals())
    return Fit(*moments, seconds=taken[0])


def compare(report: Report, name: str, rows: Sequence[Row]) -> None:
    """Compare ratios of Fig. 3c, Fig. 4's early stopping and times for one data set."""
    own = [row for row in rows if row["data"] == name]
    early = [row for row in own if "PCG iterations" in row]
    fits = [row for row in own if "PCG iterations" not in row]

    def rmse(engine: str, points: int) -> float | None:
        return cell(fits, "RMSE", engine=engine, M=points)

    fewer, more, dense = _RMSE
    what = "RMSE, M = 40,000 / M = 10,000, HIP-GP"
    here = ratio(rmse(FULL_BATCH, 40_000), rmse(FULL_BATCH, 10_000), ".4f")
    remark = f"here: {name}, full batch"
    report.compare(what, "Fig. 3c", f"{more / fewer:.4f}", here, remark)
    for engine in (STEPS, SOLVED):
        what = "RMSE, HIP-GP / SVGP, M = 10,000"
        here = ratio(rmse(engine, 10_000), rmse(SVGP, 10_000), ".4f")
        remark = f"here: {name}, {engine}"
        report.compare(what, "Fig. 3c", f"{fewer / dense:.4f}", here, remark)
    last = early[-1]
    enough = next(
        row["PCG iterations"]
        for row in early
        if abs(row["RMSE"] / last["RMSE"] - 1) < 0.01
    )
    report.compare(
        "PCG iterations that bring the RMSE within 1% of the most, M = 14,400",
        "Fig. 4 (a curve)",
        "robust to stopping",
        f"{enough}" if last["M"] == 14_400 else None,
        f"here: {name}, the most are {last['PCG iterations']}",
    )
    for paper, engine, whole in (("HIP-GP", STEPS, ""), ("SVGP", SVGP, ", whole fit")):
        what = f"seconds per epoch and 1,000 observations, {paper}, M = 10,000"
        stated = 1_000 * _EPOCH[paper] / _OBSERVATIONS
        case = {"engine": engine, "M": 10_000}
        epoch, count = (cell(fits, column, **case) for column in ("epoch [s]", "N"))
        here = ratio(epoch, None if count is None else count / 1_000, ".3g")
        report.compare(what, "Fig. 3c", f"{stated:.3g}", here, f"here: {name}{whole}")


if __name__ == "__main__":
    run_script(__file__, __doc__, experiment, SIZES, data=f"folder of {_PRECIPITATION}")
