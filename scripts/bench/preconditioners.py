"""Conjugate gradients on the posterior's precision under several preconditioners.

A simulated catalogue of 100,000 stars is fitted; at the fitted mean the precision
``Λ = I + Φᵀ Σ⁻¹ Φ`` is solved for right-hand sides of posterior samples to three
residuals: plain, with Nyström sketches, and with deflation on a coarse grid. Set-up is
counted; ``in all`` is what a fit pays that needs one block of solves.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from coarse_grid import CoarseGrid
from matplotlib.figure import Figure
from report import Report, Row, parser
from simulated import BOX, simulated
from torch import Tensor
from verbs import Fitted, fit_and_predict

from dustmap.inference.full_batch import NoiseState, Precision
from dustmap.inference.full_batch.noise_covariance import Independent
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.lognormal import LogNormal
from pipelines.base.geometry import Box
from pipelines.catalog.schema import read_stars
from pipelines.model.forward import build_model
from pipelines.model.observations import Data, noise_of, sight_lines
from pipelines.planning.selection import distance_errors
from pipelines.run.folder import read_run

RESIDUALS = (1e-1, 1e-2, 1e-3)


class Problem(NamedTuple):
    """The precision at the fitted mean, and right-hand sides of samples."""

    model: LogNormal
    mean: Tensor
    total: Tensor
    precision: Precision
    rhs: Tensor


def problem(run: Path, stars: Path, columns: int, seed: int) -> Problem:
    """A fit's last linear problem, made anew from its folder and its stars."""
    fitted = read_run(run)
    everything = read_stars(stars)
    box = Box(lower=fitted.plan.grid.lower, upper=fitted.plan.grid.upper)
    inside = everything.select(box.contains(everything.positions()))
    assert inside.extinction is not None
    assert inside.extinction_error is not None
    exact = inside.distance_error is None
    data = Data(
        ends=torch.as_tensor(inside.positions()),
        extinction=torch.as_tensor(inside.extinction),
        variance=torch.as_tensor(inside.extinction_error**2),
        distance_error=None if exact else torch.as_tensor(distance_errors(inside)),
    )
    generator = torch.Generator().manual_seed(seed)
    mean = fitted.posterior.mean
    model = build_model(
        fitted.plan,
        sight_lines(fitted.plan, data),
        dtype=mean.dtype,
        device=mean.device,
        generator=generator,
    )
    assert isinstance(model, LogNormal)
    tangent = model.linearise(mean)
    noise = noise_of(fitted.plan, data)
    weighing = NoiseState(model, data.extinction, noise, subgrid_noise=True)
    normal = weighing.normal(mean[None], tangent.variance)
    residual = weighing.observations - tangent.prediction
    weighing.reweigh(residual, residual**2, normal)
    total = normal / weighing.weights
    white = torch.randn(columns, len(total), generator=generator).to(total)
    prior = torch.randn(columns, model.latent_size, generator=generator).to(total)
    return Problem(
        model=model,
        mean=mean,
        total=total,
        precision=Precision(tangent.operator, Independent(total)),
        rhs=tangent.operator.rmatvec(white / total.sqrt()) + prior,
    )


def preconditioners(
    at: Problem, options: argparse.Namespace
) -> dict[str, Callable[[], Callable[[Tensor], Tensor] | None]]:
    """What is compared, each as something that builds it."""
    size = at.model.latent_size

    def sketch(rank: int) -> NystromPreconditioner:
        return NystromPreconditioner.build(
            at.precision.data_term,
            size,
            rank,
            torch.Generator().manual_seed(options.seed),
            dtype=at.model.dtype,
        )

    def coarse(shape: tuple[int, int, int]) -> CoarseGrid:
        return CoarseGrid(at.model, at.mean, at.total, shape, options.seed)

    found: dict[str, Callable[[], Callable[[Tensor], Tensor] | None]] = {
        "none": lambda: None
    }
    for rank in options.ranks:
        found[f"Nyström, rank {rank}"] = lambda rank=rank: sketch(rank)
    for shape in options.coarse:
        found[f"coarse grid {shape}"] = lambda text=shape: coarse(shape_of(text))
    return found


def shape_of(text: str) -> tuple[int, int, int]:
    """``9x9x5`` as numbers."""
    x, y, z = (int(part) for part in text.split("x"))
    return x, y, z


def measure(at: Problem, options: argparse.Namespace) -> list[Row]:
    """Iterations and seconds of every preconditioner to every residual."""
    at.precision.matvec(at.rhs)
    rows = []
    for name, build in preconditioners(at, options).items():
        started = time.perf_counter()
        made = build()
        setup = time.perf_counter() - started
        for residual in RESIDUALS:
            solver = ConjugateGradients(rtol=residual, max_steps=options.most)
            started = time.perf_counter()
            solution = solver.solve(at.precision.matvec, at.rhs, preconditioner=made)
            seconds = time.perf_counter() - started
            row: Row = {"preconditioner": name, "residual": residual}
            row["iterations"] = int(solution.iterations.max())
            row["converged"] = "yes" if bool(solution.converged.all()) else "no"
            row |= {"set-up [s]": setup, "solve [s]": seconds}
            row["in all [s]"] = setup + seconds
            plain = rows[RESIDUALS.index(residual)] if len(rows) > 2 else row
            for key in ("iterations", "solve [s]", "in all [s]"):
                row[f"{key.split(' [')[0]} / none"] = row[key] / plain[key]
            rows.append(row)
    return rows


def main() -> None:
    options = arguments()
    report = Report.of("preconditioners", __doc__, options)
    work = options.output / "work"
    mock = simulated(
        work,
        stars=options.stars,
        targets=100,
        seed=options.seed,
        settings=["truth.spacing=75"] if options.quick else [],
    )
    chosen = [*BOX, f"box.shape={options.shape}", "data.holdout=0"]
    chosen += ["inference.samples=4", f"inference.seed={options.seed}", *options.set]
    fitted = fit_and_predict(work, mock.stars, mock.targets, chosen)
    at = problem(fitted.run, mock.stars, options.columns, options.seed)
    rows = measure(at, options)
    report.tables = {"Solves": rows, "The fit": [fit_row(fitted, at)]}
    report.notes = [f"{options.columns} right-hand sides in one block"]
    report.write(options.output, lambda figure: draw(figure, rows))


def fit_row(fitted: Fitted, at: Problem) -> Row:
    """Where the precision was taken."""
    return {
        **fitted.facts(),
        "torus": list(at.model.whitening.levels.tori[0].shape),
        "median noise [mag]": float(at.total.sqrt().median()),
        **fitted.fit.row(),
    }


def draw(figure: Figure, rows: Sequence[Row]) -> None:
    """Set-up and solves to every residual, stacked."""
    names = list(dict.fromkeys(row["preconditioner"] for row in rows))
    axes = figure.subplots()
    height = 0.8 / len(RESIDUALS)
    for number, residual in enumerate(RESIDUALS):
        own = [row for row in rows if row["residual"] == residual]
        place = [i + (number - 1) * height for i in range(len(names))]
        setup = [row["set-up [s]"] for row in own]
        solve = [row["solve [s]"] for row in own]
        axes.barh(place, setup, height, color="0.75")
        axes.barh(place, solve, height, left=setup, label=f"to {residual:g}")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("wall time, set-up in grey [s]")
    axes.legend(frameon=False, title="solve")


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--stars", type=int, default=100_000)
    options.add_argument("--shape", type=int, nargs=3, default=[50, 50, 25])
    options.add_argument("--ranks", type=int, nargs="*", default=[32, 64, 100, 200])
    options.add_argument(
        "--coarse", nargs="*", default=["9x9x5", "15x15x9", "21x21x11"]
    )
    options.add_argument("--columns", type=int, default=2)
    options.add_argument("--most", type=int, default=2_000, help="iterations")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.stars, chosen.shape = 1_000, [14, 14, 7]
        chosen.ranks, chosen.coarse = [32], ["5x5x3"]
        chosen.set = ["inference.learn=false", *chosen.set]
    return chosen


if __name__ == "__main__":
    main()
