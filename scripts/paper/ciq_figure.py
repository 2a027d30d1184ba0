"""The figure of SVGP by contour quadrature."""

from __future__ import annotations

from collections.abc import Sequence

from ciq_report import NOISE, NU, START, TRAINED, Results
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_report import Row
from svgp_runs import CHOLESKY, DENSE, PCG, TOEPLITZ

from pipelines.figures.style import BLUE, CYCLE, GREEN, ORANGE, PURPLE

_COLOURS = {CHOLESKY: BLUE, DENSE: ORANGE, TOEPLITZ: GREEN, PCG: PURPLE}
_LINES = {START: "--o", TRAINED: "-s"}


def draw(figure: Figure, results: Results) -> None:
    """Accuracy and the learnt likelihood above, agreement and times below."""
    upper, lower = figure.subplots(2, 3)
    _draw_nll(upper[0], results.trained)
    heavy = [row for row in results.trained if row["data"] == results.heavy]
    _draw_learnt(upper[1], heavy, NOISE, "learnt noise variance s²")
    _draw_learnt(upper[2], heavy, NU, "learnt degrees of freedom ν")
    _draw_pairs(lower[0], results.pairs)
    _draw_steps(lower[1], results.timed)
    _draw_grid(lower[2], results.grid)
    for axes in (*upper, *lower):
        axes.set_xscale("log")
        axes.set_xlabel("inducing points M")
        axes.set_xticks([], minor=True)
        places = {float(x) for line in axes.lines for x in line.get_xdata()}
        axes.set_xticks(*_ticks(places))


def _ticks(places: set[float]) -> tuple[list[float], list[str]]:
    """Some of the values themselves, at least a factor of two apart."""
    shown: list[float] = []
    for place in sorted(places):
        if not shown or place >= 1.9 * shown[-1]:
            shown.append(place)
    if len(shown) > 4:
        shown = shown[:: (len(shown) + 3) // 4]
    return shown, [f"{place:,.0f}" for place in shown]


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["data"] for row in rows))


def _draw_nll(axes: Axes, trained: Sequence[Row]) -> None:
    """What more inducing points gain, by data set."""
    for name, colour in zip(_names(trained), CYCLE, strict=False):
        own = [row for row in trained if row["data"] == name]
        first = own[0]["NLL"]
        for method, style in ((CHOLESKY, "-o"), (DENSE, "--x")):
            rows = [row for row in own if row["method"] == method]
            label = name if method == CHOLESKY else f"{name}, {method}"
            if rows:
                gains = [row["NLL"] - first for row in rows]
                axes.plot([row["M"] for row in rows], gains, style, color=colour,
                          label=label)  # fmt: skip
    axes.set_ylabel("NLL − that of the fewest [nats]")
    axes.legend(frameon=False, fontsize="x-small")


def _draw_learnt(axes: Axes, rows: Sequence[Row], name: str, label: str) -> None:
    for method, style in ((CHOLESKY, "-o"), (DENSE, "--x")):
        own = [row for row in rows if row["method"] == method]
        if own:
            axes.plot([row["M"] for row in own], [row[name] for row in own], style,
                      color=_COLOURS[method], label=method)  # fmt: skip
    axes.set_ylabel(label)
    if rows:
        axes.set_title(rows[0]["data"], fontsize="medium")


def _draw_pairs(axes: Axes, pairs: Sequence[Row]) -> None:
    """How far the whitenings end apart after the same steps."""
    cases = dict.fromkeys((row["kernel"], row["learning"]) for row in pairs)
    for name, colour in zip(_names(pairs), CYCLE, strict=False):
        axes.plot([], [], color=colour, label=name)
        for where, learning in cases:
            own = [
                row
                for row in pairs
                if (row["data"], row["kernel"], row["learning"])
                == (name, where, learning)
            ]
            apart = [max(abs(row["CIQ - Cholesky"]), 1e-12) for row in own]
            axes.plot([row["M"] for row in own], apart,
                      _LINES[where] if learning else ":^", color=colour)  # fmt: skip
    for where, learning in cases:
        style = _LINES[where] if learning else ":^"
        label = f"learning from {where}" if learning else "fixed hyperparameters"
        axes.plot([], [], style, color="0.4", label=label)
    axes.set_yscale("log")
    axes.set_ylabel("|NLL of CIQ − Cholesky| [nats]")
    # Above the panel: lines are all over it.
    axes.legend(frameon=False, fontsize="x-small", loc="lower left", ncols=2,
                bbox_to_anchor=(0, 1), borderaxespad=0.2)  # fmt: skip


def _draw_steps(axes: Axes, timed: Sequence[Row]) -> None:
    """Seconds a step by M; Cholesky's do not depend on the hyperparameters."""
    for method in (CHOLESKY, DENSE):
        for where, style in _LINES.items():
            own = [r for r in timed if (r["method"], r["kernel"]) == (method, where)]
            if own:
                axes.plot([row["M"] for row in own],
                          [row["seconds per step"] for row in own], style,
                          color=_COLOURS[method],
                          label=f"{method}, {where}")  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylabel("seconds per step of learning")
    axes.legend(frameon=False, fontsize="x-small")


def _draw_grid(axes: Axes, grid: Sequence[Row]) -> None:
    for method, colour in _COLOURS.items():
        own = [row for row in grid if row["method"] == method]
        if own:
            axes.plot([row["M"] for row in own], [row["seconds"] for row in own],
                      "-o", color=colour, label=method)  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylabel("seconds for features on a grid")
    axes.legend(frameon=False, fontsize="x-small")
