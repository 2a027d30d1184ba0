"""The results of SVGP by contour quadrature beside those of its paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paper_report import NOT_RUN, Comparison, Row
from svgp_runs import CHOLESKY, DENSE, PCG, TOEPLITZ

START, TRAINED = "start", "trained"
NU, NOISE = "ν", "noise variance"
_TIMES, _NLL, _STATS = "training time, figure", "NLL, figure", "likelihood, figure"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """Rows of every part, and the name of the heavy-tailed set among the trained."""

    trained: list[Row]
    pairs: list[Row]
    timed: list[Row]
    grid: list[Row]
    heavy: str | None

    def tables(self) -> dict[str, list[Row]]:
        """Everything that was run."""
        parts = {
            "Training": self.trained,
            "Both whitenings, the same steps": self.pairs,
            "One step of learning": self.timed,
            "Features on a grid, lengthscale of two spacings": self.grid,
        }
        return {title: rows for title, rows in parts.items() if rows}


def comparisons(results: Results) -> list[Comparison]:
    """Times, negative log densities and the learnt likelihood."""
    return [*_times(results.timed), *_agreement(results.pairs), *_learnt(results)]


def ratios(timed: Sequence[Row], where: str) -> dict[int, float]:
    """Time of Cholesky over that of CIQ by M."""
    seconds = {
        (row["method"], row["M"]): row["seconds per step"]
        for row in timed
        if row["kernel"] == where
    }
    return {
        size: found / seconds[DENSE, size]
        for (method, size), found in seconds.items()
        if method == CHOLESKY and (DENSE, size) in seconds
    }


def _times(timed: Sequence[Row]) -> list[Comparison]:
    found = []
    for where in (START, TRAINED):
        shares = ratios(timed, where)
        remark = f"here: per step on a CPU, hyperparameters: {where}; paper: a GPU"
        found += [
            Comparison(
                what=f"time of Cholesky / CIQ, M = {size:,}",
                source=_TIMES,
                paper=paper,
                here=shares.get(size),
                remark=remark,
            )
            for size, paper in ((1_000, "about 1"), (4_000, None), (5_000, "up to 4"))
        ]
        found.append(
            Comparison(
                what="smallest M at which CIQ is faster",
                source=_TIMES,
                paper="about 1,000",
                here=crossover(shares),
                remark=remark,
            )
        )
    return found


def crossover(shares: dict[int, float]) -> str | None:
    """The first M at which Cholesky takes longer; ``None`` if nothing was timed."""
    if not shares:
        return None
    faster = [size for size, share in sorted(shares.items()) if share > 1]
    return f"{faster[0]:,}" if faster else f"none up to {max(shares):,}"


def _agreement(pairs: Sequence[Row]) -> list[Comparison]:
    found = []
    for name, learning in dict.fromkeys((r["data"], r["learning"]) for r in pairs):
        own = [r for r in pairs if (r["data"], r["learning"]) == (name, learning)]
        worst = max(own, key=lambda row: abs(row["CIQ - Cholesky"]))
        steps = ", ".join(f"{row['M']:,} ({row['steps']})" for row in own)
        how = "learning" if learning else "fixed hyperparameters"
        found.append(
            Comparison(
                what=f"NLL of CIQ - Cholesky, {how}, largest [nats], {name}",
                source=_NLL,
                paper="very similar (a drawing)" if learning else None,
                here=f"{worst['CIQ - Cholesky']:+.1e}",
                remark=f"here: M (steps) = {steps}",
            )
        )
    return found


def trained_pairs(trained: Sequence[Row]) -> list[Row]:
    """Whole trainings by both whitenings, as rows of pairs."""
    by_case = {(row["data"], row["M"], row["method"]): row for row in trained}
    found = []
    for (name, size, method), exact in by_case.items():
        other = by_case.get((name, size, DENSE))
        if method == CHOLESKY and other is not None:
            times = other["seconds per step"] / exact["seconds per step"]
            found.append(
                {
                    "data": name,
                    "kernel": START,
                    "learning": True,
                    "M": size,
                    "steps": exact["steps"],
                    "NLL, Cholesky": f"{exact['NLL']:.6f}",
                    "NLL, CIQ": f"{other['NLL']:.6f}",
                    "CIQ - Cholesky": other["NLL"] - exact["NLL"],
                    "time of CIQ / Cholesky": times,
                }
            )
    return found


def _learnt(results: Results) -> list[Comparison]:
    """The heavy-tailed likelihood, and what more inducing points gain."""
    by_size = {
        row["M"]: row
        for row in results.trained
        if row["data"] == results.heavy and row["method"] == CHOLESKY
    }
    ends = [by_size[size] for size in sorted(by_size)]
    stated = {NOISE: "0.19 to 0.05", NU: "falls (a drawing)"}
    found = [
        Comparison(
            what=f"learnt {name} of Student's t, fewest to most points",
            source=_STATS,
            paper=paper,
            here=f"{ends[0][name]:.3g} to {ends[-1][name]:.3g}" if ends else None,
            remark="paper: M = 1,000 to 10,000; here: "
            + (f"{ends[0]['M']:,} to {ends[-1]['M']:,}" if ends else NOT_RUN),
        )
        for name, paper in stated.items()
    ]
    gains = _gain(results.trained, 5_000, 10_000)
    gained = Comparison(
        what="NLL gained from M = 5,000 to 10,000 [nats]",
        source=_NLL,
        paper=0.1,
        here=max(gains) if gains else None,
        remark="paper: 3droad and Precipitation",
    )
    return [*found, gained]


def _gain(trained: Sequence[Row], few: int, many: int) -> list[float]:
    nll = {(row["data"], row["method"], row["M"]): row["NLL"] for row in trained}
    return [
        found - nll[name, method, many]
        for (name, method, size), found in nll.items()
        if size == few and (name, method, many) in nll
    ]


def grid_note(grid: Sequence[Row]) -> str:
    """How the methods that use a grid compare with the others."""
    seconds = {(row["method"], row["M"]): row["seconds"] for row in grid}
    dense = [size for method, size in seconds if method == CHOLESKY]
    if not dense:
        return f"features on a grid: {NOT_RUN}"
    most, last = max(dense), max(size for _, size in seconds)
    own = {name: seconds[name, most] for name in (CHOLESKY, DENSE, TOEPLITZ, PCG)}
    ahead = seconds[TOEPLITZ, last] / seconds[PCG, last]
    cubed = seconds[CHOLESKY, most] * (last / most) ** 3
    return (
        f"on a grid of {most:,} points features of {grid[0]['rows']} rows took "
        + ", ".join(f"{value:.3g} s ({name})" for name, value in own.items())
        + f"; at {last:,} points CIQ with FFTs took {seconds[TOEPLITZ, last]:.3g} s "
        f"(Cholesky, by M³ from there, would take {cubed:.3g} s), and PCG with the "
        f"circulant preconditioner was {ahead:.3g} times as fast"
    )
