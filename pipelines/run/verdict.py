"""Whether a map can be used, in one sentence, by its held-out stars."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipelines.run.baselines import NAMES, loses

# Deviations of a coverage from its level, in binomial errors.
TOO_FAR = 4.0


def verdict(converged: bool, score: Mapping[str, float]) -> tuple[bool, str]:
    """Whether nothing speaks against a map, and what that rests on.

    ``score`` is the summary's ``held_out``: errors, coverages, and those of predictions
    without a map; empty where no star was held out.
    """
    if not converged:
        return False, "not usable as it is: the fit did not converge"
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
        error = math.sqrt(level * (1 - level) / score["stars"])
        if abs(score[key] - level) > TOO_FAR * error:
            word = "wide" if score[key] > level else "narrow"
            return False, (
                f"to be used with care: intervals are too {word}, those of "
                f"{level:.0%} hold {score[key]:.0%} of {score['stars']:.0f} held-out "
                "stars"
            )
    beside = ""
    if known:
        gain = 1 - score["rmse"] / best
        beside = f", {abs(gain):.0%} {'better' if gain >= 0 else 'worse'} than without"
        beside += " a map" if gain >= 0 else " a map, within chance"
    return True, (
        f"usable: held-out extinctions are predicted to {score['rmse']:.3g} mag"
        f"{beside}, and 68% intervals hold {score['coverage_68']:.0%} of "
        f"{score['stars']:.0f} stars"
    )
