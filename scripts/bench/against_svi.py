"""The full-batch engine against stochastic variational inference as published.

Both engines fit one catalogue of 4,000 stars on 20 × 20 × 10 points with the same
kernel, scales and Gaussian density, none of them learnt. svi (HIP-GP, Wu et al. 2021)
solves one row per star; what such rows cost on 50 × 50 × 25 points is measured on a
few stars and reckoned for 500,000, labelled so. The full-batch fit of as many stars on
that grid is measured, all of it.
"""

from __future__ import annotations

import argparse
import time

import torch
from matplotlib.figure import Figure
from report import Report, Row, parser
from scoring import named, score_inside
from simulated import BOX, HALF, Simulated, simulated
from verbs import Fitted, fit_and_predict

from dustmap.grid import Grid
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening
from pipelines.model.forward import build_model
from pipelines.model.observations import rays
from pipelines.model.plan import EmbeddingPlan, MeanPlan, Plan

BATCH = 64
# The mock's own mean; a lengthscale that both grids resolve.
LENGTHSCALE, STD, DENSITY, HEIGHT, LENGTH = 400.0, 1e-3, 1.2e-3, 300.0, 4000.0
SCALES = (
    'model.density="gaussian"',
    f"prior.lengthscale={LENGTHSCALE:g}",
    f"prior.std={STD:g}",
    'prior.mean="exponential-disc"',
    f"prior.mean_density={DENSITY:g}",
    f"prior.scale_height={HEIGHT:g}",
    f"prior.scale_length={LENGTH:g}",
    "model.common_noise=0",
    "model.outliers=false",
    "data.holdout=0",
)
# Exact distances: svi knows their errors only to first order.
GALAXY = (f"dust.scale_height={HEIGHT:g}", "errors.parallax=0")


def fits(
    options: argparse.Namespace, mock: Simulated, many: Simulated
) -> dict[str, Fitted]:
    """Both engines on the small problem, then full-batch alone on the large one."""
    common = [*BOX, *SCALES, f"inference.seed={options.seed}"]
    small = [*common, f"box.shape={options.shape}"]
    runs = {"full-batch": (mock, [*small, "inference.engine=full-batch"])}
    for epochs in options.epochs:
        svi = ["inference.engine=svi", f"svi.epochs={epochs}"]
        runs[f"svi, epochs={epochs}"] = (mock, [*small, *svi])
    large = [*common, f"box.shape={options.large_shape}", "inference.samples=8"]
    runs["full-batch, many"] = (many, [*large, *options.set])
    return {
        name: fit_and_predict(
            options.output / "work" / name.replace(", ", "_"),
            tables.stars,
            tables.targets,
            settings,
        )
        for name, (tables, settings) in runs.items()
    }


def fit_row(name: str, fitted: Fitted, mock: Simulated) -> Row:
    """Scores and seconds of one fit."""
    own = fitted.summary["seconds"]
    return {
        "engine": name,
        **named(score_inside(fitted.columns, mock.truth)),
        "inference [s]": own["inference"],
        **fitted.fit.row(),
        **fitted.facts(),
    }


def row_cost(many: Simulated, shape: list[int], count: int, seed: int) -> Row:
    """Seconds of svi's rows of some stars, in the minibatches of the engine."""
    spacing = tuple(2 * h / (n - 1) for h, n in zip(HALF, shape, strict=True))
    plan = Plan(
        grid=Grid(shape=tuple(shape), spacing=spacing, origin=tuple(-h for h in HALF)),
        torus_shape=(),
        kernel="matern32",
        lengthscale=(LENGTHSCALE,) * 3,
        std=STD,
        mean=MeanPlan(
            kind="exponential-disc",
            value=DENSITY,
            scale_height=HEIGHT,
            scale_length=LENGTH,
        ),
        common_noise=0.0,
        engine="svi",
        embedding=EmbeddingPlan(nugget=1e-6 * STD**2, max_points=20_000_000, seed=seed),
    )
    ends = torch.as_tensor(many.train.positions()[:count])
    started = time.perf_counter()
    model = build_model(
        plan,
        rays(plan, ends),
        dtype=torch.float64,
        device=torch.device("cpu"),
        generator=torch.Generator().manual_seed(seed),
    )
    assert isinstance(model, RowwiseGaussian)
    assert isinstance(model.whitening, ToeplitzWhitening)
    ready = time.perf_counter()
    for index in torch.arange(count).split(BATCH):
        model.rows(index)
    seconds = time.perf_counter() - ready
    return {
        "grid": shape,
        "embedding": list(model.whitening.embedding.torus.shape),
        "rows measured": count,
        "set-up [s]": ready - started,
        "s per row": seconds / count,
        "PCG iterations": model.report.iterations,
    }


def main() -> None:
    options = arguments()
    report = Report.of("against_svi", __doc__, options)
    work = options.output / "work"
    galaxy = [*GALAXY, "truth.spacing=75"] if options.quick else [*GALAXY]
    counts = {"small": options.stars, "many": options.many}
    mocks = {
        name: simulated(
            work / name,
            stars=count,
            targets=options.targets,
            seed=options.seed,
            settings=galaxy,
        )
        for name, count in counts.items()
    }
    found = fits(options, mocks["small"], mocks["many"])
    large = found.pop("full-batch, many")
    rows = [fit_row(name, fitted, mocks["small"]) for name, fitted in found.items()]
    for row in rows:
        for key in ("RMSE [mag]", "inference [s]", "wall [s]"):
            row[f"{key.split(' [')[0]} / full-batch"] = row[key] / rows[0][key]
    cost = row_cost(mocks["many"], options.large_shape, options.rows, options.seed)
    total = cost["s per row"] * options.many
    whole = large.fit.wall
    report.tables = {
        "The same problem by both engines": rows,
        "svi's rows on the large grid (measured)": [cost],
        f"{options.many:,} stars on the large grid": [
            fit_row("full-batch, measured", large, mocks["many"]),
            {
                "engine": "svi, one epoch, EXTRAPOLATED from its rows",
                "stars": options.many,
                "inference [s]": total,
                "inference / full-batch's whole fit": total / whole,
            },
        ],
    }
    report.write(options.output, lambda figure: draw(figure, rows))


def draw(figure: Figure, rows: list[Row]) -> None:
    """Error against time, one point a fit."""
    axes = figure.subplots()
    for row in rows:
        marker = "o" if row["engine"].startswith("full") else "s"
        axes.plot(row["inference [s]"], row["RMSE [mag]"], marker, label=row["engine"])
    axes.set(
        xlim=(0, 1.1 * max(row["inference [s]"] for row in rows)),
        xlabel="wall time of the inference [s]",
        ylabel="RMSE of the noise-free extinction [mag]",
        ylim=(0, 1.2 * max(row["RMSE [mag]"] for row in rows)),
    )
    axes.legend(frameon=False)


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--stars", type=int, default=4_000)
    options.add_argument("--shape", type=int, nargs=3, default=[20, 20, 10])
    options.add_argument("--many", type=int, default=500_000)
    options.add_argument("--large-shape", type=int, nargs=3, default=[50, 50, 25])
    options.add_argument("--rows", type=int, default=256, help="of svi, measured")
    options.add_argument("--targets", type=int, default=20_000)
    options.add_argument("--epochs", type=int, nargs="+", default=[1, 20])
    options.add_argument(
        "--set", action="append", default=[], help="of the large fit alone"
    )
    chosen = options.parse_args()
    if chosen.quick:
        chosen.stars, chosen.many, chosen.targets, chosen.rows = 300, 1_000, 200, 16
        chosen.shape, chosen.large_shape, chosen.epochs = [8, 8, 4], [12, 12, 6], [1]
    return chosen


if __name__ == "__main__":
    main()
