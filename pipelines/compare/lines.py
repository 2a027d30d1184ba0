"""A map against published lines of sight, where both were told something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.measurement import Row
from pipelines.base.quantiles import QUANTILES
from pipelines.compare.comparison import Comparison
from pipelines.compare.line_pictures import line_figure
from pipelines.compare.tables import Line
from pipelines.products.cumulative import RayIntegrals
from pipelines.products.integrated import last_star
from pipelines.run.folder import Run

_ALONG = 60
# Combined errors that a line is named beyond.
_OFF = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedLine:
    """One line in the band of the map: reference and map at the reference's distances.

    ``best``, ``spread``, ``mean``, ``std`` [mag] and ``judged`` have shape ``(n,)``;
    NaN where the map has ended. ``fine_distance`` and ``fine_quantiles`` (16, 50 and
    84%, shape ``(3, m)``) are for drawing. ``informed`` [pc] is where the line's last
    star lies.
    """

    line: Line
    factor: float
    mean: np.ndarray
    std: np.ndarray
    judged: np.ndarray
    informed: float
    reach: float
    fine_distance: np.ndarray
    fine_quantiles: np.ndarray

    @property
    def best(self) -> np.ndarray:
        """The reference's best fit [mag], in the band of the map."""
        return self.line.best * self.factor

    @property
    def spread(self) -> np.ndarray:
        """The reference's standard deviation [mag], in the band of the map."""
        return self.line.spread * self.factor

    @property
    def z(self) -> np.ndarray:
        """Map minus reference in units of both errors."""
        return (self.mean - self.best) / np.hypot(self.std, self.spread)


def compare_lines(
    run: Run, lines: list[Line], *, factor: float, scale: str
) -> Comparison:
    """Hold the map against extinction profiles along lines of sight.

    A distance is judged if it lies between the nearest and farthest that the reference
    trusts, in the box, and before the last star of the map's own line.

    Parameters
    ----------
    factor
        What turns the reference's values into the band of the map; R_V for E(B-V).
    scale
        The factor in words.
    """
    judged = [_judge(run, line, factor) for line in lines]
    rows = [_row(each) for each in judged]
    count = sum(bool(each.judged.any()) for each in judged)
    if not count:
        raise InputError(
            f"none of {len(lines)} lines of sight has a distance that the reference "
            "trusts, in the box, and before the last star of the map there"
        )
    numbers = _numbers(judged)
    return Comparison(
        kind="lines",
        numbers={
            "factor": factor,
            "scale": scale,
            "lines": len(lines),
            "lines_judged": count,
            **numbers,
            "by_line": rows,
        },
        tables={
            "summary": [{"scale": scale, **numbers}],
            "by_line": rows,
            "profiles": [row for each in judged for row in _profile(each)],
        },
        shown=("summary", "by_line"),
        words=_words(judged, numbers, scale),
        figures={"lines_of_sight": line_figure(judged, scale)},
    )


def _judge(run: Run, line: Line, factor: float) -> ValidatedLine:
    direction = unit_vectors(np.array([line.l]), np.array([line.b]))
    far = float(run.box.exits(direction)[0])
    informed = float(last_star(run, direction)[0])
    fine = np.linspace(0, far, _ALONG + 1)[1:]
    own = line.distance[line.distance <= far]
    edges = np.unique(np.concatenate([own, fine]))
    moments = RayIntegrals(run, direction, edges).moments(slice(0, 1))
    mean, std = (part[:, 0].numpy() for part in (moments.mean, moments.std))
    quantiles = [moments.quantile(p)[:, 0].numpy() for p in QUANTILES.values()]
    at = np.searchsorted(edges, own)
    full_mean = np.full(len(line.distance), np.nan)
    full_std = full_mean.copy()
    full_mean[: len(own)], full_std[: len(own)] = mean[at], std[at]
    trusted = (line.distance >= line.near) & (line.distance <= line.far)
    return ValidatedLine(
        line=line,
        factor=factor,
        mean=full_mean,
        std=full_std,
        judged=trusted & (line.distance <= min(far, informed)),
        informed=informed,
        reach=far,
        fine_distance=edges,
        fine_quantiles=np.stack(quantiles),
    )


def _row(each: ValidatedLine) -> Row:
    chosen = each.judged
    row: Row = {
        "l [deg]": each.line.l,
        "b [deg]": each.line.b,
        "box ends [pc]": round(each.reach),
        "last star [pc]": round(each.informed),
        "judged": int(chosen.sum()),
    }
    if not chosen.any():
        return row
    last = int(np.flatnonzero(chosen)[-1])
    difference = (each.mean - each.best)[chosen]
    return row | {
        "from [pc]": round(float(each.line.distance[chosen][0])),
        "to [pc]": round(float(each.line.distance[last])),
        "map, at the end [mag]": float(each.mean[last]),
        "± map": float(each.std[last]),
        "reference [mag]": float(each.best[last]),
        "± reference": float(each.spread[last]),
        "z at the end": float(each.z[last]),
        "mean difference [mag]": float(difference.mean()),
        "RMS difference [mag]": float(np.sqrt(np.mean(difference**2))),
        "RMS z": float(np.sqrt(np.mean(each.z[chosen] ** 2))),
    }


def _numbers(judged: list[ValidatedLine]) -> dict[str, Any]:
    mean = np.concatenate([each.mean[each.judged] for each in judged])
    best = np.concatenate([each.best[each.judged] for each in judged])
    z = np.concatenate([each.z[each.judged] for each in judged])
    ends = [
        each.z[np.flatnonzero(each.judged)[-1]] for each in judged if each.judged.any()
    ]
    return {
        "distances judged": len(z),
        "mean difference [mag]": float(np.mean(mean - best)),
        "median absolute difference [mag]": float(np.median(np.abs(mean - best))),
        "RMS difference [mag]": float(np.sqrt(np.mean((mean - best) ** 2))),
        "RMS z": float(np.sqrt(np.mean(z**2))),
        "RMS z at the ends": float(np.sqrt(np.mean(np.square(ends)))),
        "within 1 sigma": float(np.mean(np.abs(z) <= 1)),
        "within 2 sigma": float(np.mean(np.abs(z) <= 2)),
        "map / reference": float(mean @ best / (best @ best)),
    }


def _profile(each: ValidatedLine) -> list[Row]:
    return [
        {
            "l": each.line.l,
            "b": each.line.b,
            "distance": float(each.line.distance[i]),
            "map": float(each.mean[i]),
            "map_std": float(each.std[i]),
            "reference": float(each.best[i]),
            "reference_std": float(each.spread[i]),
            "z": float(each.z[i]),
            "judged": bool(each.judged[i]),
        }
        for i in range(len(each.mean))
    ]


def _words(
    judged: list[ValidatedLine], numbers: dict[str, Any], scale: str
) -> tuple[str, ...]:
    lines = sum(bool(each.judged.any()) for each in judged)
    off = [
        f"{each.line.name} ({each.z[last]:+.1f})".replace("-", "\N{MINUS SIGN}")
        for each in judged
        for last in np.flatnonzero(each.judged)[-1:]
        if abs(each.z[last]) > _OFF
    ]
    return (
        f"Lines of sight: {len(judged)}, of which {lines} have a distance that can be "
        "judged: in the box, before the last star of the map there, and within the "
        "distances the reference trusts.",
        f"Scale: {scale}. In these units the map is {numbers['map / reference']:.2f} "
        "times the reference (least squares): a factor that differs from 1 may be the "
        "reference's scale as well as the map's.",
        f"More than {_OFF:g} sigma off at its end: {'; '.join(off) or 'no line'}. "
        "Clouds smaller than a cell, or without stars behind them, are missing from "
        "the map and from its errors.",
        "Extinctions add up, so that the distances of one line are not independent: "
        f"the ends of {lines} lines are what is counted, and few. A reference is no "
        "truth either; the spread of its samples leaves out its own systematics.",
    )
