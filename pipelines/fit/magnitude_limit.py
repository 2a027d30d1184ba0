r"""The bias of magnitude-limited catalogues, to first order.

Near the limit the number of stars grows with magnitude as :math:`10^{\gamma m}`. An
extinction A dims the stars behind it by :math:`fA`, so that the number seen falls as
:math:`e^{-\beta A}` with :math:`\beta = \gamma f \ln 10`. If other data leave the
extinction of a place with mean :math:`m_n` and variance :math:`v_n`, a star that is
seen there has to first order the expectation

.. math:: \mathrm E[A_n \mid \text{seen}] = m_n - \beta v_n .

Measured extinctions are raised by :math:`\beta v_n` once a map is known: the variance
of its samples plus the prior variance below its grid.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from scipy.optimize import brentq

from dustmap.posterior import Posterior
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.catalog.schema import Stars
from pipelines.config import FitConfig
from pipelines.model.observations import rays
from pipelines.model.plan import Plan
from pipelines.run.residual import residual_from

# Depth below the limit in which the counts' slope is measured [mag], the fewest stars
# there, and the range of slopes [1/mag].
_DEPTH, _FEWEST, _SLOPES = 1.0, 100, (1e-3, 10.0)


def selection_beta(stars: Stars, config: FitConfig) -> float:
    """Return β [1/mag], zero without ``data.magnitude``.

    Of the stars less than one magnitude above the limit, the mean depth determines γ:
    the maximum of the likelihood of a truncated exponential.

    Raises
    ------
    InputError
        If the column is missing, or has too few values near the limit.
    """
    name, limit = config.data.magnitude, config.data.limit
    if name is None or limit is None:
        return 0.0
    if name not in stars.extra:
        there = ", ".join(stars.extra) or "none"
        raise InputError(
            f"data.magnitude = {name} is no column of the catalogue; further ones "
            f"are {there}: keep it in `dustmap ingest` with --keep {name}"
        )
    depth = limit - np.asarray(stars.extra[name], dtype=np.float64)
    fainter, near = int((depth < 0).sum()), depth[(depth >= 0) & (depth < _DEPTH)]
    if len(near) < _FEWEST:
        raise InputError(
            f"{len(near)} stars lie within {_DEPTH:g} mag of data.limit = {limit:g} in "
            f"{name}, expected at least {_FEWEST}: is it the catalogue's limit?"
        )

    def excess(slope: float) -> float:
        mean = 1 / slope - _DEPTH / math.expm1(slope * _DEPTH)
        return mean - float(near.mean())

    low, high = (excess(slope) for slope in _SLOPES)
    slope = _SLOPES[int(low > 0)]
    if low > 0 > high:
        slope = cast(float, brentq(excess, *_SLOPES))
    found = slope * config.data.dimming
    say(
        f"magnitude limit {limit:g} in {name} ({fainter:,} stars are fainter): counts "
        f"grow as 10^({slope / math.log(10):.2f} m), beta {found:.2f} per mag"
    )
    return found


def extinction_variances(
    posterior: Posterior, plan: Plan, residual: bytes, stars: Stars
) -> torch.Tensor:
    """Return v of every star [mag²], shape ``(N,)``."""
    ends = torch.as_tensor(stars.positions())
    found = residual_from(residual).unresolved(ends)
    if len(posterior.samples) > 1:
        model = posterior.model.at(rays(plan, ends))
        drawn = torch.stack([model.apply(eps) for eps in posterior.samples])
        found = found + drawn.double().cpu().var(dim=0)
    return found


def raised_by(stars: Stars, raised: torch.Tensor | None) -> Stars:
    """Return the stars with extinctions raised by these [mag], if any."""
    if raised is None:
        return stars
    assert stars.extinction is not None
    return replace(stars, extinction=stars.extinction + raised.numpy())
