r"""How much of what the grid cannot resolve a star does not share with its neighbours.

``v_n`` is the variance of the unresolved part of one line integral, and enters Σ as if
every observation had its own. Neighbouring rays cross the same small clouds, and the
map follows what they have in common: what is left for a single star is a share α of
``v_n``. Other spectra than the kernel's leave more or less than ``v_n``; α may exceed
one. It is that of highest likelihood of observations that were set aside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Shares that are tried: from 2^-8 to 2^3, eight to an octave.
_LOWEST, _HIGHEST, _STEPS = -8, 3, 8
# Common variances that are tried: zero, and halves of octaves of the median r².
_COMMONS = (-16, 5)
# Of the observations, and at most so many, are set aside.
_ASIDE, _MOST = 0.1, 2_000
# Of fewer observations those set aside would be too few to tell anything.
FEWEST = 300
# Standard deviation of ln α before anything is seen: a factor e.
_PRIOR = 1.0


def set_aside(count: int, generator: torch.Generator) -> Bool[Tensor, " n"]:
    """Which of so many observations are set aside."""
    aside = torch.zeros(count, dtype=torch.bool)
    some = min(round(_ASIDE * count), _MOST)
    aside[torch.randperm(count, generator=generator)[:some]] = True
    return aside


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What observations miss: a share α of ``v_n``, and a common variance ``τ²``.

    ``at_edge`` says that α is the least or the largest that was tried.
    """

    share: float
    common: float
    at_edge: bool = False


def best_leftover(
    residual: Float[Tensor, " n"],
    rest: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    degrees: float | None,
    *,
    learn_common: bool,
) -> Leftover:
    r"""α and τ² of highest likelihood, with ``ln α ~ N(0, 1)`` before the data.

    The residuals of observations that were set aside are Student-T (or normal) with
    scale ``rest + τ² + α v``.

    Parameters
    ----------
    residual
        ``y − E[apply(ε)]`` over samples of which the observations know nothing.
    rest
        The variance of this without what the grid cannot resolve: the stated noise,
        and the variance of ``apply(ε)`` over samples.
    variance
        ``v_n``, for a share of one.
    degrees
        Of the Student-T distribution; ``None`` for a normal one.
    learn_common
        Whether there may be a τ² beside it; zero otherwise.
    """
    squares = residual.to(torch.float64) ** 2
    rest, variance = rest.to(torch.float64), variance.to(torch.float64)
    shares = 2.0 ** torch.arange(_LOWEST, _HIGHEST + 1e-9, 1 / _STEPS).to(squares)
    commons = [0.0]
    if learn_common and len(squares):
        size = float(squares.median())
        commons += [size * 2.0 ** (step / 2) for step in range(*_COMMONS)]
    best, found = -math.inf, Leftover(share=1.0, common=0.0)
    for common in commons:
        scale = rest + common + shares[:, None] * variance
        ratio = squares / scale
        if degrees is None:
            tail = ratio / 2
        else:
            tail = (degrees + 1) / 2 * torch.log1p(ratio / degrees)
        prior = (shares.log() / _PRIOR) ** 2 / 2
        scores = -(tail + scale.log() / 2).sum(dim=1) - prior
        index = int(scores.argmax())
        if float(scores[index]) > best:
            best = float(scores[index])
            at_edge = index in (0, len(shares) - 1)
            found = Leftover(share=float(shares[index]), common=common, at_edge=at_edge)
    return found
