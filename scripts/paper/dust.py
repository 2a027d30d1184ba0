#!/usr/bin/env python3
"""Dust by integrals along sight lines, on more and more points (section 5.5, Fig. 5).

HIP-GP and SVGP with blocks of 2 × 2 × 2 points (the optimum of the published bound),
zero mean and a Matérn-3/2 kernel whose variance is learnt with a common noise by their
bound on every grid; their lengthscale is that of the largest evidence of a subset, or
1.5 spacings on grids that are too coarse for it. This project's full batch has the
kernel of the largest evidence. MAE and MSE are of the noise-free extinction, the log
likelihood of the noisy one, of held-out stars. The paper has 480,000 stars of a
simulated galaxy, M = 62,500 for HIP-GP and M = 16,384 for SVGP. Here are 4,000 of its
stars in a smaller box, and a galaxy simulated by this project in the paper's: ratios
over M and the order of engines can be compared, figures cannot. A row of HIP-GP takes
PCG (200 iterations in training, 500 in evaluation, or to 1e-5) on its embedding for
each star: it runs on few stars, and what a row takes at M = 62,500 is timed. Embeddings
grow until they are positive or have 65,536 points, or 16 for each inducing point; from
there on negative modes are set to zero, as the published code does in general, where
that changes the covariance by no more than 2%.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from data import Rows, Split, read_table, split
from engines import (
    FULL_BATCH,
    HIPGP,
    SVGP,
    Fit,
    Scales,
    best_scales,
    collapsed,
    embedded,
    full_batch,
    optimum,
)
from paper_report import Report, Row, plot, run_script, stopwatch

from dustmap.functionals import GaussLegendre
from dustmap.gp.evidence import LBFGS, maximise
from dustmap.grid import Grid
from dustmap.kernels import Matern32, Radial
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import CholeskyWhitening, Whitening
from pipelines.base.geometry import unit_vectors
from pipelines.config import SimulateConfig
from pipelines.config.simulation import ErrorConfig, TruthConfig
from pipelines.simulate import simulate

_ANANKE = "ananke_5k.csv.gz"
# Half the boxes of stars [kpc], that of the sample and the paper's, and the noise of
# extinctions [mag].
_ANANKE_REACH, _ANANKE_NOISE = (0.25, 0.25, 0.05), 0.005
_GALAXY_REACH, _GALAXY_NOISE = (2.0, 2.0, 1.0), 0.02
_PARSECS = 1_000.0
Shape = tuple[int, int, int]
_LARGE = (50, 50, 25)
# Fig. 5c: HIP-GP with M = 62,500 and SVGP with M = 16,384.
MAE, MSE, LOGLIKE = "MAE [mag]", "MSE [mag²]", "log likelihood"
_PAPER = {MAE: (0.0101, 0.0153), MSE: (0.0012, 0.0020), LOGLIKE: (2.3517, 2.0690)}
# The paper's limits of PCG, in training and in evaluation.
_TRAINING = ConjugateGradients(rtol=1e-5, max_steps=200)
_EVALUATION = ConjugateGradients(rtol=1e-5, max_steps=500)
_MEAN = ConjugateGradients(rtol=1e-5, max_steps=3_000)
# Points of an embedding, at least and for each inducing point. Where it would outgrow
# them, negative modes are set to zero, as the published code does, if the covariance
# changes by no more than this share.
_FEWEST, _PER_POINT, _CLIPPED = 2**16, 16, 0.02
_JITTER = 1e-6
# The largest torus of the full batch whose quadrature runs on half its spacing.
_FINE = 50_000
SIZES = {
    # Stars, and grids of the engines; on as ``few`` stars to train and to test on as
    # HIP-GP gets, SVGP has its grids as well. On ``timed`` rows HIP-GP's cost at the
    # paper's M is measured.
    "sample": (
        SimpleNamespace(
            train=3_200,
            test=800,
            svgp=((4, 4, 2), (6, 6, 2), (8, 8, 3), (15, 15, 4), (20, 20, 5)),
            full=((4, 4, 2), (6, 6, 2), (8, 8, 3), (15, 15, 4), (25, 25, 6)),
            few=(120, 60),
            hipgp=((4, 4, 2), (8, 8, 3), (12, 12, 4)),
            samples=16,
            timed=0,
        ),
        SimpleNamespace(
            train=300,
            test=100,
            svgp=((4, 4, 2), (6, 6, 2)),
            full=((4, 4, 2), (6, 6, 2)),
            few=(60, 40),
            hipgp=((4, 4, 2), (8, 8, 2)),
            samples=8,
            timed=0,
        ),
    ),
    "galaxy": (
        SimpleNamespace(
            train=10_000,
            test=1_000,
            svgp=((10, 10, 5), (16, 16, 8), (20, 20, 10)),
            full=((10, 10, 5), (16, 16, 8), (20, 20, 10), (32, 32, 16), _LARGE),
            few=(300, 150),
            hipgp=((10, 10, 5), (16, 16, 8), (20, 20, 10)),
            samples=8,
            timed=4,
        ),
        SimpleNamespace(
            train=400,
            test=150,
            svgp=((6, 6, 4), (10, 10, 5)),
            full=((6, 6, 4), (10, 10, 5)),
            few=(100, 50),
            hipgp=((4, 4, 4), (8, 8, 4)),
            samples=8,
            timed=0,
        ),
    ),
    # Distance of the simulated galaxy's dust [pc].
    "spacing": (25.0, 50.0),
    # Stars and steps that scales are learnt with, nodes of a sight line.
    "searched": (600, 100),
    "steps": (8, 4),
    "nodes": (12, 6),
}


def experiment(report: Report, given: SimpleNamespace) -> None:
    """Fit the paper's stars, where they are there, and a simulated galaxy."""
    seed, few, many = given.seed, given.sample, given.galaxy
    sample = report.read(
        given.data, _ANANKE, lambda file: read_ananke(file, few.train, few.test, seed)
    )
    galaxy = simulate_galaxy(many.train, many.test, seed, spacing=given.spacing)
    seconds = None
    for data, sizes in ((sample, few), (galaxy, many)):
        if data is not None:
            kernel = choose_kernel(data, given)
            report.collect("Fits", run(data, kernel, sizes, given))
            if sizes.timed:
                seconds = row_seconds(data, kernel, sizes.timed, given.nodes)
            compare(report, data.name, report.tables["Fits"])
    report.compare(
        "seconds for a row of HIP-GP, M = 62,500",
        "section 5.5",
        None,
        seconds,
        "here: on this CPU, one thread unless said otherwise",
    )
    report.figure = plot(
        report.tables["Fits"],
        lambda row: f"{row['engine']}, {row['data']}, N = {row['N']:,}",
        MAE,
    )


def read_ananke(file: Path, train: int, test: int, seed: int) -> Split:
    """Read stars of the HIP-GP paper with one fixed split, their noise by the seed.

    Positions in kpc with the observer at the origin, extinctions in mag. The paper's
    recipe of noise is ``σ ~ U(0.5, 1.5) · 0.005``, ``y = e + σ N(0, 1)``.
    """
    table = read_table(file, ("x", "y", "z", "e"))
    ends, extinction = table[:, :3], table[:, 3]
    order = np.random.default_rng(0).permutation(len(table))[: train + test]
    generator = np.random.default_rng([1, seed])
    noisy, sigma = extinction.copy(), np.zeros_like(extinction)
    for rows in (order[:train], order[train:]):
        sigma[rows] = _ANANKE_NOISE * generator.uniform(0.5, 1.5, len(rows))
        noisy[rows] += sigma[rows] * generator.standard_normal(len(rows))
    return split(
        "Ananke, 4,000 stars",
        Rows.of(ends, noisy, noise=sigma**2, truth=extinction, rays=True),
        order,
        train,
        test,
        ([-side for side in _ANANKE_REACH], _ANANKE_REACH),
    )


def galaxy_config(stars: int, seed: int, spacing: float) -> SimulateConfig:
    """A galaxy in the paper's box with its dust every ``spacing`` [pc]."""
    half_x, half_y, half_z = (_PARSECS * side for side in _GALAXY_REACH)
    return SimulateConfig(
        stars=stars,
        seed=seed,
        truth=TruthConfig(half_x=half_x, half_y=half_y, half_z=half_z, spacing=spacing),
        errors=ErrorConfig(parallax=0.0, extinction=_GALAXY_NOISE),
    )


def simulate_galaxy(train: int, test: int, seed: int, *, spacing: float) -> Split:
    """Log-normal dust in the paper's box; stars of known distances, noise 0.02 mag."""
    stars = simulate(galaxy_config(train + test, seed, spacing)).stars
    distance = np.asarray(stars.distance) / _PARSECS
    rows = Rows.of(
        distance[:, None] * unit_vectors(stars.l, stars.b),
        np.asarray(stars.extinction, np.float64),
        noise=np.asarray(stars.extinction_error, np.float64) ** 2,
        truth=np.asarray(stars.extra["extinction_true"], np.float64),
        rays=True,
    )
    return split(
        "simulated galaxy",
        rows,
        np.random.default_rng([2, seed]).permutation(train + test),
        train,
        test,
        ([-side for side in _GALAXY_REACH], _GALAXY_REACH),
    )


def choose_kernel(data: Split, given: SimpleNamespace) -> Radial:
    """Lengthscale and variance of the largest evidence of some stars, zero mean."""
    longest = min(data.sides[0], 1.2)
    lengthscales = np.geomspace(0.05 * longest, 0.5 * longest, 7).tolist()
    rule = GaussLegendre(count=given.nodes)
    return best_scales(
        [Matern32], data, lengthscales, count=given.searched, seed=0, rule=rule
    ).kernel


def run(
    data: Split, kernel: Radial, sizes: SimpleNamespace, given: SimpleNamespace
) -> Iterator[Row]:
    """Fit by every engine, first all stars and then the few that HIP-GP gets."""
    learnt = {
        shape: learn_scales(data, kernel, shape, given)
        for shape in dict.fromkeys((*sizes.svgp, *sizes.hipgp))
    }
    for shape in sizes.full:
        fit = full_batch(
            data,
            Scales(kernel),
            data.grid(*shape),
            solver=_MEAN,
            samples=sizes.samples,
            fine=_FINE,
            seed=1,
        )
        yield row_of(data, FULL_BATCH, shape, fit)
    for shape in sizes.svgp:
        fit = rowwise(data, learnt[shape], shape, given.nodes, SVGP)
        yield row_of(data, SVGP, shape, fit)
    few = data.shortened(*sizes.few)
    for shape, engine in product(sizes.hipgp, (HIPGP, SVGP)):
        fit = rowwise(few, learnt[shape], shape, given.nodes, engine)
        yield row_of(few, engine, shape, fit)


def row_of(data: Split, engine: str, shape: Shape, fit: Fit) -> Row:
    """Score one fit for the table."""
    error = fit.mean - data.test.truth
    return {
        "data": data.name,
        "N": len(data.train),
        "engine": engine,
        "M": prod(shape),
        MAE: float(error.abs().mean()),
        MSE: float((error**2).mean()),
        LOGLIKE: fit.log_density(data),
        "modes set to zero": fit.dropped,
        "jitter": fit.jitter,
    }


def learn_scales(
    data: Split, start: Radial, shape: Shape, given: SimpleNamespace
) -> Scales:
    """Variance and common noise of the largest published bound on some stars.

    The bound counts what a coarse grid leaves over as certain unless more noise or a
    longer lengthscale explains it: the latter is 1.5 spacings at least. (Learnt as
    well, it runs away on grids that resolve next to nothing.)
    """
    grid, few = data.grid(*shape), data.shortened(given.searched)
    longest = max(float(start.lengthscale), 1.5 * max(grid.spacing))
    kernel = start.with_parameters({"lengthscale": torch.tensor(longest)})
    scales = Scales(kernel, 0.1 * float(few.train.values.var()))
    rule = GaussLegendre(count=given.nodes)
    model = collapsed(few, scales, grid.points(), jitter=_JITTER, rule=rule)
    settings = LBFGS(names=("variance", "noise"), max_steps=given.steps)
    learnt = maximise(model, settings).model
    assert isinstance(learnt.kernel, Radial)
    return Scales(learnt.kernel, float(learnt.noise))


def whitening_of(
    engine: str, kernel: Radial, grid: Grid, solver: ConjugateGradients
) -> Whitening:
    """HIP-GP's embedding or SVGP's Cholesky factor."""
    if engine == SVGP:
        # Parameters lie as the grid's points do: blocks are then of neighbouring
        # points, as the paper has them for SVGP.
        return CholeskyWhitening(kernel, grid, max_jitter=_JITTER)
    limits = EmbeddingLimits(
        max_points=max(_FEWEST, _PER_POINT * grid.size), clip=True, max_error=_CLIPPED
    )
    return embedded(kernel, grid, solver, limits)


def rowwise(data: Split, scales: Scales, shape: Shape, nodes: int, engine: str) -> Fit:
    """Find the optimum of HIP-GP's or SVGP's bound with blocks of 2 × 2 × 2 points."""
    grid, rule = data.grid(*shape), GaussLegendre(count=nodes)
    whitening = evaluating = whitening_of(engine, scales.kernel, grid, _TRAINING)
    if engine == HIPGP:
        evaluating = whitening_of(engine, scales.kernel, grid, _EVALUATION)
    return optimum(
        whitening,
        (data.train.functionals(rule), data.train.values, data.train.noise),
        data.test.functionals(rule),
        "block",
        common=scales.noise,
        evaluating=evaluating,
    )


def row_seconds(data: Split, kernel: Radial, count: int, nodes: int) -> float:
    """Time one of HIP-GP's rows at the paper's M [s] by the mean of some of them."""
    whitening = whitening_of(HIPGP, kernel, data.grid(*_LARGE), _TRAINING)
    seen = data.train[:count].functionals(GaussLegendre(count=nodes))
    model = RowwiseGaussian(whitening, seen)
    with stopwatch() as taken:
        model.keep_rows()
    return taken[0] / count


def compare(report: Report, name: str, rows: Sequence[Row]) -> None:
    """Compare more points with the most that SVGP has, and HIP-GP with SVGP.

    The full batch on its most points and SVGP on its most have the same stars, and so
    have HIP-GP and SVGP, the latter on the most points that are fewer by 2.5.
    """
    own = sorted((r for r in rows if r["data"] == name), key=lambda row: row["M"])
    all_stars = max(row["N"] for row in own)
    by: dict[tuple[str, bool], list[Row]] = {}
    for row in own:
        by.setdefault((row["engine"], row["N"] < all_stars), []).append(row)
    hip, alike = by[HIPGP, True], by[SVGP, True]
    most, dense = by[FULL_BATCH, False][-1], by[SVGP, False][-1]
    small = [row for row in alike if row["M"] <= hip[-1]["M"] / 2.5][-1]
    few = f"{hip[-1]['N']:,} stars, "
    pairs = (
        ("most points", most, "SVGP's most", dense, ""),
        (HIPGP, hip[-1], "SVGP on fewer points", small, few),
    )
    for (ours, last, theirs, first, stars), what in product(pairs, _PAPER):
        verb = _verb(what)
        engines = f"{last['engine']} with M = {last['M']:,} {verb} SVGP with"
        report.compare(
            f"{what}, {ours} {verb} {theirs}",
            "Fig. 5c (HIP-GP 62,500, SVGP 16,384)",
            _change(what, *_PAPER[what]),
            _change(what, last[what], first[what]),
            f"here: {name}, {stars}{engines} M = {first['M']:,}",
        )
    for what, neutral in ((MAE, 1.0), (LOGLIKE, 0.0)):
        both = zip(hip, alike, strict=True)
        changes = [_change(what, ours[what], theirs[what]) for ours, theirs in both]
        report.compare(
            f"{what}, HIP-GP {_verb(what)} SVGP on the same points (worst)",
            "not in Fig. 5 (alike in Fig. 3)",
            None,
            max(changes, key=lambda change: abs(float(change) - neutral)),
            f"here: {name}, {len(changes)} grids",
        )


def _verb(what: str) -> str:
    return "minus" if what == LOGLIKE else "over"


def _change(what: str, last: float, first: float) -> str:
    """Subtract log likelihoods, divide errors."""
    return f"{last - first:+.3f}" if what == LOGLIKE else f"{last / first:.3f}"


if __name__ == "__main__":
    run_script(__file__, __doc__, experiment, SIZES, data="folder of the Ananke sample")
