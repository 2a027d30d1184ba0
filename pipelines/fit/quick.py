"""``dustmap fit --quick``: predictions from neighbouring stars alone, without a map."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dustmap.distributed.group import Group
from pipelines.base.calibration import coverage, z_scores
from pipelines.base.errors import InputError
from pipelines.base.progress import StageClock
from pipelines.config import FitConfig
from pipelines.planning.selection import choose_box, usable_stars
from pipelines.run.baseline import (
    FEWEST,
    NAME,
    baseline_score,
    predict_baseline,
)
from pipelines.run.folder import write_json
from pipelines.storage.atomic import atomic_file, check_output

SUFFIX = ".quick.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickReport:
    """Figures of the held-out stars [mag]; ``str`` gives a summary.

    ``log_score`` is the mean log density of the observations under kriging's normal
    prediction, noise included [ln(1/mag)].
    """

    path: Path
    figures: dict[str, Any]

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {what}" for what, n in self.figures["counts"].items())
        spent = ", ".join(f"{k} {v:.1f} s" for k, v in self.figures["seconds"].items())
        line = (
            "{name}: RMSE {rmse_kriging:.4g} mag of held-out extinctions (noise "
            "included; they scatter by {scatter:.4g}); the 68% intervals hold "
            "{coverage_68:.3f} of {counts[held out]} stars, the 95% ones "
            "{coverage_95:.3f}; log score {log_score:.4g}"
        ).format(name=NAME, **self.figures)
        return (
            f"stars: {counts}\n{line}\ntime: {spent}\n"
            f"no map was made; figures: {self.path}"
        )


def quick(
    source: Path, output: Path, config: FitConfig, *, overwrite: bool = False
) -> QuickReport:
    """Predict held-out stars from the others; write ``OUTPUT.quick.json``.

    `fit` with the same configuration holds out the same stars.

    Raises
    ------
    InputError
        If the catalogue has no extinctions or too few stars, or the file exists.
    FloatingPointError
        If no covariance can be learnt.
    """
    path = output.with_name(output.name + SUFFIX)
    check_output(path, overwrite=overwrite)
    clock = StageClock()
    generator = torch.Generator().manual_seed(config.inference.seed)
    stars, counts = usable_stars(source, config, Group())
    split = stars.split(config, generator)
    box, _ = choose_box(stars.select(split.train).positions(), config, source)
    split = split.within(box.contains(stars.positions()))
    known, test = stars.select(split.known), stars.select(split.test)
    clock.lap("read")
    found = None if not len(test) else predict_baseline(known, test, generator)
    if found is None:
        raise InputError(
            f"{source}: expected at least {FEWEST} stars to learn from and 1 held out, "
            f"got {len(known)} and {len(test)} in the box: enlarge [box], or raise "
            "data.holdout"
        )
    assert test.extinction is not None
    clock.lap("baselines")
    # The kriged mean density converts distance errors to noise.
    noise = np.sqrt(test.variance(found.kriging / test.distance))
    observed = test.extinction
    z = z_scores(observed, noise, found.kriging, found.kriging_std)
    width = np.hypot(noise, found.kriging_std)
    at68, at95 = (each.held for each in coverage(z, (0.68, 0.95)))
    figures = {
        "counts": {**counts, "used": len(known), "held out": len(test)},
        "scatter": float(observed.std()),
        **baseline_score(found, observed),
        "coverage_68": at68,
        "coverage_95": at95,
        "log_score": float(-0.5 * np.mean(z**2 + np.log(2 * np.pi * width**2))),
        "seconds": clock.seconds,
    }
    with atomic_file(path, overwrite=overwrite) as temporary:
        write_json(temporary, figures)
    return QuickReport(path=path, figures=figures)
