r"""How much of what the grid cannot resolve a star does not share with its neighbours.

``v_n`` is the variance of the unresolved part of one line integral, and enters Σ as if
every observation had its own. Neighbouring rays cross the same small clouds, and the
map follows what they have in common: what is left for a single star is a share α of
``v_n``. Other spectra than the kernel's leave more or less than ``v_n``; α may exceed
one. It is that of highest likelihood of observations that were set aside.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Shares that are tried: from 2^-8 to 2^3, eight to an octave.
_LOWEST, _HIGHEST, _STEPS = -8, 3, 8
# Of the observations, and at most so many, are set aside.
_ASIDE, _MOST = 0.1, 2_000
# Standard deviation of ln α before anything is seen: a factor e.
_PRIOR = 1.0


def set_aside(count: int, generator: torch.Generator) -> Bool[Tensor, " n"]:
    """Which of so many observations are set aside."""
    aside = torch.zeros(count, dtype=torch.bool)
    some = min(round(_ASIDE * count), _MOST)
    aside[torch.randperm(count, generator=generator)[:some]] = True
    return aside


def best_share(
    residual: Float[Tensor, " n"],
    rest: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    degrees: float | None,
) -> float:
    r"""α of highest posterior probability, ``ln α ~ N(0, 1)`` before the data.

    The residuals of observations that were set aside are Student-T (or normal) with
    scale ``rest + α v``.

    Parameters
    ----------
    residual
        ``y − E[apply(ε)]`` over samples of which the observations know nothing.
    rest
        The variance of this without what the grid cannot resolve: the noise's, and
        that of ``apply(ε)`` over samples.
    variance
        ``v_n``, for a share of one.
    degrees
        Of the Student-T distribution; ``None`` for a normal one.
    """
    squares = residual.to(torch.float64) ** 2
    rest, variance = rest.to(torch.float64), variance.to(torch.float64)
    count = (_HIGHEST - _LOWEST) * _STEPS
    tried = [2.0 ** (_LOWEST + step / _STEPS) for step in range(count + 1)]

    def score(share: float) -> float:
        scale = rest + share * variance
        ratio = squares / scale
        if degrees is None:
            tail = ratio / 2
        else:
            tail = (degrees + 1) / 2 * torch.log1p(ratio / degrees)
        prior = (math.log(share) / _PRIOR) ** 2 / 2
        return -float((tail + scale.log() / 2).sum()) - prior

    return max(tried, key=score)
