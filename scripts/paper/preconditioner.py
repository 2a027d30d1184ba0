#!/usr/bin/env python3
"""When the circulant preconditioner helps (supplement C.1, Figs. S1 and S2).

``K x = v`` for M equidistant inducing points in [0, 2], 25 random vectors, four kernels
of variance 1 with lengthscale 0.05 and 0.5, M from 10 to 500, tolerance 1e-10. The
share r of PCG's iterations in those of CG is shown twice: with an embedding that grew
until it was positive, and with the smallest embedding, which the paper uses for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from paper_report import Comparison, Report, Row, Size, parser, size_of

from dustmap.grid import Grid, Torus
from dustmap.kernels import KERNELS, Kernel
from dustmap.linalg.cg import ConjugateGradients, Product, Solution
from dustmap.linalg.circulant import Circulant
from dustmap.linalg.preconditioners import CirculantPreconditioner
from dustmap.linalg.toeplitz import first_column
from dustmap.whitening import ToeplitzWhitening
from pipelines.base.progress import say
from pipelines.figures.style import CYCLE

_LENGTH = 2.0
_LENGTHSCALES = (0.05, 0.5)
# From the smoothest to the roughest.
_KERNELS = {
    "squared-exponential": "squared exponential",
    "matern52": "Matérn 5/2",
    "matern32": "Matérn 3/2",
    "matern12": "Matérn 1/2",
}
_GROWN, _SMALLEST = "r", "r, smallest embedding"
_NEITHER = "neither converged"
_SOURCE = "Figs. S1c and S2c, supplement C.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run: numbers of points, vectors, most iterations."""

    points: tuple[int, ...]
    vectors: int
    most: int


PLANS: dict[Size, Plan] = {
    "quick": Plan(points=(10, 40, 100), vectors=5, most=500),
    "default": Plan(
        points=(10, 20, 40, 80, 100, 200, 300, 400, 500), vectors=25, most=2_000
    ),
    "full": Plan(points=tuple(range(10, 501, 10)), vectors=25, most=10_000),
}


class Share(NamedTuple):
    """PCG's iterations over CG's; an upper bound if CG did not come to an end."""

    value: float
    bound: bool


def main() -> None:
    options = parser(__doc__).parse_args()
    report = Report.of("preconditioner", __doc__, options)
    plan = PLANS[size_of(options)]
    rows = [
        solve_row(name, scale, count, plan, options)
        for scale in _LENGTHSCALES
        for name in _KERNELS
        for count in plan.points
    ]
    report.comparisons = comparisons(rows)
    report.tables = {"Iterations": rows}
    report.notes = notes(plan)
    report.write(options.output, lambda figure: draw(figure, rows), shape=(9.6, 4.0))


def solve_row(
    name: str, scale: float, count: int, plan: Plan, options: argparse.Namespace
) -> Row:
    """Iterations of the slowest vector, plain and with both preconditioners."""
    grid = Grid(shape=(count,), spacing=(_LENGTH / (count - 1),), origin=(0.0,))
    kernel = KERNELS[name](lengthscale=scale)
    whitening = ToeplitzWhitening(kernel, grid, lengthscales=(scale,))
    generator = torch.Generator().manual_seed(options.seed)
    shape = (plan.vectors, count)
    vectors = torch.randn(shape, generator=generator, dtype=torch.float64)
    # Without restarts the recursion's own residual decides, as in the paper's code.
    solver = ConjugateGradients(rtol=1e-10, max_steps=plan.most, restarts=0)
    small, negative = smallest_preconditioner(kernel, grid)
    ways: dict[str, Product | None] = {
        "CG": None,
        "PCG": whitening.preconditioner,
        "PCG, smallest embedding": small,
    }
    found = {
        way: solver.solve(whitening.covariance.matvec, vectors, preconditioner=by)
        for way, by in ways.items()
    }
    row: Row = {"kernel": _KERNELS[name], "lengthscale": scale, "M": count}
    row |= {way: _text(own, plan.most) for way, own in found.items()}
    plain, grown, smallest = found.values()
    row[_GROWN] = share(plain, grown, plan.most)
    row[_SMALLEST] = share(plain, smallest, plan.most)
    row["true residual, CG"] = float(plain.residual.max())
    row["true residual, PCG"] = float(grown.residual.max())
    row["embedding / smallest"] = whitening.size / max(2 * count - 2, 2)
    row["modes <= 0, smallest"] = negative
    say(" ".join(f"{key} {value}" for key, value in row.items()))
    return row


def smallest_preconditioner(kernel: Kernel, grid: Grid) -> tuple[Product, int]:
    """The paper's, of ``2 M − 2`` points, and its modes that are not positive."""
    torus = Torus(grid=grid, shape=tuple(2 * n - 2 for n in grid.shape))
    circulant = Circulant.from_first_column(first_column(kernel, torus, 0.0))
    lost = circulant.dropped_modes()
    return CirculantPreconditioner(circulant, grid.shape), lost


def _ended(solution: Solution, most: int) -> int | None:
    slowest = int(solution.iterations.max())
    return slowest if slowest < most else None


def _text(solution: Solution, most: int) -> int | str:
    ended = _ended(solution, most)
    return f"> {most:,}" if ended is None else ended


def share(plain: Solution, preconditioned: Solution, most: int) -> float | str:
    """r, ``< r`` where only CG failed, and text where PCG did."""
    ours, theirs = _ended(preconditioned, most), _ended(plain, most)
    if ours is None:
        return _NEITHER if theirs is None else "PCG not converged"
    return f"< {ours / most:.3g}" if theirs is None else ours / theirs


def parsed(cell: float | str) -> Share | None:
    """A cell of the table as a number again; ``None`` where PCG failed."""
    if not isinstance(cell, str):
        return Share(cell, False)
    return Share(float(cell[2:]), True) if cell.startswith("<") else None


def comparisons(rows: Sequence[Row]) -> list[Comparison]:
    """What the paper says of its curves, and of how many it is true here."""
    checks: list[tuple[str, str, Callable[[Sequence[Row], str], str]]] = [
        ("r < 1", "always", _below_one),
        ("lengthscale 0.05: r falls as M grows", "all kernels", _falls),
        ("lengthscale 0.5: r rises again beyond some M", "three smoothest", _rises),
        ("r is smaller for rougher kernels at one M", "yes", _ordered),
    ]
    return [
        Comparison(
            what=what,
            source=_SOURCE,
            paper=claim,
            here=check(rows, key),
            remark=f"{key}: statement, the paper tabulates no numbers",
        )
        for what, claim, check in checks
        for key in (_GROWN, _SMALLEST)
    ]


def _below_one(rows: Sequence[Row], key: str) -> str:
    found = [share for row in rows if (share := parsed(row[key])) is not None]
    below = sum(share.value < 1 for share in found)
    largest = max((share.value for share in found), default=float("nan"))
    neither = sum(row[key] == _NEITHER for row in rows)
    return (
        f"{below} of {len(rows)} systems, {neither} solved by neither and "
        f"{len(rows) - len(found) - neither} by CG alone; largest r {largest:.3g}"
    )


def _curves(rows: Sequence[Row], key: str, scale: float) -> dict[str, list[Share]]:
    """r over M of every kernel, without the systems that PCG failed in."""
    curves = {}
    for name in _KERNELS.values():
        own = [r for r in rows if (r["kernel"], r["lengthscale"]) == (name, scale)]
        shares = [parsed(row[key]) for row in own]
        curves[name] = [share for share in shares if share is not None]
    return curves


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _falls(rows: Sequence[Row], key: str) -> str:
    curves = _curves(rows, key, _LENGTHSCALES[0])
    held = [name for name, s in curves.items() if s and s[-1].value < s[0].value]
    return f"from the smallest to the largest M that PCG solves: {_named(held)}"


def _rises(rows: Sequence[Row], key: str) -> str:
    """A last r above an earlier one; as an upper bound it shows no rise of r itself."""
    found: dict[bool, list[str]] = {False: [], True: []}
    for name, own in _curves(rows, key, _LENGTHSCALES[1]).items():
        if own and own[-1].value > min(share.value for share in own):
            found[own[-1].bound].append(name)
    return (
        f"{_named(found[False])}; with CG counted as ended at the limit also "
        f"{_named(found[True])}"
    )


def _ordered(rows: Sequence[Row], key: str) -> str:
    """Neighbouring pairs of kernels at one M and lengthscale that keep the order."""
    held = judged = 0
    for scale in _LENGTHSCALES:
        for count in dict.fromkeys(row["M"] for row in rows):
            at = [r for r in rows if (r["lengthscale"], r["M"]) == (scale, count)]
            for smooth, rough in pairwise(parsed(row[key]) for row in at):
                if smooth is None or rough is None or smooth.bound or rough.bound:
                    continue
                judged += 1
                held += rough.value <= smooth.value
    return f"{held} of {judged} pairs of kernels where both solvers converged"


def notes(plan: Plan) -> list[str]:
    return [
        f"{plan.vectors} vectors at once, iterations are those of the slowest, in "
        f"float64, at most {plan.most:,}; '< r': CG did not end, r is an upper bound",
        "the recursion's residual below 1e-10 of the vector's norm ends it; the true "
        "one stands beside it: K is singular to rounding for the smooth kernels",
        "the last column counts modes at or below 1e-14 of the largest in the smallest "
        "embedding; both preconditioners give them the weight of the smallest kept one",
    ]


def draw(figure: Figure, rows: Sequence[Row]) -> None:
    """r over M, one panel a lengthscale."""
    panels: list[Axes] = list(figure.subplots(1, 2, sharey=True))
    for axes, scale in zip(panels, _LENGTHSCALES, strict=True):
        own = [row for row in rows if row["lengthscale"] == scale]
        _draw_curves(axes, own)
        axes.axhline(1.0, color="0.5", linewidth=0.8)
        axes.set_title(f"lengthscale {scale:g} in [0, 2]", fontsize="medium")
        axes.set_xlabel("inducing points M")
    panels[0].set_yscale("log")
    panels[0].set_ylabel("r = iterations, PCG / CG")
    panels[0].legend(frameon=False, fontsize="small")
    panels[1].legend(handles=_legend_of_styles(), frameon=False, fontsize="small")


def _legend_of_styles() -> list[Line2D]:
    plain: dict[str, Any] = {"color": "0.3"}
    return [
        Line2D([], [], **plain, linestyle="-", label="grown embedding"),
        Line2D([], [], **plain, linestyle="--", label="smallest embedding"),
        Line2D([], [], **plain, linestyle="", marker="o", fillstyle="none",
               label="upper bound: CG did not end"),
    ]  # fmt: skip


def _draw_curves(axes: Axes, rows: Sequence[Row]) -> None:
    markers = ("o", "s", "^", "D")
    names = _KERNELS.values()
    for name, colour, marker in zip(names, CYCLE, markers, strict=False):
        own = [row for row in rows if row["kernel"] == name]
        for key, style in ((_GROWN, "-"), (_SMALLEST, "--")):
            points = [(row["M"], parsed(row[key])) for row in own]
            shown = [(m, share) for m, share in points if share is not None]
            axes.plot([m for m, _ in shown], [s.value for _, s in shown], style,
                      color=colour, linewidth=1.2,
                      label=name if key == _GROWN else None)  # fmt: skip
            for m, found in shown:
                fill = "none" if found.bound else "full"
                axes.plot(m, found.value, marker, color=colour, fillstyle=fill,
                          markersize=5)  # fmt: skip


if __name__ == "__main__":
    main()
