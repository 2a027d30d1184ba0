r"""How much of what the grid cannot resolve a star does not share with its neighbours.

``v_n`` is the variance of the unresolved part of one line integral, and enters Σ as if
every observation had its own. Neighbouring rays cross the same small clouds, and the
map follows what they have in common: what is left for a single star is a share α of
``v_n``. Other spectra than the kernel's leave more or less than ``v_n``; α may exceed
one. It is that of highest likelihood of residuals that every observation would have if
it had been left out.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

# Shares that are tried, from 2^-8 to 2^3, and by how much one round may change it.
_LOWEST, _HIGHEST, _STEPS_PER_OCTAVE = -8, 3, 4
_PER_ROUND = 4.0


def best_share(
    residual: Float[Tensor, " n"],
    spread: Float[Tensor, " n"],
    rest: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    *,
    share: float,
    degrees: float | None,
) -> float:
    r"""α of highest likelihood, at most a factor of four from the share at hand.

    Without observation n its residual would be ``r_n / (1 − h_n)`` and its variance
    ``Σ_n / (1 − h_n)``, with ``Σ = rest + α v`` and ``h = spread / Σ``: their
    likelihood, that of a Student-T distribution, is that of ``r / (1 − h)``.

    Parameters
    ----------
    residual
        ``y − E[apply(ε)]`` over samples, which were fitted with ``share``.
    spread
        ``Var[apply(ε)]`` over samples.
    rest
        Σ without what the grid cannot resolve.
    variance
        ``v_n``, for a share of one.
    degrees
        Of the Student-T distribution; ``None`` for a normal one.
    """
    count = (_HIGHEST - _LOWEST) * _STEPS_PER_OCTAVE
    tried = [2.0 ** (_LOWEST + i / _STEPS_PER_OCTAVE) for i in range(count + 1)]
    low, high = share / _PER_ROUND, share * _PER_ROUND
    near = [one for one in tried if low <= one <= high]
    wide = [part.to(torch.float64) for part in (residual, spread, rest, variance)]
    leverage = (wide[1] / (wide[2] + share * wide[3])).clamp(max=0.9)
    scores = [_score(one, wide[0], leverage, wide[2], wide[3], degrees) for one in near]
    return near[scores.index(max(scores))]


def _score(
    share: float,
    residual: Tensor,
    leverage: Tensor,
    rest: Tensor,
    variance: Tensor,
    degrees: float | None,
) -> float:
    """Mean log likelihood of the left-out residuals, up to a constant."""
    scale = (rest + share * variance) / (1 - leverage)
    ratio = (residual / (1 - leverage)) ** 2 / scale
    if degrees is None or math.isinf(degrees):
        tail = ratio / 2
    else:
        tail = (degrees + 1) / 2 * torch.log1p(ratio / degrees)
    return -float((tail + scale.log() / 2).mean())
