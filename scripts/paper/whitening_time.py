#!/usr/bin/env python3
"""What whitening takes (section 5.2, Tables 1 and S1 to S3).

Features ``k_n`` of 200 random observations in one dimension, for M equidistant inducing
points, four kernels of variance 0.1 and a lengthscale of one spacing, as in the paper,
and of three. Cholesky and PCG (to 1e-10) as there; beside them this project's torus,
which needs no solve. All in one run, in turn: the ratios of their times are what can be
compared with the paper's on its GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_report import Comparison, Report, Row, Size, parser, size_of
from whitening_methods import (
    CHOLESKY,
    PCG,
    TORUS,
    Timed,
    fastest,
    whiten_rows,
)

from dustmap.grid import Grid
from dustmap.kernels import KERNELS
from pipelines.base.progress import say
from pipelines.figures.style import BLUE, GREEN, ORANGE

_ROWS = 200
_VARIANCE = 0.1
_NAMES = {
    "matern12": "Matérn 1/2",
    "matern32": "Matérn 3/2",
    "matern52": "Matérn 5/2",
    "squared-exponential": "SE",
}
# Seconds of HIP-GP for M = 10³, 10⁴, 10⁵, 10⁶ and of SVGP for the first two.
_PAPER = {
    "matern12": ("Table S1", (0.0078, 0.0187, 0.3484, 1.4727), (0.0152, 0.1516)),
    "matern32": ("Table S2", (0.0087, 0.0192, 0.3479, 1.4656), (0.0142, 0.1379)),
    "matern52": ("Table 1", (0.0045, 0.0185, 0.3475, 1.4595), (0.0175, 0.1745)),
    "squared-exponential": (
        "Table S3",
        (0.0112, 0.0199, 0.3683, 2.3433),
        (0.7090, 0.0992),
    ),
}
_SIZES = (10**3, 10**4, 10**5, 10**6)
_COLOURS = {PCG: BLUE, TORUS: ORANGE, CHOLESKY: GREEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run.

    ``rows`` of PCG and the torus and ``repeats`` by M; Cholesky runs all rows up to
    ``most_dense`` points. ``singular_rows`` instead of ``rows`` for the SE kernel of
    three spacings, with which PCG runs into its limit (0: not run).
    """

    rows: dict[int, int]
    singular_rows: dict[int, int]
    repeats: dict[int, int]
    most_dense: int


PLANS: dict[Size, Plan] = {
    "quick": Plan(
        rows={200: 20, 1_000: 20},
        singular_rows={200: 5, 1_000: 0},
        repeats={200: 2, 1_000: 2},
        most_dense=1_000,
    ),
    "default": Plan(
        rows=dict(zip(_SIZES, (_ROWS, _ROWS, 50, 10), strict=True)),
        singular_rows=dict(zip(_SIZES, (50, 10, 1, 0), strict=True)),
        repeats=dict(zip(_SIZES, (3, 1, 1, 1), strict=True)),
        most_dense=10**4,
    ),
    "full": Plan(
        rows=dict.fromkeys(_SIZES, _ROWS),
        singular_rows=dict(zip(_SIZES, (_ROWS, _ROWS, 20, 2), strict=True)),
        repeats=dict(zip(_SIZES, (5, 3, 1, 1), strict=True)),
        most_dense=10**4,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """All methods on one kernel and grid."""

    kernel: str
    spacings: int
    size: int
    timed: dict[str, Timed]

    def seconds(self, name: str) -> float | None:
        """Of 200 rows with the set-up, ``None`` where the method did not run."""
        timed = self.timed.get(name)
        return None if timed is None else timed.total(_ROWS)

    def ratio(self, above: str, below: str) -> float | None:
        """Of two methods' times."""
        a, b = self.seconds(above), self.seconds(below)
        return None if a is None or b is None else a / b


def main() -> None:
    options = parser(__doc__).parse_args()
    report = Report.of("whitening_time", __doc__, options)
    plan = PLANS[size_of(options)]
    cases = [
        run(name, spacings, size, plan, options)
        for size in plan.rows
        for spacings in (1, 3)
        for name in _NAMES
        if rows_of(plan, name, spacings, size)
    ]
    report.comparisons = comparisons(cases)
    report.tables = {
        "200 rows with the set-up": [summary_row(case) for case in cases],
        "Every method": [row for case in cases for row in method_rows(case)],
    }
    report.notes = notes(plan)
    report.write(options.output, lambda figure: draw(figure, cases), shape=(9.6, 4.4))


def rows_of(plan: Plan, name: str, spacings: int, size: int) -> int:
    """Rows of PCG and the torus in one case."""
    singular = name == "squared-exponential" and spacings == 3
    return (plan.singular_rows if singular else plan.rows)[size]


def run(
    name: str, spacings: int, size: int, plan: Plan, options: argparse.Namespace
) -> Case:
    """All methods that the plan has for this size, as often as it says."""
    grid = Grid(shape=(size,), spacing=(1 / (size - 1),), origin=(0.0,))
    kernel = KERNELS[name](lengthscale=spacings / size, variance=_VARIANCE)
    generator = torch.Generator().manual_seed(options.seed)
    at = torch.rand(_ROWS, 1, generator=generator, dtype=torch.float64)
    count = rows_of(plan, name, spacings, size)
    rows = {PCG: count, TORUS: count}
    if size <= plan.most_dense:
        rows[CHOLESKY] = _ROWS
    with torch.no_grad():
        repeated = range(plan.repeats[size])
        timed = fastest([whiten_rows(rows, kernel, grid, at) for _ in repeated])
    case = Case(kernel=name, spacings=spacings, size=size, timed=timed)
    say(str(summary_row(case)))
    return case


def summary_row(case: Case) -> Row:
    """Ratios of one case."""
    pcg = case.timed[PCG]
    return {
        "kernel": _NAMES[case.kernel],
        "lengthscale / spacing": case.spacings,
        "M": case.size,
        "PCG iterations": pcg.iterations,
        "PCG missed 1e-10": f"{pcg.unconverged} of {pcg.rows}",
        "Cholesky / PCG": case.ratio(CHOLESKY, PCG),
        "PCG / torus": case.ratio(PCG, TORUS),
    }


def method_rows(case: Case) -> list[Row]:
    """One row for each method."""
    return [
        {
            "kernel": _NAMES[case.kernel],
            "lengthscale / spacing": case.spacings,
            "M": case.size,
            "method": name,
            "set-up [s]": timed.setup,
            "rows timed": timed.rows,
            "k_un [s per row]": timed.cross / timed.rows,
            "k_n [s per row]": timed.seconds / timed.rows,
            "set-up + 200 k_n [s]": timed.total(_ROWS),
            "in proportion": timed.rows < _ROWS,
            "iterations": timed.iterations,
            "residual": timed.residual,
            "k·k' against PCG": gram_error(timed, case.timed[PCG]),
            "remark": timed.note,
        }
        for name, timed in case.timed.items()
    ]


def gram_error(timed: Timed, reference: Timed) -> float:
    """Largest difference of inner products, relative to the largest of them."""
    count = min(len(timed.gram), len(reference.gram))
    ours, theirs = (t.gram[:count, :count] for t in (timed, reference))
    return float((ours - theirs).abs().max() / theirs.abs().max())


def comparisons(cases: Sequence[Case]) -> list[Comparison]:
    """The tables' ratios, and the torus that the paper has not."""
    found = []
    by = {(c.kernel, c.spacings, c.size): c for c in cases}
    for name, (table, hip, svgp) in _PAPER.items():
        for index, (size, ours) in enumerate(zip(_SIZES, hip, strict=True)):
            case = by.get((name, 1, size))
            dense = f"{svgp[index] / ours:.3g}" if index < len(svgp) else "n/a"
            found.append(
                Comparison(
                    what=f"time of Cholesky / PCG, {_NAMES[name]}, M = {size:,}",
                    source=table,
                    paper=dense,
                    here=None if case is None else case.ratio(CHOLESKY, PCG),
                    remark="" if index < len(svgp) else "no memory for the factor",
                )
            )
    for name, (table, hip, _) in _PAPER.items():
        ends = [by.get((name, 1, size)) for size in (_SIZES[0], _SIZES[-1])]
        found.append(
            Comparison(
                what=f"time of PCG, M = 10⁶ / M = 10³, {_NAMES[name]}",
                source=table,
                paper=f"{hip[-1] / hip[0]:.3g}",
                here=_growth(ends[0], ends[1]),
            )
        )
    found += [
        _torus(by.get((name, spacings, _SIZES[-1])), name, spacings)
        for spacings in (1, 3)
        for name in _NAMES
    ]
    return found


def _growth(first: Case | None, last: Case | None) -> float | None:
    if first is None or last is None:
        return None
    return last.timed[PCG].total(_ROWS) / first.timed[PCG].total(_ROWS)


def _torus(case: Case | None, name: str, spacings: int) -> Comparison:
    return Comparison(
        what=f"time of PCG / torus, {_NAMES[name]}, M = 10⁶, lengthscale "
        f"{spacings} spacing{'s' if spacings > 1 else ''}",
        source="no torus there",
        paper=None,
        here=None if case is None else case.ratio(PCG, TORUS),
        remark="" if case is None else _solves(case.timed[PCG]),
    )


def _solves(timed: Timed) -> str:
    missed = f", {timed.unconverged} of {timed.rows} rows missed 1e-10"
    return f"{timed.iterations} PCG iterations{missed if timed.unconverged else ''}"


def notes(plan: Plan) -> list[str]:
    """What the numbers mean, and why they differ from the paper's."""
    return [
        "times are processor seconds of all threads, which a busy machine does not "
        "stretch, of the set-up (embedding, circulant or Cholesky factor) and of k_n "
        "from given k_un; what k_un takes is listed apart (a kernel value for each "
        "point and row; on the torus one for each image as well)",
        "where fewer than 200 rows were timed, 200 are in proportion to them; rows go "
        "in chunks (200 at M = 10⁶ would take 19 GB at once), all methods in turn, and "
        "a repeated case counts by the fastest run of each part "
        f"(repeats: {', '.join(f'{n} at M = {m:,}' for m, n in plan.repeats.items())})",
        "the paper's seconds are those of a V100, on which a dense factor is "
        "comparatively cheap; here all is in float64 on the CPU, whose seconds are not "
        "to be compared with them, and ratios only with this in mind",
        "PCG stops after 500 iterations: an SE kernel of three spacings is singular to "
        "working precision, and no method's k_n is exact there",
        "the torus holds more points than the grid, and its kernel is periodised: its "
        "k·k' differs from PCG's where a row is near the end of the grid",
    ]


def draw(figure: Figure, cases: Sequence[Case]) -> None:
    """Times of all methods; ratios of two pairs of them, where PCG converged."""
    left, right = figure.subplots(1, 2)
    _draw_times(left, [case for case in cases if case.spacings == 1])
    _draw_ratios(right, cases)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("inducing points M")


def _draw_times(axes: Axes, cases: Sequence[Case]) -> None:
    styles = dict(zip(_NAMES, (":", "--", "-", "-."), strict=True))
    for method, colour in _COLOURS.items():
        for name, style in styles.items():
            points = [
                (case.size, case.seconds(method))
                for case in cases
                if case.kernel == name and method in case.timed
            ]
            if points:
                label = method if name == "matern52" else None
                sizes, seconds = zip(*points, strict=True)
                axes.plot(sizes, seconds, style, marker="o", markersize=3.5,
                          color=colour, linewidth=1.2, label=label)  # fmt: skip
    for name, style in styles.items():
        axes.plot([], [], style, color="0.4", label=_NAMES[name])
    axes.set_ylabel("processor seconds for 200 rows, set-up included")
    axes.set_title("lengthscale of one spacing", fontsize="medium")
    axes.legend(frameon=False, fontsize="x-small", ncols=2)


def _draw_ratios(axes: Axes, cases: Sequence[Case]) -> None:
    markers = dict(zip(_NAMES, "osD^", strict=True))
    pairs = ((CHOLESKY, PCG, GREEN), (PCG, TORUS, ORANGE))
    for above, below, colour in pairs:
        for spacings, style in ((1, "-"), (3, ":")):
            for name, marker in markers.items():
                points = [
                    (case.size, case.ratio(above, below))
                    for case in cases
                    if (case.kernel, case.spacings) == (name, spacings)
                    and above in case.timed
                    and not case.timed[PCG].unconverged
                ]
                if points:
                    axes.plot(*zip(*points, strict=True), style, marker=marker,
                              markersize=4, color=colour, linewidth=1)  # fmt: skip
        axes.plot([], [], "-", color=colour, label=f"{above} / {below}")
    for name, marker in markers.items():
        _, hip, svgp = _PAPER[name]
        stated = [b / a for a, b in zip(hip, svgp, strict=False)]
        axes.plot(_SIZES[:2], stated, marker, color="k", fillstyle="none", markersize=7)
        axes.plot([], [], marker, color="0.5", label=_NAMES[name])
    axes.plot([], [], "o", color="k", fillstyle="none",
              label="paper: Cholesky / PCG")  # fmt: skip
    axes.plot([], [], ":", color="0.5", label="three spacings")
    axes.axhline(1, color="0.8", linewidth=0.8, zorder=0)
    axes.set_ylabel("ratio of times")
    axes.legend(frameon=False, fontsize="x-small", ncols=2)


if __name__ == "__main__":
    main()
