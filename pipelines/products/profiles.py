"""Quantiles along lines of sight, and how far along them any star looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from pipelines.export.cube import LineOfSight
from pipelines.export.profile import Profile
from pipelines.products.cumulative import RayIntegrals
from pipelines.products.integrated import last_star
from pipelines.products.sightlines import lines_of_sight
from pipelines.run import Run
from pipelines.truth import unit_vectors

# Two sigma (95%), one sigma (68%) and the median between them.
_PROBABILITIES = (0.025, 0.1587, 0.5, 0.8413, 0.975)


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
    towards = unit_vectors(*np.array([(line.l, line.b) for line in lines]).T)
    asked = RayIntegrals(run, towards, np.stack([line.distance for line in lines], 1))
    curves = np.empty((len(_PROBABILITIES), *asked.shape))
    for part in asked.parts():
        moments = asked.moments(part)
        for curve, probability in zip(curves, _PROBABILITIES):
            curve[:, part] = moments.quantile(probability).numpy()
    last = last_star(run, towards)
    return [
        _profile(line, curves[..., i], float(last[i])) for i, line in enumerate(lines)
    ]


def _profile(line: LineOfSight, curves: np.ndarray, last: float) -> Profile:
    fields = {name: getattr(line, name) for name in asdict(line)}
    return Profile(
        **fields,
        median=curves[2],
        inner=(curves[1], curves[3]),
        outer=(curves[0], curves[4]),
        last_star=last,
    )
