"""A map against published lines of sight, where both are informed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.measurement import Row
from pipelines.compare.comparison import Comparison, rows_of
from pipelines.compare.line_pictures import line_figure
from pipelines.compare.tables import Line
from pipelines.products.cumulative import RayIntegrals, outward_summaries
from pipelines.products.integrated import last_star
from pipelines.run.folder import Run

_ALONG = 60
# Combined errors that a line is named beyond.
_OFF = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedLine:
    """One line in the band of the map, and the map at its distances.

    ``mean``, ``std`` [mag] and ``judged`` have shape ``(n,)``; NaN where the map has
    ended. ``fine_distance`` and ``fine_quantiles`` (16, 50 and 84%, shape ``(3, m)``)
    are for drawing. The line's last star lies at ``informed`` [pc], the end of the box
    at ``reach`` [pc].
    """

    line: Line
    mean: np.ndarray
    std: np.ndarray
    judged: np.ndarray
    informed: float
    reach: float
    fine_distance: np.ndarray
    fine_quantiles: np.ndarray

    @property
    def z(self) -> np.ndarray:
        """Map minus reference in units of both errors."""
        return (self.mean - self.line.best) / np.hypot(self.std, self.line.spread)

    @property
    def last(self) -> int | None:
        """Index of the farthest distance that is judged."""
        chosen = np.flatnonzero(self.judged)
        return int(chosen[-1]) if len(chosen) else None


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
    lines = [
        replace(each, best=factor * each.best, samples=factor * each.samples)
        for each in lines
    ]
    validated = [_validated(run, line) for line in lines]
    count = sum(each.last is not None for each in validated)
    if not count:
        raise InputError(
            f"none of {len(lines)} lines of sight has a distance that the reference "
            "trusts, in the box, and before the last star of the map there"
        )
    numbers, rows = _numbers(validated), [_row(each) for each in validated]
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
            "summary": [numbers],
            "by_line": rows,
            "profiles": [row for each in validated for row in _profile(each)],
        },
        shown=("by_line", "summary"),
        words=_words(validated, numbers, count, scale),
        figures={"lines": line_figure(validated, scale)},
    )


def _validated(run: Run, line: Line) -> ValidatedLine:
    direction = unit_vectors(np.array([line.l]), np.array([line.b]))
    far = float(run.box.exits(direction)[0])
    informed = float(last_star(run, direction)[0])
    own = line.distance[line.distance <= far]
    edges = np.unique(np.concatenate([own, np.linspace(0, far, _ALONG + 1)[1:]]))
    moments = RayIntegrals(run, direction, edges).moments(slice(0, 1))
    found, _ = outward_summaries(moments, quantiles=True)
    at = np.searchsorted(edges, own)
    mean, std = np.full((2, len(line.distance)), np.nan)
    mean[: len(own)], std[: len(own)] = found["mean"][at, 0], found["std"][at, 0]
    trusted = (line.distance >= line.near) & (line.distance <= line.far)
    return ValidatedLine(
        line=line,
        mean=mean,
        std=std,
        judged=trusted & (line.distance <= min(far, informed)),
        informed=informed,
        reach=far,
        fine_distance=edges,
        fine_quantiles=np.stack([found[k][:, 0] for k in ("p16", "p50", "p84")]),
    )


def _row(each: ValidatedLine) -> Row:
    line, chosen, last = each.line, each.judged, each.last
    row: Row = {
        "l [deg]": line.l,
        "b [deg]": line.b,
        "box ends [pc]": round(each.reach),
        "last star [pc]": round(each.informed),
        "judged": int(chosen.sum()),
    }
    if last is None:
        return row
    difference = (each.mean - line.best)[chosen]
    return row | {
        "from [pc]": round(float(line.distance[chosen][0])),
        "to [pc]": round(float(line.distance[last])),
        "map, at the end [mag]": float(each.mean[last]),
        "± map": float(each.std[last]),
        "reference [mag]": float(line.best[last]),
        "± reference": float(line.spread[last]),
        "z at the end": float(each.z[last]),
        "mean difference [mag]": float(difference.mean()),
        "RMS difference [mag]": _rms(difference),
        "RMS z": _rms(each.z[chosen]),
    }


def _numbers(validated: list[ValidatedLine]) -> dict[str, Any]:
    mean, best, z = np.concatenate(
        [np.stack([v.mean, v.line.best, v.z])[:, v.judged] for v in validated], axis=1
    )
    ends = np.array([each.z[each.last] for each in validated if each.last is not None])
    return {
        "distances judged": len(z),
        "mean difference [mag]": float(np.mean(mean - best)),
        "median absolute difference [mag]": float(np.median(np.abs(mean - best))),
        "RMS difference [mag]": _rms(mean - best),
        "RMS z": _rms(z),
        "RMS z at the ends": _rms(ends),
        "within 1 sigma": float(np.mean(np.abs(z) <= 1)),
        "within 2 sigma": float(np.mean(np.abs(z) <= 2)),
        "map / reference": float(mean @ best / (best @ best)),
    }


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _profile(each: ValidatedLine) -> list[Row]:
    line = each.line
    columns = {
        "l": np.full_like(each.mean, line.l),
        "b": np.full_like(each.mean, line.b),
        "distance": line.distance,
        "map": each.mean,
        "map_std": each.std,
        "reference": line.best,
        "reference_std": line.spread,
        "z": each.z,
        "judged": each.judged,
    }
    return rows_of(columns)


def _words(
    validated: list[ValidatedLine], numbers: dict[str, Any], count: int, scale: str
) -> tuple[str, ...]:
    off = [
        f"{each.line.name} ({each.z[each.last]:+.1f})".replace("-", "\N{MINUS SIGN}")
        for each in validated
        if each.last is not None and abs(each.z[each.last]) > _OFF
    ]
    return (
        f"Lines of sight: {len(validated)}, {count} of them with a distance that can "
        "be judged: in the box, before the map's last star there, and within the "
        "distances the reference trusts.",
        f"Scale: {scale}. The map is {numbers['map / reference']:.2f} times that "
        "(least squares): the scale of either may be off.",
        f"More than {_OFF:g} sigma off at its end: {'; '.join(off) or 'no line'}. "
        "Clouds smaller than a cell, or without stars behind them, are missing from "
        "the map and from its errors.",
        "The distances of one line are not independent: count the ends of the "
        f"{count} lines. The spread of the reference's samples leaves out its "
        "systematic errors.",
    )
