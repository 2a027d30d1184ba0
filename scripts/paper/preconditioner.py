#!/usr/bin/env python3
"""When the circulant preconditioner helps (supplement C.1, Figs. S1 and S2).

``K x = v`` for M equidistant inducing points in [0, 2], 25 random vectors, four kernels
of variance 1 with lengthscale 0.05 and 0.5, M from 10 to 500, tolerance 1e-10 of the
vector's norm by the recursion's residual, at most 2,000 iterations in float64. The
share r of the slowest vector's iterations with PCG in those with CG is shown twice:
with an embedding that grew until it was positive, and with the smallest embedding,
which the paper uses for all. '< r': CG did not end. The paper tabulates no numbers:
its statements are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from types import SimpleNamespace

from data import grid_of
from engines import embedded
from paper_report import Report, Row, plot, run_script
from pcg_vs_cg import NEITHER, ONLY_CG, bound, iterations, share

from dustmap.grid import Grid, Torus
from dustmap.kernels import KERNELS, Kernel
from dustmap.linalg.cg import Product
from dustmap.linalg.circulant import Circulant
from dustmap.linalg.preconditioners import CirculantPreconditioner
from dustmap.linalg.toeplitz import first_column

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
_SHARE = "r = PCG / CG"
SIZES = {
    "points": ((10, 20, 40, 80, 100, 200, 300, 400, 500), (10, 40, 100)),
    "vectors": (25, 5),
    "most": (2_000, 500),
}


def experiment(report: Report, given: SimpleNamespace) -> None:
    """Solve with every kernel on every number of points."""
    rows = report.collect("Iterations", run(given))
    compare(report, rows)
    shown = [{**row, _SHARE: bound(row[_GROWN])} for row in rows]
    report.figure = plot(
        shown, lambda row: f"{row['kernel']}, {row['lengthscale']:g}", _SHARE
    )


def run(given: SimpleNamespace) -> Iterator[Row]:
    """Count iterations of the slowest vector, plain and with both preconditioners."""
    for scale, (name, label) in product(_LENGTHSCALES, _KERNELS.items()):
        for count in given.points:
            grid = grid_of((0.0,), (_LENGTH,), count)
            kernel = KERNELS[name](lengthscale=scale)
            whitening = embedded(kernel, grid)
            ways = (whitening.preconditioner, smallest_preconditioner(kernel, grid))
            plain, *others = iterations(whitening, ways, given)
            grown, smallest = (share(plain, other, given.most) for other in others)
            yield {
                "kernel": label,
                "lengthscale": scale,
                "M": count,
                _GROWN: grown,
                _SMALLEST: smallest,
                "embedding / smallest": whitening.size / max(2 * count - 2, 2),
            }


def smallest_preconditioner(kernel: Kernel, grid: Grid) -> Product:
    """Make the paper's preconditioner of ``2 M − 2`` points."""
    torus = Torus(grid=grid, shape=tuple(2 * n - 2 for n in grid.shape))
    circulant = Circulant.from_first_column(first_column(kernel, torus, 0.0))
    return CirculantPreconditioner(circulant, grid).matvec


def compare(report: Report, rows: Sequence[Row]) -> None:
    """Check what the paper says of its curves, and of how many it is true here."""
    source = "Figs. S1c and S2c, supplement C.1"
    for what, claim, check in (
        ("r < 1", "always", _below_one),
        ("lengthscale 0.05: r falls as M grows", "all kernels", _falls),
        ("lengthscale 0.5: r rises again beyond some M", "three smoothest", _rises),
        ("r is smaller for rougher kernels at one M", "yes", _ordered),
    ):
        for key in (_GROWN, _SMALLEST):
            report.compare(what, source, claim, check(rows, key), key)


def _solved(cell: float | str) -> bool:
    return cell not in (NEITHER, ONLY_CG)


def _below_one(rows: Sequence[Row], key: str) -> str:
    found = [bound(row[key]) for row in rows if _solved(row[key])]
    neither, alone = (sum(r[key] == text for r in rows) for text in (NEITHER, ONLY_CG))
    return (
        f"{sum(r < 1 for r in found)} of {len(rows)} systems, {neither} solved by "
        f"neither and {alone} by CG alone; largest r "
        f"{max(found, default=float('nan')):.3g}"
    )


def _curves(rows: Sequence[Row], key: str, scale: float) -> dict[str, list]:
    """Gather r over M of every kernel, without the systems that PCG failed in."""
    return {
        name: [
            row[key]
            for row in rows
            if (row["kernel"], row["lengthscale"]) == (name, scale)
            and _solved(row[key])
        ]
        for name in _KERNELS.values()
    }


def _falls(rows: Sequence[Row], key: str) -> str:
    curves = _curves(rows, key, _LENGTHSCALES[0])
    held = [name for name, r in curves.items() if r and bound(r[-1]) < bound(r[0])]
    return f"from the smallest to the largest M that PCG solves: {', '.join(held)}"


def _rises(rows: Sequence[Row], key: str) -> str:
    """Name the kernels whose last r is above an earlier one.

    An upper bound shows no rise of r itself and is named apart.
    """
    found: dict[bool, list[str]] = {False: [], True: []}
    for name, own in _curves(rows, key, _LENGTHSCALES[1]).items():
        if own and bound(own[-1]) > min(map(bound, own)):
            found[isinstance(own[-1], str)].append(name)
    sure, counted = (", ".join(names) or "none" for names in found.values())
    return f"{sure}; with CG counted as ended at the limit also {counted}"


def _ordered(rows: Sequence[Row], key: str) -> str:
    """Count neighbouring pairs of kernels at one M and lengthscale in order."""
    held = judged = 0
    for scale in _LENGTHSCALES:
        for count in dict.fromkeys(row["M"] for row in rows):
            at = [r for r in rows if (r["lengthscale"], r["M"]) == (scale, count)]
            for smooth, rough in pairwise(row[key] for row in at):
                if not isinstance(smooth, str) and not isinstance(rough, str):
                    judged += 1
                    held += rough <= smooth
    return f"{held} of {judged} pairs of kernels where both solvers converged"


if __name__ == "__main__":
    run_script(__file__, __doc__, experiment, SIZES)
