#!/usr/bin/env python3
"""Circulant-preconditioned against plain conjugate gradients (section 5.1, Fig. 1).

``K x = v`` for a Matérn covariance on a square grid of M = 25², 50² and 100² points and
25 random vectors, to a relative residual of 1e-10. The paper does not state the
kernel's order, its lengthscale or the box. The authors' published code has order 5/2
and lengthscale 0.1 in a box of side 4; around that both are scanned here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from paper_report import Comparison, Report, Row, Size, parser, size_of, stopwatch
from recorded_cg import History, recorded
from torch import Tensor

from dustmap.grid import Grid
from dustmap.kernels import KERNELS
from dustmap.linalg.cg import ConjugateGradients
from dustmap.whitening import ToeplitzWhitening
from pipelines.base.progress import say
from pipelines.figures.style import BLUE, CYCLE, ORANGE

_SIDE = 4.0
_RTOL = 1e-10
# The authors' code stops at this norm of the residual itself, not of its ratio to ‖v‖.
_NORM = 1e-10
_ORDERS = {"matern12": "1/2", "matern32": "3/2", "matern52": "5/2"}
_PUBLISHED = ("matern52", 0.1)
# M to the largest share of CG's iterations that PCG takes, by Fig. 1 and section 5.1.
_PAPER = {625: 0.18, 2_500: None, 10_000: 0.045}
_SHARE_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run: points per axis, lengthscales, vectors, most iterations."""

    sides: tuple[int, ...]
    kernels: tuple[str, ...]
    lengthscales: tuple[float, ...]
    vectors: int
    most: int


PLANS: dict[Size, Plan] = {
    "quick": Plan(
        sides=(25, 50),
        kernels=("matern52",),
        lengthscales=(0.1, 0.2),
        vectors=5,
        most=1_000,
    ),
    "default": Plan(
        sides=(25, 50, 100),
        kernels=tuple(_ORDERS),
        lengthscales=(0.05, 0.1, 0.15, 0.2),
        vectors=25,
        most=6_000,
    ),
    "full": Plan(
        sides=(25, 50, 100),
        kernels=tuple(_ORDERS),
        lengthscales=(0.05, 0.1, 0.15, 0.2, 0.4),
        vectors=25,
        most=10_000,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One system solved both ways."""

    kernel: str
    lengthscale: float
    side: int
    plain: History
    preconditioned: History
    row: Row


def main() -> None:
    options = parser(__doc__).parse_args()
    report = Report.of("pcg_vs_cg", __doc__, options)
    plan = PLANS[size_of(options)]
    cases = [
        solve_both(name, scale, side, plan, options)
        for name in plan.kernels
        for scale in plan.lengthscales
        for side in plan.sides
    ]
    report.comparisons = comparisons(cases)
    report.tables = {"Iterations": [case.row for case in cases]}
    report.notes = notes(plan, cases)
    report.write(options.output, lambda figure: draw(figure, cases), shape=(9.6, 4.2))


def solve_both(
    name: str, scale: float, side: int, plan: Plan, options: argparse.Namespace
) -> Case:
    """Both solvers' histories on one grid, for the same vectors."""
    grid = Grid(
        shape=(side, side), spacing=(_SIDE / (side - 1),) * 2, origin=(0.0,) * 2
    )
    kernel = KERNELS[name](lengthscale=scale)
    whitening = ToeplitzWhitening(kernel, grid, lengthscales=(scale, scale))
    generator = torch.Generator().manual_seed(options.seed)
    shape = (plan.vectors, grid.size)
    vectors = torch.randn(shape, generator=generator, dtype=torch.float64)
    exact = ConjugateGradients(rtol=1e-13, max_steps=plan.most)
    reference = exact.solve(
        whitening.covariance.matvec, vectors, preconditioner=whitening.preconditioner
    ).value
    histories = []
    with stopwatch() as taken:
        for preconditioner in (None, whitening.preconditioner):
            histories.append(
                recorded(
                    whitening.covariance.matvec,
                    vectors,
                    reference,
                    tolerance=_NORM,
                    max_steps=plan.most,
                    preconditioner=preconditioner,
                )
            )
    row = case_row(name, scale, side, whitening, vectors, histories)
    say(f"{row} in {taken[0]:.1f} s")
    return Case(
        kernel=name,
        lengthscale=scale,
        side=side,
        plain=histories[0],
        preconditioned=histories[1],
        row=row,
    )


def case_row(
    name: str,
    scale: float,
    side: int,
    whitening: ToeplitzWhitening,
    vectors: Tensor,
    histories: Sequence[History],
) -> Row:
    """Iterations until the slowest vector is done, by both readings of 1e-10."""
    row: Row = {
        "order": _ORDERS[name],
        "lengthscale / box": scale / _SIDE,
        "lengthscale / spacing": scale * (side - 1) / _SIDE,
        "M": side**2,
    }
    limits = {"": _RTOL * vectors.norm(dim=1), " (norm)": _NORM}
    for reading, limit in limits.items():
        plain, preconditioned = (history.slowest(limit) for history in histories)
        row[f"CG{reading}"] = _or_more(plain, histories[0])
        row[f"PCG{reading}"] = _or_more(preconditioned, histories[1])
        row[f"PCG / CG{reading}"] = ratio(plain, preconditioned, histories[0])
    for history, solver in zip(histories, ("CG", "PCG"), strict=True):
        left = vectors - whitening.covariance.matvec(history.final)
        worst = (left.norm(dim=1) / vectors.norm(dim=1)).max()
        row[f"true residual, {solver}"] = float(worst)
    return row | {"embedding": "×".join(map(str, whitening.report.shape))}


def _or_more(count: int | None, history: History) -> int | str:
    return f"> {len(history.residual) - 1:,}" if count is None else count


def ratio(
    plain: int | None, preconditioned: int | None, history: History
) -> float | str:
    """Share of CG's iterations; an upper bound where CG did not come to an end."""
    if preconditioned is None:
        return "PCG not converged"
    if plain is None:
        return f"< {preconditioned / (len(history.residual) - 1):.3g}"
    return preconditioned / plain


def comparisons(cases: Sequence[Case]) -> list[Comparison]:
    """The paper's two figures for the published setting, and which others hold them."""
    found = []
    by_side = {case.side**2: case for case in cases if _is_published(case)}
    for size, bound in _PAPER.items():
        case = by_side.get(size)
        found.append(
            Comparison(
                what=f"iterations of PCG / CG, M = {size:,}",
                source="Fig. 1, section 5.1",
                paper=None if bound is None else f"< {bound:g}",
                here=None if case is None else case.row["PCG / CG"],
                remark="here: order 5/2, lengthscale 1/40 of the box",
            )
        )
    where, open_ = (verdict(cases, wanted) for wanted in (True, None))
    text = "; ".join(where) or "none of those scanned"
    if open_:
        text += f" (CG did not end, undecided: {'; '.join(open_)})"
    found.append(
        Comparison(
            what="settings (order, lengthscale / box) where both figures hold",
            source="order and lengthscale not stated",
            paper=None,
            here=text if any(case.side == 100 for case in cases) else None,
        )
    )
    return found


def _is_published(case: Case) -> bool:
    return (case.kernel, case.lengthscale) == _PUBLISHED


def verdict(cases: Sequence[Case], wanted: bool | None) -> list[str]:
    """Settings for which the paper's figures hold at 625 and at 10,000 points.

    ``wanted`` asks for those where they hold or not, or where an upper bound of the
    share decides nothing (``None``).
    """
    settings = dict.fromkeys((case.kernel, case.lengthscale) for case in cases)
    chosen = []
    for name, scale in settings:
        own = {
            case.side**2: case.row["PCG / CG"]
            for case in cases
            if (case.kernel, case.lengthscale) == (name, scale)
        }
        found = [
            _holds(own[size], stated)
            for size, stated in _PAPER.items()
            if stated is not None and size in own
        ]
        holds = False if False in found else None if None in found else True
        if holds is wanted:
            chosen.append(f"{_ORDERS[name]}, {scale / _SIDE:g}")
    return chosen


def _holds(share: float | str, stated: float) -> bool | None:
    """Whether a share is below the paper's; ``None`` if its bound does not tell."""
    if _bound(share) < stated:
        return True
    is_bound = isinstance(share, str) and share.startswith("<")
    return None if is_bound else False


def _bound(share: float | str) -> float:
    """A share, or the bound that a text states; 1 where PCG failed."""
    if not isinstance(share, str):
        return share
    return float(share.removeprefix("< ")) if share.startswith("<") else 1.0


def notes(plan: Plan, cases: Sequence[Case]) -> list[str]:
    return [
        f"{plan.vectors} vectors at once; iterations are those of the slowest, in "
        f"float64, at most {plan.most:,}",
        "columns without a remark: residual below 1e-10 of the vector's norm; "
        "'(norm)': the norm of the residual itself below 1e-10, as the authors' code "
        "has it (there in single precision and at most 2,000 iterations)",
        "the recursion's residual counts; the true one at the end stands beside it",
        "'< ': CG did not come to an end, which leaves an upper bound of the share",
        f"{len(cases)} systems; the error is measured from a solution by PCG to 1e-13",
    ]


def draw(figure: Figure, cases: Sequence[Case]) -> None:
    """Errors against CG's iterations in the published setting; shares in all."""
    left, right = figure.subplots(1, 2)
    _draw_errors(left, [case for case in cases if _is_published(case)])
    _draw_shares(right, cases)


def _draw_errors(axes: Axes, cases: Sequence[Case]) -> None:
    styles = ("-", "--", ":")
    for case, style in zip(cases, styles, strict=False):
        total = len(case.plain.error) - 1
        for history, colour, name in (
            (case.plain, BLUE, "CG"),
            (case.preconditioned, ORANGE, "PCG"),
        ):
            share = torch.arange(len(history.error)) / total
            low, high = history.error.min(dim=1).values, history.error.max(dim=1).values
            axes.fill_between(share, low, high, color=colour, alpha=0.2, linewidth=0)
            label = f"{name}, M = {case.side**2:,}"
            axes.plot(share, history.error.median(dim=1).values, style, color=colour,
                      label=label)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("iterations, as a share of those of CG")
    axes.set_ylabel("RMSE of the solution")
    axes.set_title("order 5/2, lengthscale 1/40 of the box", fontsize="medium")
    axes.legend(frameon=False, fontsize="small")


def _draw_shares(axes: Axes, cases: Sequence[Case]) -> None:
    markers = {"matern12": "o", "matern32": "s", "matern52": "^"}
    scales = sorted({case.lengthscale for case in cases})
    for name in dict.fromkeys(case.kernel for case in cases):
        for colour, scale in zip(CYCLE, scales, strict=False):
            own = [c for c in cases if (c.kernel, c.lengthscale) == (name, scale)]
            shares = [_bound(case.row["PCG / CG"]) for case in own]
            label = f"{_ORDERS[name]}, {scale / _SIDE:g}"
            sizes = [case.side**2 for case in own]
            axes.plot(sizes, shares, f"-{markers[name]}", color=colour, label=label,
                      markersize=5)  # fmt: skip
            bounds = [
                (case.side**2, share)
                for case, share in zip(own, shares, strict=True)
                if isinstance(case.row["PCG / CG"], str)
            ]
            for size, share in bounds:
                axes.plot(size, share, markers[name], color="white", markersize=3,
                          zorder=3)  # fmt: skip
    stated = [(size, bound) for size, bound in _PAPER.items() if bound is not None]
    axes.plot(*zip(*stated, strict=True), "kv", markersize=9, fillstyle="none",
              label="paper: below")  # fmt: skip
    if any(isinstance(case.row["PCG / CG"], str) for case in cases):
        axes.plot([], [], "o", color="0.3", markersize=5, fillstyle="none",
                  label="upper bound")  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, ticks, names in (
        (axes.xaxis, list(_PAPER), [f"{size:,}" for size in _PAPER]),
        (axes.yaxis, _SHARE_TICKS, [f"{100 * share:g}%" for share in _SHARE_TICKS]),
    ):
        axis.set_minor_formatter(NullFormatter())
        axis.set_ticks(ticks, names)
    axes.set_xlabel("inducing points M")
    axes.set_ylabel("iterations, PCG / CG")
    axes.legend(frameon=False, fontsize="x-small", ncols=2,
                title="order, lengthscale / box", title_fontsize="x-small")  # fmt: skip


if __name__ == "__main__":
    main()
