"""The verdict on a fit: a grade, its reason and advice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

_CHECK = "check the units, errors and outliers of the data"


class Grade(StrEnum):
    """The grades, best first."""

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
        """Return true for ``usable`` or, if ``required`` allows it, for ``care``."""
        return self.grade in (Grade.USABLE, Grade.CARE)[: 1 + (required == "care")]

    def __str__(self) -> str:
        use = "usable with care" if self.grade is Grade.CARE else self.grade.value
        advice = self.advice[0].upper() + self.advice[1:]
        return f"{use.capitalize()}: {self.reason}. {advice}."


def verdict(converged: bool, score: Mapping[str, float]) -> Verdict:
    """Return the worst grade of these rules, with the reasons for it.

    =========================================  ==============  ==========
    rule                                       with care       not usable
    =========================================  ==============  ==========
    values held out                            none, or < 30
    held-out errors                                            not finite
    convergence                                not reached
    uncertainty                                not stated
    RMSE over the best without a model (2 σ)   > 1.05          > 1.5
    68% intervals contain (3 σ)                < 63%, > 73%    < 50%
    95% intervals contain (3 σ)                < 93%, > 97%    < 80%
    median z-score (3 σ)                       > 0.2           > 1
    =========================================  ==============  ==========

    A rule with σ applies only beyond that many standard errors. ``score`` holds, for
    held-out stars or rows, ``rmse``, ``stars`` (their number), and if known
    ``rmse_<name>`` of predictions without a model, ``excess`` (of the squared error
    over the best of these, in standard errors), ``coverage_68``, ``coverage_95`` and
    ``z_median``; it is empty if nothing was held out.
    """
    slow = (Grade.CARE, "the fit did not converge", "fit again with more time")
    found: list[tuple[Grade, str, str]] = [] if converged else [slow]
    more = "hold more out to judge the fit"
    if not score:
        found.append((Grade.CARE, "not judged, since nothing was held out", more))
    elif not all(map(math.isfinite, score.values())):
        found.append((Grade.NOT, "held-out errors are not finite", _CHECK))
    else:
        if (count := score["stars"]) < 30:
            found.append((Grade.CARE, f"only {count:.0f} values were held out", more))
        if "coverage_68" not in score:
            use = "take the held-out RMSE as the error"
            reason = f"no uncertainties are stated; {_good(score)}"
            found.append((Grade.CARE, reason, use))
        for value, care, bad, reason, advice in _deviations(score):
            if value > care:
                grade = Grade.NOT if value > bad else Grade.CARE
                found.append((grade, reason, advice))
    worst = max((grade for grade, *_ in found), key=list(Grade).index, default=None)
    chosen = [each for each in found if each[0] is worst]
    reason = "; ".join(reason for _, reason, _ in chosen)
    if score and found in ([], [slow]):
        reason += f"{', though ' if found else ''}{_good(score)}"
    advice = "; ".join(dict.fromkeys(advice for *_, advice in chosen))
    advice = advice or "use the predictions with their intervals"
    return Verdict(grade=worst or Grade.USABLE, reason=reason, advice=advice)


def _deviations(
    score: Mapping[str, float],
) -> Iterator[tuple[float, float, float, str, str]]:
    """Yield deviations beyond chance, their two limits, a reason and advice."""
    rmse, count = f"the RMSE of held-out values is {score['rmse']:.3g}", score["stars"]
    if score.get("excess", 0.0) > 2 and (best := _best(score)):
        reason = f"{rmse}, that of {best[0]} {best[1]:.3g}"
        advice = f"predict these values by {best[0]}"
        ratio = score["rmse"] / best[1] if best[1] else math.inf
        yield ratio, 1.05, 1.5, reason, advice
    for level, care, bad in ((0.68, 0.05, 0.18), (0.95, 0.02, 0.15)):
        held = score.get(f"coverage_{100 * level:.0f}", level)
        off, side = abs(held - level), "only " if held < level else ""
        if off > 3 * math.sqrt(level * (1 - level) / count):
            limit = "lower" if side else "upper"
            yield (
                *(off, care, bad if side else math.inf),
                f"the {level:.0%} intervals contain {side}{held:.0%} of {count:.0f} "
                "held-out values",
                _CHECK if off > bad else f"take the uncertainties as {limit} limits",
            )
    bias = score.get("z_median", 0.0)
    # The standard error of a median of normal deviates.
    if abs(bias) > 3 * math.sqrt(math.pi / 2 / count):
        side = "above" if bias > 0 else "below"
        reason = f"the median held-out value is {abs(bias):.2g} standard deviations "
        yield abs(bias), 0.2, 1.0, f"{reason}{side} its prediction", _CHECK


def _good(score: Mapping[str, float]) -> str:
    """Describe the predictions of held-out values."""
    beside = f", that of {best[0]} {best[1]:.3g}," if (best := _best(score)) else ""
    text = f"the RMSE of held-out values is {score['rmse']:.3g}{beside}"
    if "coverage_68" not in score:
        return text.rstrip(",")
    held, count = score["coverage_68"], score["stars"]
    return f"{text} and the 68% intervals contain {held:.0%} of {count:.0f}"


def _best(score: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the name and error of the best prediction without a model."""
    known = {k.removeprefix("rmse_"): v for k, v in score.items() if k[:5] == "rmse_"}
    return min(known.items(), key=lambda item: item[1], default=None)
