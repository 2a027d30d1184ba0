"""The dust experiment's results beside Fig. 5 of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from dust_data import ANANKE, GALAXY
from dust_engines import DENSE, FULL_BATCH, HIPGP, SUBGRID, SVGP
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_report import Comparison, Row

from pipelines.figures.style import BLUE, GREEN, ORANGE

MAE, MSE, LOGLIKE = "MAE [mag]", "MSE [mag²]", "log likelihood"
# Fig. 5c: HIP-GP with M = 62,500 and SVGP with M = 16,384.
_PAPER = {MAE: (0.0101, 0.0153), MSE: (0.0012, 0.0020), LOGLIKE: (2.3517, 2.0690)}
_SKIES = (ANANKE, GALAXY)


def comparisons(rows: Sequence[Row], costs: Sequence[Row]) -> list[Comparison]:
    """More points against the most that SVGP has, and HIP-GP against SVGP."""
    found = []
    for name in _SKIES:
        own = [row for row in rows if row["data"] == name]
        for what in _PAPER:
            found.append(_against_largest(name, what, _of(own, FULL_BATCH), own))
        for what in _PAPER:
            found.append(_over_points(name, what, own))
        found += [_equal_points(name, what, own) for what in (MAE, LOGLIKE)]
    seconds = costs[0]["s per row"] if costs else None
    found.append(
        Comparison(
            what="seconds for a row of HIP-GP, M = 62,500",
            source="section 5.5",
            paper=None,
            here=seconds,
            remark="here: on this CPU, one thread unless said otherwise",
        )
    )
    return found


def _of(rows: Sequence[Row], engine: str) -> list[Row]:
    """An engine's fits of the most stars that it had, by M."""
    own = [row for row in rows if row["engine"] == engine]
    most = max((row["N"] for row in own), default=0)
    return sorted((r for r in own if r["N"] == most), key=lambda row: row["M"])


def _stated(what: str) -> str:
    ours, theirs = _PAPER[what]
    return f"{ours - theirs:+.3f}" if what == LOGLIKE else f"{ours / theirs:.3f}"


def _change(what: str, last: Row, first: Row) -> str:
    """A difference of log likelihoods, or a ratio of errors."""
    if what == LOGLIKE:
        return f"{last[what] - first[what]:+.3f}"
    return f"{last[what] / first[what]:.3f}"


def _verb(what: str) -> str:
    return "minus" if what == LOGLIKE else "over"


def _against_largest(
    name: str, what: str, fits: Sequence[Row], rows: Sequence[Row]
) -> Comparison:
    """The full batch on its most points against SVGP on its most, on the same stars."""
    dense = _of(rows, SVGP)
    here, remark = None, f"here: {name}"
    if fits and dense and fits[-1]["N"] == dense[-1]["N"]:
        here = _change(what, fits[-1], dense[-1])
        remark += (
            f", full batch with M = {fits[-1]['M']:,} {_verb(what)} SVGP with "
            f"M = {dense[-1]['M']:,}"
        )
    return Comparison(
        what=f"{what}, most points {_verb(what)} SVGP's most",
        source="Fig. 5c (HIP-GP 62,500, SVGP 16,384)",
        paper=_stated(what),
        here=here,
        remark=remark,
    )


def _over_points(name: str, what: str, rows: Sequence[Row]) -> Comparison:
    """HIP-GP on its most points against SVGP on a quarter of them or fewer."""
    few = [row for row in rows if row["engine"] == HIPGP]
    here, remark = None, f"here: {name}"
    if few:
        large = max(few, key=lambda row: row["M"])
        small = [
            row
            for row in rows
            if row["engine"] == SVGP
            and row["N"] == large["N"]
            and row["M"] <= large["M"] / 2.5
        ]
        if small:
            first = max(small, key=lambda row: row["M"])
            here = _change(what, large, first)
            remark += (
                f", {large['N']:,} stars, HIP-GP with M = {large['M']:,} "
                f"{_verb(what)} SVGP with M = {first['M']:,}"
            )
    return Comparison(
        what=f"{what}, HIP-GP {_verb(what)} SVGP on fewer points",
        source="Fig. 5c (62,500 and 16,384)",
        paper=_stated(what),
        here=here,
        remark=remark,
    )


def _equal_points(name: str, what: str, rows: Sequence[Row]) -> Comparison:
    """The worst ratio or difference of HIP-GP and SVGP on the same points."""
    both = {}
    for row in rows:
        if row["engine"] in (HIPGP, SVGP):
            both.setdefault((row["N"], row["M"]), {})[row["engine"]] = row
    pairs = [pair for pair in both.values() if len(pair) == 2]
    changes = [_change(what, pair[HIPGP], pair[SVGP]) for pair in pairs]
    neutral = 0.0 if what == LOGLIKE else 1.0
    worst = max(changes, key=lambda c: abs(float(c) - neutral), default=None)
    return Comparison(
        what=f"{what}, HIP-GP {_verb(what)} SVGP on the same points (worst)",
        source="not in Fig. 5 (alike in Fig. 3)",
        paper=None,
        here=worst,
        remark=f"here: {name}, {len(pairs)} grids",
    )


def draw(figure: Figure, rows: Sequence[Row]) -> None:
    """Error and log likelihood against M, a column for each data set."""
    skies = [name for name in _SKIES if any(row["data"] == name for row in rows)]
    panels = figure.subplots(2, len(skies), squeeze=False, sharex="col")
    for column, name in enumerate(skies):
        own = [row for row in rows if row["data"] == name]
        for line, what in enumerate((MAE, LOGLIKE)):
            _draw(panels[line, column], what, own)
        panels[0, column].set_title(name, fontsize="medium")
        panels[0, column].set_yscale("log")
        panels[1, column].set_xlabel("inducing points M")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False,
                  fontsize="small")  # fmt: skip


def _draw(axes: Axes, what: str, rows: Sequence[Row]) -> None:
    styles = {
        FULL_BATCH: (BLUE, "o", "full"),
        SVGP: (ORANGE, "s", "full"),
        SVGP + SUBGRID: (ORANGE, "s", "none"),
        HIPGP: (GREEN, "D", "none"),
    }
    most = max(row["N"] for row in rows)
    for engine, (colour, marker, fill) in styles.items():
        size = 9 if engine == HIPGP else 6
        for few, line in ((False, "-"), (True, ":")):
            own = [
                row
                for row in rows
                if row["engine"] == engine and (row["N"] < most) == few
            ]
            label = engine if own and (not few or engine == HIPGP) else None
            axes.plot([r["M"] for r in own], [r[what] for r in own], line,
                      marker=marker, color=colour, fillstyle=fill, markersize=size,
                      label=label)  # fmt: skip
    for row in rows:
        if row["engine"] == DENSE:
            line = "-" if row["N"] == most else ":"
            axes.axhline(row[what], color="0.4", linestyle=line, linewidth=1, zorder=0)
    axes.plot([], [], "-", color="0.4", label="dense GP")
    axes.plot([], [], ":", color="0.4", label="few stars (those of HIP-GP)")
    axes.set_xscale("log")
    names = {
        MAE: "MAE of held-out extinctions [mag]",
        LOGLIKE: "held-out log likelihood",
    }
    axes.set_ylabel(names[what])
