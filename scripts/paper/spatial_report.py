"""The spatial experiment's results beside Figs. 3 and 4 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paper_report import Comparison, Row
from spatial_engines import SOLVED, STEPS, SVGP

UK = "UK apartments"
# Fig. 3c: M to RMSE and seconds per epoch of 160,947 observations.
_PAPER_RMSE = {
    "HIP-GP": dict(
        zip(
            (10_000, 14_400, 19_600, 25_600, 32_400, 40_000),
            (0.411, 0.409, 0.400, 0.397, 0.393, 0.389),
            strict=True,
        )
    ),
    "SVGP": {10_000: 0.412, 14_400: 0.409, 19_600: 0.398, 25_600: 0.396},
}
_PAPER_EPOCH = {"HIP-GP": {10_000: 91.2, 40_000: 133.2}, "SVGP": {10_000: 193.6}}
OBSERVATIONS = 160_947


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """All rows of one data set."""

    name: str
    kernel: Row
    by_size: list[Row]
    together: list[Row]
    early: list[Row]
    costs: list[Row]


def tables(results: Sequence[Results]) -> dict[str, list[Row]]:
    """Everything that was run."""
    joined = {
        "Kernel and noise": [r.kernel for r in results],
        "Full batch, all observations": [row for r in results for row in r.by_size],
        "All engines on the same observations": [
            row for r in results for row in r.together
        ],
        "PCG stopped early, in training and evaluation": [
            row for r in results for row in r.early
        ],
        "Rows of svi, 20 PCG iterations": [row for r in results for row in r.costs],
    }
    return {title: rows for title, rows in joined.items() if rows}


def comparisons(results: Sequence[Results]) -> list[Comparison]:
    """Fig. 3c on its own data if it was given, and its ratios on all."""
    uk = next((r for r in results if r.name == UK), None)
    found = [
        Comparison(
            what=f"RMSE, HIP-GP, M = {size:,}, {UK}",
            source="Fig. 3c",
            paper=paper,
            here=None if uk is None else _first(uk.by_size, "RMSE", M=size),
            remark="here: full batch",
        )
        for size, paper in _PAPER_RMSE["HIP-GP"].items()
    ]
    for own in results:
        found += [*_ratios(own), _early(own), *_times(own)]
    return found


def _first(rows: Sequence[Row], column: str, **wanted: object) -> float | None:
    """A column of the first row with these entries."""
    for row in rows:
        if all(row.get(key) == value for key, value in wanted.items()):
            return row.get(column)
    return None


def _over(above: float | None, below: float | None) -> str | None:
    return None if above is None or below is None else f"{above / below:.4f}"


def _ratios(own: Results) -> list[Comparison]:
    hip, svgp_paper = _PAPER_RMSE["HIP-GP"], _PAPER_RMSE["SVGP"]
    rows = [
        Comparison(
            what="RMSE, M = 40,000 / M = 10,000, HIP-GP",
            source="Fig. 3c",
            paper=f"{hip[40_000] / hip[10_000]:.4f}",
            here=_over(
                _first(own.by_size, "RMSE", M=40_000),
                _first(own.by_size, "RMSE", M=10_000),
            ),
            remark=f"here: {own.name}, full batch",
        )
    ]
    pairs = [(STEPS, 10_000), *((SOLVED, size) for size in svgp_paper)]
    rows += [
        Comparison(
            what=f"RMSE, HIP-GP / SVGP, M = {size:,}",
            source="Fig. 3c",
            paper=f"{hip[size] / svgp_paper[size]:.4f}",
            here=_over(
                _first(own.together, "RMSE", M=size, engine=engine),
                _first(own.together, "RMSE", M=size, engine=SVGP),
            ),
            remark=f"here: {own.name}, {engine}",
        )
        for engine, size in pairs
    ]
    return rows


def _early(own: Results) -> Comparison:
    """The fewest iterations whose RMSE is within 1% of that of the most."""
    last = own.early[-1]
    enough = next(
        row["PCG iterations"]
        for row in own.early
        if abs(row["RMSE"] / last["RMSE"] - 1) < 0.01
    )
    is_papers = last["M"] == 14_400
    return Comparison(
        what="PCG iterations that bring the RMSE within 1% of the most, M = 14,400",
        source="Fig. 4 (a curve)",
        paper="robust to stopping",
        here=f"{enough}" if is_papers else None,
        remark=f"here: {own.name}, the most are {last['PCG iterations']}",
    )


def _times(own: Results) -> list[Comparison]:
    """Seconds per epoch and 1,000 observations."""
    engines: list[tuple[str, str, Callable[[Row], float]]] = [
        ("HIP-GP", STEPS, lambda row: row["epoch [s]"]),
        ("SVGP", SVGP, lambda row: row["fit [s]"]),
    ]
    found = []
    for name, engine, seconds in engines:
        here = None
        for row in own.together:
            if row["M"] == 10_000 and row["engine"] == engine:
                here = f"{1_000 * seconds(row) / row['N']:.3g}"
        found.append(
            Comparison(
                what=f"seconds per epoch and 1,000 observations, {name}, M = 10,000",
                source="Fig. 3c",
                paper=f"{1_000 * _PAPER_EPOCH[name][10_000] / OBSERVATIONS:.3g}",
                here=here,
                remark=f"here: {own.name}, on this CPU"
                + (", the whole fit" if name == "SVGP" else ""),
            )
        )
    return found
