"""Whether a fit can be used, why, and what to do next: one verdict for all places."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# Standard errors beyond which a deviation is no chance; fewer objects do not show it.
_TOO_FAR, _FEWEST = 3.0, 30
# By a deviation beyond chance of more than the first, use needs care; more than the
# second, nothing should be used. A comparison of errors is chance below two of its own.
_WORSE, _CHANCE = (1.05, 1.5), 2.0
_NARROW = {0.68: (0.63, 0.5), 0.95: (0.93, 0.8)}
_WIDE = {0.68: 0.73, 0.95: 0.97}
_BIAS = (0.2, 1.0)


class Grade(StrEnum):
    """How far a fit can be used, best first."""

    USABLE = "usable"
    CARE = "with care"
    NOT = "not usable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A grade, its reason and what to do next; ``str`` gives two sentences."""

    grade: Grade
    reason: str
    advice: str

    def meets(self, required: str) -> bool:
        """Whether this is at least ``usable`` or, where that suffices, ``care``."""
        allowed = (Grade.USABLE, Grade.CARE)[: 1 + (required == "care")]
        return self.grade in allowed

    def __str__(self) -> str:
        use = "usable with care" if self.grade is Grade.CARE else self.grade.value
        advice = self.advice[0].upper() + self.advice[1:]
        return f"{use.capitalize()}: {self.reason}. {advice}."


def verdict(converged: bool, score: Mapping[str, float]) -> Verdict:
    """The worst grade that one of these rules gives, with the reasons for it.

    | what | with care | not usable |
    |---|---|---|
    | held out | nothing, or fewer than 30 | errors not finite |
    | convergence | not reached | |
    | RMSE over the best without a model, beyond 2 standard errors | > 1.05 | > 1.5 |
    | 68% intervals contain, beyond 3 standard errors | < 63% or > 73% | < 50% |
    | 95% intervals contain, beyond 3 standard errors | < 93% or > 97% | < 80% |
    | median z-score, beyond 3 standard errors | > 0.2 | > 1 |
    | uncertainty | not stated | |

    Parameters
    ----------
    converged
        Whether every solver of the fit reached its end.
    score
        Of held-out stars or rows: ``rmse``, ``stars`` (how many), and where known
        ``rmse_<name>`` of predictions without a model, ``excess`` (of the squared
        error over the best of these, in standard errors), ``coverage_68``,
        ``coverage_95``, ``z_median``; empty where nothing was held out.
    """
    slow = (Grade.CARE, "the fit did not converge", _LONGER)
    found: _Found = [] if converged else [slow]
    if not score:
        found.append((Grade.CARE, "not judged, since nothing was held out", _HOLD_OUT))
    elif not all(map(math.isfinite, score.values())):
        found.append((Grade.NOT, "held-out errors are not finite", _DATA))
    else:
        found += [*_compared(score), *_covered(score), *_biased(score)]
    worst = max((grade for grade, *_ in found), key=list(Grade).index, default=None)
    if worst is None:
        return Verdict(grade=Grade.USABLE, reason=_good(score), advice=_USE)
    chosen = [each for each in found if each[0] is worst]
    reason = "; ".join(reason for _, reason, _ in chosen)
    if score and found == [slow]:
        reason += f", though {_good(score)}"
    return Verdict(
        grade=worst,
        reason=reason,
        advice="; ".join(dict.fromkeys(advice for *_, advice in chosen)),
    )


_USE = "use the predictions with their intervals"
_LONGER = "fit again with more time"
_HOLD_OUT = "hold more out to judge the fit"
_DATA = "check the units, errors and outliers of the data"
_LOWER = "take the uncertainties as lower limits"
_UPPER = "take the uncertainties as upper limits"
_Found = list[tuple[Grade, str, str]]


def _compared(score: Mapping[str, float]) -> _Found:
    """What errors beside those of predictions without a model say."""
    ratio = score["rmse"] / best[1] if (best := _best(score)) else 0.0
    if best is None or score.get("excess", 0.0) <= _CHANCE or ratio <= _WORSE[0]:
        return []
    grade = Grade.NOT if ratio > _WORSE[1] else Grade.CARE
    reason = (
        f"the RMSE of held-out values is {score['rmse']:.3g}, that of {best[0]} "
        f"{best[1]:.3g}"
    )
    return [(grade, reason, f"predict these values by {best[0]}")]


def _covered(score: Mapping[str, float]) -> _Found:
    """What the coverage of intervals says."""
    if score["stars"] < _FEWEST:
        few = f"only {score['stars']:.0f} values were held out"
        return [(Grade.CARE, few, _HOLD_OUT)]
    if "coverage_68" not in score:
        use = "take the held-out RMSE as the error"
        return [(Grade.CARE, "no uncertainties are stated", use)]
    found: _Found = []
    for level, (low, lowest) in _NARROW.items():
        held = score[f"coverage_{level:.0%}".rstrip("%")]
        if low <= held <= _WIDE[level] or not _misses(level, held, score["stars"]):
            continue
        contained = (
            f"the {level:.0%} intervals contain {'only ' if held < level else ''}"
            f"{held:.0%} of {score['stars']:.0f} held-out values"
        )
        grade = Grade.NOT if held < lowest else Grade.CARE
        advice = _UPPER if held > level else _DATA if held < lowest else _LOWER
        found.append((grade, contained, advice))
    return found


def _biased(score: Mapping[str, float]) -> _Found:
    """What the median z-score says, which outliers do not move."""
    bias = score.get("z_median", 0.0)
    error = math.sqrt(math.pi / 2 / score["stars"])
    if abs(bias) <= max(_BIAS[0], _TOO_FAR * error):
        return []
    side = "above" if bias > 0 else "below"
    reason = (
        f"the median held-out value is {abs(bias):.2g} standard deviations {side} its "
        "prediction"
    )
    return [(Grade.NOT if abs(bias) > _BIAS[1] else Grade.CARE, reason, _DATA)]


def _good(score: Mapping[str, float]) -> str:
    """How well held-out values are predicted."""
    beside = f", that of {best[0]} {best[1]:.3g}," if (best := _best(score)) else ""
    return (
        f"the RMSE of held-out values is {score['rmse']:.3g}{beside} and the 68% "
        f"intervals contain {score['coverage_68']:.0%} of {score['stars']:.0f}"
    )


def _best(score: Mapping[str, float]) -> tuple[str, float] | None:
    """The best prediction without a model, and its error."""
    known = {k.removeprefix("rmse_"): v for k, v in score.items() if k[:5] == "rmse_"}
    return min(known.items(), key=lambda item: item[1], default=None)


def _misses(level: float, held: float, stars: float) -> bool:
    """Whether intervals of this level hold too many or too few of so many stars."""
    return abs(held - level) > _TOO_FAR * math.sqrt(level * (1 - level) / stars)
