#!/usr/bin/env python3
"""Elevations along roads on a plane grid (supplement C.3, Table S4).

64% of the rows to train and 20% to test on, in random order of three seeds; the full
batch (8 posterior samples; what the grid cannot resolve counts as noise) on M = 36,000
and more points of a torus, SGPR (512 points) and SVGP (1,024) beside it on the first
split. The full batch has the kernel of the largest evidence of a subset, SGPR and SVGP
that of their own bound (at most 15 steps of L-BFGS on 8,000 rows; Adam along with
natural steps from there). Elevations are in units of the training rows' standard
deviation, RMSE and NLL of the noisy ones. The paper has 3DRoad with three inputs and a
mean-field posterior; here a simulated set of the same size with two inputs stands in,
whose relief is Matérn-1/2 (variance 1, lengthscale 1/20 of the box, noise 0.05): its
errors are of the paper's size by construction, so that only ratios of engines and their
order can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from data import Rows, Split, drawn_field, split
from engines import Fit, Scales, best_scales, collapsed, full_batch
from jaxtyping import Float
from paper_report import Report, Row, averaged, ratio, root_mean_square, run_script
from torch import Tensor

from dustmap.gp.evidence import LBFGS, maximise
from dustmap.gp.inducing import kmeans_points
from dustmap.inference.svi import SvgpSettings, fit_svgp
from dustmap.kernels import Matern12, Matern32, Matern52, Radial
from dustmap.likelihoods import Gaussian
from dustmap.linalg.cg import ConjugateGradients
from dustmap.whitening import CholeskyWhitening

# 3DRoad (Guo, Ma, Yang & Bindingnavale 2013, UCI repository) has so many points of
# roads in North Jutland; lengthscale and noise of the simulated relief on the unit
# square, in units of its standard deviation.
ROWS = 434_874
_LENGTHSCALE, _NOISE = 1 / 20, 0.05
_TOWNS, _PER_ROAD, _TURN = 60, 220, 0.05
_STEP = 1 / 3_000
FULL_BATCH, SGPR_NAME, SVGP_NAME = "full batch (torus)", "SGPR", "SVGP"
_FAMILIES = (Matern12, Matern32, Matern52)
_POINTS = {FULL_BATCH: 36_000, SGPR_NAME: 512, SVGP_NAME: 1_024}
_SEED = 42
# Table S4.
_PAPER = {
    FULL_BATCH: {"RMSE": 0.189, "NLL": -0.171},
    SGPR_NAME: {"RMSE": 0.661, "NLL": 0.943},
    SVGP_NAME: {"RMSE": 0.481, "NLL": 0.697},
}
_SOLVER = ConjugateGradients(rtol=1e-5, max_steps=2_000)
_WRAP = 1e-2
# Points of the torus up to which weights are taken on half the spacing.
_CHEAP = 100_000
_NUGGET = 1e-6
SIZES = {
    # Of the simulated set.
    "rows": (ROWS, 6_000),
    "lattice": (4_096, 400),
    "searched": (1_000, 150),
    "splits": (3, 2),
    # Of the full batch on all splits, and on the first alone.
    "points": (_POINTS[FULL_BATCH], 900),
    "more_points": ((100_000, 300_000), (3_600,)),
    # Rows that SGPR's scales are learnt on, in so many steps.
    "sgpr_points": (_POINTS[SGPR_NAME], 48),
    "some": (8_000, 1_000),
    "sgpr_steps": (15, 4),
    "svgp_points": (_POINTS[SVGP_NAME], 64),
    "svgp_steps": (150, 20),
    "batch": (1_024, 256),
}


def experiment(report: Report, given: SimpleNamespace) -> None:
    """Fit every engine on its splits."""
    rows = report.collect("Every fit", run(given))
    means = averaged(
        sorted(rows, key=lambda row: (row["engine"], row["M"])),
        by=("engine", "M"),
        columns=("RMSE", "NLL"),
        count="splits",
    )
    report.tables = {"Means over splits": means, **report.tables}
    compare(report, means)


class Roads(NamedTuple):
    """Places on the unit square, and observed elevations."""

    at: Float[Tensor, "n 2"]
    height: Float[Tensor, " n"]

    def split(self, seed: int) -> Split:
        """64% to train on and 20% to test on, in units of the former's scatter."""
        count = len(self.height)
        order = np.random.RandomState(seed).permutation(count)
        low, high = self.at.min(dim=0).values, self.at.max(dim=0).values
        margin = 1e-9 * float((high - low).max())
        data = split(
            "simulated roads",
            Rows.of(self.at, self.height),
            order,
            round(0.64 * count),
            round(0.2 * count),
            ((low - margin).tolist(), (high + margin).tolist()),
        )
        return data.scaled(float(data.train.values.std()))


def simulate_roads(count: int, lattice: int, seed: int) -> Roads:
    """Roads over a Matérn-1/2 relief of variance 1, lengthscale 1/20, noise 0.05.

    The relief is drawn on a lattice of ``lattice²`` points, the nearest of which a road
    sees.
    """
    generator = torch.Generator().manual_seed(seed)
    index = (_walk(count, generator) * (lattice - 1)).round().to(torch.int64)
    kernel = Matern12(lengthscale=_LENGTHSCALE)
    relief = drawn_field(kernel, lattice, lattice + lattice // 4, generator)
    white = torch.randn(count, generator=generator, dtype=torch.float64)
    return Roads(
        at=index.to(torch.float64) / (lattice - 1),
        height=relief[index[:, 0], index[:, 1]] + _NOISE * white,
    )


def _walk(count: int, generator: torch.Generator) -> Float[Tensor, "n 2"]:
    """Points of winding roads that start near towns and turn back at the border."""
    roads = math.ceil(count / _PER_ROAD)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    towns = torch.rand(_TOWNS, 2, generator=generator, dtype=torch.float64)
    chosen = torch.randint(_TOWNS, (roads,), generator=generator)
    start = towns[chosen] + 0.05 * normal(roads, 2)
    turns = torch.cat([math.pi * normal(roads, 1), _TURN * normal(roads, _PER_ROAD)], 1)
    heading = turns.cumsum(dim=1)[:, 1:]
    steps = _STEP * torch.stack([heading.cos(), heading.sin()], dim=-1)
    places = (start[:, None, :] + steps.cumsum(dim=1)).reshape(-1, 2)[:count]
    # Reflected at the borders of the unit square.
    folded = places.remainder(2.0)
    return torch.where(folded > 1, 2 - folded, folded)


def run(given: SimpleNamespace) -> Iterator[Row]:
    """Score the full batch on every split, and all engines on the first."""
    roads = simulate_roads(given.rows, given.lattice, given.seed)
    scales = choose_scales(roads.split(_SEED), given.searched, given.seed)
    for number in range(given.splits):
        data = roads.split(_SEED + number)
        points = (given.points, *(() if number else given.more_points))
        fits = [(FULL_BATCH, *on_torus(data, scales, m, given.seed)) for m in points]
        if number == 0:
            fit, learnt = sgpr(data, given)
            fits.append((SGPR_NAME, given.sgpr_points, fit))
            fits.append((SVGP_NAME, given.svgp_points, svgp(data, learnt, given)))
        for engine, count, fit in fits:
            yield {
                "engine": engine,
                "split": number,
                "M": count,
                "RMSE": root_mean_square(data.test.values - fit.mean),
                "NLL": -fit.log_density(data),
                "converged": fit.converged,
            }


def choose_scales(data: Split, count: int, seed: int) -> Scales:
    """Family, lengthscale, variance and noise of the largest evidence of a subset."""
    lengthscales = (_extent(data) * np.geomspace(0.003, 0.3, 9)).tolist()
    return best_scales(_FAMILIES, data, lengthscales, count=count, seed=seed)


def _extent(data: Split) -> float:
    places = data.train.inputs
    return float((places.amax(dim=0) - places.amin(dim=0)).max())


def on_torus(
    data: Split, scales: Scales, count: int, seed: int, *, samples: int = 8
) -> tuple[int, Fit]:
    """Fit the full batch on about ``count`` points, in cells nearly square."""
    width, depth = data.sides
    first = max(4, round(math.sqrt(count * width / depth)))
    grid = data.grid(first, max(4, round(count / first)))
    given = {"solver": _SOLVER, "wrap": _WRAP, "fine": _CHEAP}
    fit = full_batch(data, scales, grid, samples=samples, seed=seed, **given)
    return grid.size, fit


def sgpr(data: Split, given: SimpleNamespace) -> tuple[Fit, Scales]:
    """The collapsed bound; kernel and noise by L-BFGS on some rows, its fit on all.

    The family is that of the largest bound: so few points leave most of a rough field
    over, and what they leave over costs the bound more than noise does. The search
    starts with what the points can resolve: two of their distances, the rest as noise.
    """
    generator = torch.Generator().manual_seed(given.seed)
    points = kmeans_points(data.train.inputs, given.sgpr_points, generator)
    length = 2 * _extent(data) / math.sqrt(given.sgpr_points)
    settings = LBFGS(
        names=("lengthscale", "variance", "noise"),
        max_steps=given.sgpr_steps,
        gradient_tolerance=1.0,
    )
    some = data.shortened(given.some)
    starts = (Scales(f(lengthscale=length, variance=0.7), 0.3) for f in _FAMILIES)
    found = [
        maximise(collapsed(some, start, points, jitter=_NUGGET), settings)
        for start in starts
    ]
    best = max(found, key=lambda fit: fit.log_marginal)
    kernel, noise = best.model.kernel, float(best.model.noise)
    assert isinstance(kernel, Radial)
    scales = Scales(kernel, noise)
    model = collapsed(data, scales, points, jitter=_NUGGET)
    return Fit(*model.predict(data.test.functionals()), noise, best.converged), scales


def svgp(data: Split, start: Scales, given: SimpleNamespace) -> Fit:
    """Natural steps and Adam in turn on minibatches, Cholesky whitening."""
    generator = torch.Generator().manual_seed(given.seed)
    points = kmeans_points(data.train.inputs, given.svgp_points, generator)
    nugget = _NUGGET * float(start.kernel.variance)
    fitted = fit_svgp(
        data.train.functionals(),
        data.train.values,
        CholeskyWhitening(start.kernel, points, nugget=nugget),
        Gaussian(variance=start.noise),
        generator=generator,
        settings=SvgpSettings(
            batch_size=given.batch,
            steps=given.svgp_steps,
            natural_rate=0.2,
            learn=("kernel.lengthscale", "kernel.variance", "likelihood.variance"),
            record_every=given.svgp_steps,
        ),
    ).model
    assert isinstance(fitted.likelihood, Gaussian)
    moments = fitted.predict(data.test.functionals())
    return Fit(*moments, float(fitted.likelihood.variance))


def compare(report: Report, means: Sequence[Row]) -> None:
    """Set Table S4 beside the same engines here."""
    # Rows and columns of the grid make almost as many points as are wanted.
    here = {
        row["engine"]: row
        for row in means
        if abs(row["M"] / _POINTS[row["engine"]] - 1) < 0.02
    }
    for score, engine in product(("RMSE", "NLL"), _PAPER):
        name = "HIP-GP" if engine == FULL_BATCH else engine
        what = f"{score}, {name}, M = {_POINTS[engine]:,}"
        remark = "here: full batch" if engine == FULL_BATCH else ""
        found = here.get(engine, {}).get(score)
        report.compare(what, "Table S4", _PAPER[engine][score], found, remark)
    for engine in (SGPR_NAME, SVGP_NAME):
        paper = _PAPER[engine]["RMSE"] / _PAPER[FULL_BATCH]["RMSE"]
        error, least = (here.get(n, {}).get("RMSE") for n in (engine, FULL_BATCH))
        what = f"RMSE of {engine} / of HIP-GP"
        report.compare(what, "Table S4", f"{paper:.3g}", ratio(error, least))
    full = [row for row in means if row["engine"] == FULL_BATCH]
    best = min(full, key=lambda row: row["RMSE"])
    for score in ("RMSE", "NLL"):
        what = f"{score}, as many points as help: M = {best['M']:,}"
        remark = "here: full batch, first split"
        report.compare(what, "largest there: 36,000", None, best[score], remark)


if __name__ == "__main__":
    run_script(__file__, __doc__, experiment, SIZES)
