"""Quantiles along lines of sight, and how far along them any star looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch

from dustmap.posterior import Moments
from pipelines.export.cube import LineOfSight
from pipelines.export.profile import Profile
from pipelines.observations import rays
from pipelines.products.integrated import last_star
from pipelines.products.sightlines import lines_of_sight
from pipelines.run import Run
from pipelines.truth import unit_vectors

_INNER, _OUTER = (0.1587, 0.8413), (0.025, 0.975)


def profiles(
    run: Run, directions: Sequence[tuple[float, float]] | None = None, points: int = 60
) -> list[LineOfSight]:
    """Lines of sight with the quantiles of the posterior of every integral.

    Of a density that may be negative, quantiles are those of a normal, and without
    posterior samples there are none: then the lines are as `lines_of_sight` has them.
    """
    lines = lines_of_sight(run, directions, points)
    if not len(run.posterior.samples):
        return lines
    return [_profile(run, line) for line in lines]


def _profile(run: Run, line: LineOfSight) -> Profile:
    towards = unit_vectors(np.array(line.l), np.array(line.b))
    ends = torch.as_tensor(line.distance[:, None] * towards)
    moments = run.posterior.moments(rays(run.plan, ends))
    fields = {name: getattr(line, name) for name in asdict(line)}
    return Profile(
        **fields,
        median=_quantile(moments, 0.5),
        inner=(_quantile(moments, _INNER[0]), _quantile(moments, _INNER[1])),
        outer=(_quantile(moments, _OUTER[0]), _quantile(moments, _OUTER[1])),
        last_star=float(last_star(run, towards[None])[0]),
    )


def _quantile(moments: Moments, probability: float) -> np.ndarray:
    return moments.quantile(probability).numpy()
