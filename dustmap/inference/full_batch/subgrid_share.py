r"""The share of the unresolved variance that is independent between observations.

``v_n`` is the variance of the unresolved part of one line integral. Σ treats it as
independent between observations, but neighbouring rays cross the same small clouds, and
the map follows their common part: a share α of ``v_n`` remains. α may exceed one, since
the true spectrum may have more small-scale power than the kernel's. It is estimated by
maximising the likelihood of held-out observations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Trial shares: from 2^-8 to 2^3, eight per octave.
_LOWEST, _HIGHEST, _STEPS = -8, 3, 8
# Trial common variances: zero, and the median r² in half octaves.
_COMMONS = (-16, 5)
# The held-out fraction of the observations, and its largest number.
_FRACTION, _MOST = 0.1, 2_000
# With fewer observations the held-out ones are too few to estimate α.
FEWEST = 300
# Prior standard deviation of ln α.
_PRIOR = 1.0


def hold_out(count: int, generator: torch.Generator) -> Bool[Tensor, " n"]:
    """A random mask of held-out observations."""
    held_out = torch.zeros(count, dtype=torch.bool)
    some = min(round(_FRACTION * count), _MOST)
    held_out[torch.randperm(count, generator=generator)[:some]] = True
    return held_out


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFit:
    """The best share α of ``v_n`` and common variance ``τ²``.

    ``at_edge``: α is the smallest or largest trial value.
    """

    share: float
    common: float
    at_edge: bool = False


def fit_share(
    residual: Float[Tensor, " n"],
    rest: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    degrees: float | None,
    *,
    learn_common: bool,
) -> ShareFit:
    r"""α and τ² of highest posterior density, with the prior ``ln α ~ N(0, 1)``.

    The residuals of held-out observations are Student-T (or normal) with squared scale
    ``rest + τ² + α v``.

    Parameters
    ----------
    residual
        ``y − E[apply(ε)]`` over samples that were not fitted to these observations.
    rest
        The other variance of the residual: the stated noise, and the variance of
        ``apply(ε)`` over samples.
    variance
        ``v_n`` at a share of one.
    degrees
        ν of the Student-T distribution; ``None`` for a normal one.
    learn_common
        Estimate τ² too; it is zero otherwise.
    """
    squares = residual.to(torch.float64) ** 2
    rest, variance = rest.to(torch.float64), variance.to(torch.float64)
    shares = 2.0 ** torch.arange(_LOWEST, _HIGHEST + 1e-9, 1 / _STEPS).to(squares)
    commons = [0.0]
    if learn_common and len(squares):
        size = float(squares.median())
        commons += [size * 2.0 ** (step / 2) for step in range(*_COMMONS)]
    best, found = -math.inf, ShareFit(share=1.0, common=0.0)
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
            found = ShareFit(share=float(shares[index]), common=common, at_edge=at_edge)
    return found
