"""How one inference grows with the number of stars N and of grid points M.

The mean alone in float32, by a fixed number of conjugate-gradient iterations, on the
box of 4 × 4 × 2 kpc with one lengthscale. N grows at fixed M, then M at fixed N.
Exponents are slopes of least squares through the logarithms.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from report import Report, Row, parser
from simulated import HALF

from dustmap.functionals import FixedStep, LineIntegrals
from dustmap.grid import Grid
from dustmap.inference.full_batch import Precision
from dustmap.inference.full_batch.noise_covariance import Independent
from dustmap.kernels import Matern32
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening, padded_torus

LENGTHSCALE, STD, DENSITY, NOISE = 300.0, 5e-4, 5e-4, 0.05
PARTS = ("spectra [s]", "W [s]", "iterations [s]", "total [s]")


def shape_of(points: int) -> tuple[int, int, int]:
    """Nearly this many points in the proportions of the box."""
    side = round((points / 4) ** (1 / 3))
    return (2 * side, 2 * side, side)


def catalogue(stars: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ends of rays evenly in the box, and extinctions of even dust with noise."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(stars, 3, generator=generator, dtype=torch.float64) * 2 - 1
    ends = 0.999 * unit * torch.tensor(HALF, dtype=torch.float64)
    white = torch.randn(stars, generator=generator, dtype=torch.float64)
    scatter = 0.3 * torch.randn(stars, generator=generator, dtype=torch.float64)
    length = torch.linalg.vector_norm(ends, dim=1)
    return ends, DENSITY * length * (1 + scatter) + NOISE * white


def one_case(stars: int, points: int, iterations: int, seed: int) -> Row:
    """Seconds of every part of one inference."""
    ends, extinction = catalogue(stars, seed)
    shape = shape_of(points)
    spacing = tuple(2 * h / (n - 1) for h, n in zip(HALF, shape, strict=True))
    grid = Grid(shape=shape, spacing=spacing, origin=tuple(-h for h in HALF))
    kernel = Matern32(lengthscale=LENGTHSCALE, variance=STD**2)
    clock = [time.perf_counter()]
    torus = padded_torus(grid, kernel, 1e-2)
    whitening = TorusWhitening(kernel, torus, dtype=torch.float32)
    clock.append(time.perf_counter())
    model = TorusGaussian(
        whitening,
        LineIntegrals(ends, FixedStep(step=0.5 * min(spacing))),
        mean=ConstantMean(value=DENSITY),
        # Without the sub-grid variance, which takes no part in the iterations.
        residual_refinement=1,
        generator=torch.Generator().manual_seed(seed),
    )
    clock.append(time.perf_counter())
    noise = torch.full((stars,), NOISE**2)
    rhs = model.operator.rmatvec((extinction.to(noise) - model.offset) / noise)
    # A tolerance that float32 cannot reach: the count alone ends the iterations.
    fixed = ConjugateGradients(rtol=1e-30, max_steps=iterations, restarts=0)
    solution = fixed.solve(
        Precision(model.operator, Independent(noise)).matvec, rhs[None]
    )
    clock.append(time.perf_counter())
    seconds = [*np.diff(clock).tolist(), clock[-1] - clock[0]]
    return {
        "N": stars,
        "M": grid.size,
        "torus": list(torus.shape),
        "entries of W": model.weights.nonzeros,
        "W [MiB]": model.weights.bytes / 2**20,
        "CG iterations": int(solution.iterations[0]),
        "residual": float(solution.residual[0]),
        **dict(zip(PARTS, seconds, strict=True)),
    }


def exponents(rows: Sequence[Row], against: str) -> Row:
    """Slopes of the logarithms by least squares, with their standard errors."""
    x = np.log([row[against] for row in rows])
    found: Row = {"against": against, "cases": len(rows)}
    for part in PARTS:
        y = np.log([row[part] for row in rows])
        slope, offset = np.polyfit(x, y, 1)
        left = y - slope * x - offset
        freedom = max(len(rows) - 2, 1)
        error = np.sqrt((left**2).sum() / freedom / ((x - x.mean()) ** 2).sum())
        name = part.removesuffix(" [s]")
        found[name] = float(slope)
        found[f"± {name}"] = float(error) if len(rows) > 2 else None
    return found


def main() -> None:
    options = arguments()
    report = Report.of("cost", __doc__, options)
    # The first call loads compiled loops; it is not counted.
    one_case(100, 500, 2, options.seed)
    by_stars = [
        one_case(n, options.points, options.iterations, options.seed)
        for n in options.many_stars
    ]
    by_points = [
        one_case(options.stars, m, options.iterations, options.seed)
        for m in options.many_points
    ]
    report.tables = {
        "N at fixed M": by_stars,
        "M at fixed N": by_points,
        "Exponents": [exponents(by_stars, "N"), exponents(by_points, "M")],
    }
    report.write(options.output, lambda figure: draw(figure, by_stars, by_points))


def draw(figure: Figure, by_stars: list[Row], by_points: list[Row]) -> None:
    """Seconds of every part against N and against M."""
    titles = (("N", "stars N", by_stars), ("M", "grid points M", by_points))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (key, label, rows) in zip(panels, titles, strict=True):
        for part, marker in zip(PARTS, "sv^o", strict=True):
            name = part.removesuffix(" [s]")
            axes.plot([r[key] for r in rows], [r[part] for r in rows], marker, ls="-")
            axes.lines[-1].set_label(name)
        axes.set(xscale="log", yscale="log", xlabel=label)
        axes.yaxis.set_major_locator(LogLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    panels[0].set_ylabel("wall time [s]")
    panels[0].legend(frameon=False, fontsize="small")


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    whole = {"type": int, "nargs": "+"}
    options.add_argument(
        "--many-stars", **whole, default=[10**4, 10**5, 10**6], metavar="N"
    )
    options.add_argument(
        "--many-points", **whole, default=[10**4, 10**5, 10**6, 10**7], metavar="M"
    )
    options.add_argument("--points", type=int, default=62_500, help="fixed M")
    options.add_argument("--stars", type=int, default=10_000, help="fixed N")
    options.add_argument("--iterations", type=int, default=50)
    chosen = options.parse_args()
    if chosen.quick:
        chosen.many_stars, chosen.many_points = [300, 1_000, 3_000], [500, 4_000]
        chosen.points, chosen.stars, chosen.iterations = 2_000, 300, 5
    return chosen


if __name__ == "__main__":
    main()
