"""Whether a map can be used, in one sentence, by its held-out stars."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipelines.run.baselines import NAMES, loses

# Deviations that count, in standard errors.
TOO_FAR = 4.0


def verdict(converged: bool, score: Mapping[str, float]) -> tuple[bool, str]:
    """Whether nothing speaks against a map, and what that rests on.

    ``score`` is the summary's ``held_out``: errors, coverages, and those of predictions
    without a map; empty where no star was held out. A fit that time cut short has not
    ``converged``, and may still predict well.
    """
    good, sentence = _judged(score)
    if converged:
        return good, f"{'usable: ' if good else ''}{sentence}"
    fault = "the fit did not converge"
    if not good:
        return False, f"not usable as it is: {fault}"
    return False, f"to be used with care: {fault}, though {sentence}"


def _judged(score: Mapping[str, float]) -> tuple[bool, str]:
    """Whether held-out stars speak for a map, and in which words."""
    if not score:
        return False, "not judged: no held-out star tells how well the map predicts"
    known = [name for name in NAMES if f"rmse_{name}" in score]
    best = min((score[f"rmse_{name}"] for name in known), default=math.nan)
    if known and loses(dict(score)):
        return False, (
            "to be used with care: without a map, neighbouring stars predict held-out "
            f"extinctions to {best:.3g} mag, the map to {score['rmse']:.3g} mag"
        )
    if "coverage_68" not in score:
        return False, "to be used with care: the map states no uncertainty"
    for level, key in ((0.68, "coverage_68"), (0.95, "coverage_95")):
        if misses(level, score[key], score["stars"]):
            word = "wide" if score[key] > level else "narrow"
            return False, (
                f"to be used with care: intervals are too {word}, those of "
                f"{level:.0%} hold {score[key]:.0%} of {score['stars']:.0f} held-out "
                "stars"
            )
    # Outliers do not move the median.
    bias = score.get("z_median", 0.0)
    if abs(bias) > TOO_FAR * math.sqrt(math.pi / 2 / score["stars"]):
        return False, (
            f"to be used with care: the median held-out star has {abs(bias):.2g} "
            f"standard deviations {'more' if bias > 0 else 'less'} extinction than "
            "predicted"
        )
    beside = ""
    if known:
        gain = 1 - score["rmse"] / best
        beside = f", {abs(gain):.0%} {'better' if gain >= 0 else 'worse'} than without"
        beside += " a map" if gain >= 0 else " a map, within chance"
    return True, (
        f"held-out extinctions are predicted to {score['rmse']:.3g} mag"
        f"{beside}, and 68% intervals hold {score['coverage_68']:.0%} of "
        f"{score['stars']:.0f} stars"
    )


def misses(level: float, held: float, stars: float) -> bool:
    """Whether intervals of this level hold too many or too few of so many stars."""
    return abs(held - level) > TOO_FAR * math.sqrt(level * (1 - level) / stars)
