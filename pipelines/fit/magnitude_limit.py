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
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float

from dustmap.posterior import Posterior
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.catalog.schema import Stars
from pipelines.config import FitConfig
from pipelines.model.engine import rays
from pipelines.model.plan import Plan
from pipelines.run.residual import residual_from

# Width of the two bins of magnitude.
_STEP = 0.5
# Fewest stars in the brighter one.
_FEWEST = 50


def faintest(
    columns: Mapping[str, np.ndarray], config: FitConfig
) -> Float[np.ndarray, "3"]:
    """Return the numbers of stars beyond the limit, and in two half magnitudes above.

    They are zero without ``data.magnitude``.

    Raises `InputError` if that column is missing.
    """
    name, limit = config.data.magnitude, config.data.limit
    if name is None or limit is None:
        return np.zeros(3)
    if name not in columns:
        there = ", ".join(columns) or "none"
        raise InputError(
            f"data.magnitude = {name} is no column of the catalogue; further ones "
            f"are {there}: keep it in `dustmap ingest` with --keep {name}"
        )
    depth = limit - np.asarray(columns[name], dtype=np.float64)
    return np.histogram(depth, [-np.inf, 0.0, _STEP, 2 * _STEP])[0].astype(np.float64)


def selection_beta(counts: Float[np.ndarray, "3"], config: FitConfig) -> float:
    """Return β [1/mag] by numbers of the `faintest`, zero without ``data.magnitude``.

    Raises `InputError` if the counts do not grow up to the limit.
    """
    name, limit = config.data.magnitude, config.data.limit
    if name is None or limit is None:
        return 0.0
    fainter, faint, bright = counts.astype(int).tolist()
    if bright < _FEWEST or faint <= bright:
        raise InputError(
            f"{bright} and {faint} stars lie in the two half magnitudes of {name} "
            f"above data.limit = {limit:g}, expected at least {_FEWEST} and more: is "
            "it the catalogue's limit?"
        )
    slope = math.log(faint / bright) / _STEP
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
    found = residual_from(residual, device=posterior.mean.device).unresolved(ends)
    if len(posterior.samples) > 1:
        model = posterior.model.at(rays(plan, ends))
        drawn = torch.stack([model.apply(eps) for eps in posterior.samples])
        found = found + drawn.double().cpu().var(dim=0)
    return found
