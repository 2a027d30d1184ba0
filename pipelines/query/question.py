"""What is asked of a map, checked before anything is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.quantiles import QUANTILES

Kind = str | float
"""What of a posterior: ``mean``, ``std``, a quantile by name, or a probability."""
_KINDS: dict[str, tuple[Kind, ...]] = {
    "mean": ("mean",),
    "std": ("std",),
    "median": ("p50",),
    "percentile": (),
    "samples": (),
    "random_sample": (),
}
MODES = tuple(_KINDS)
_BOTH = (
    "pass integrated=True for the extinction from the observer to each place [mag], or "
    "integrated=False for the extinction density there [mag/pc]"
)


def probability(kind: Kind) -> float:
    """Of a kind that is a quantile."""
    return QUANTILES[kind] if isinstance(kind, str) else kind


def kinds_of(
    mode: str,
    *,
    integrated: bool | None,
    pct: float | Sequence[float] | np.ndarray | None,
    total: bool,
) -> tuple[Kind, ...]:
    """What a mode asks for; nothing where it asks for posterior samples.

    Raises
    ------
    InputError
        If a choice is missing, unknown or contradicts another.
    """
    if integrated is None:
        raise InputError(f"the quantity is missing, and has no default: {_BOTH}")
    if mode not in MODES:
        raise InputError(f"mode is one of {', '.join(MODES)}, got {mode!r}")
    if total and not integrated:
        raise InputError(f"total=True goes with integrated=True only: {_BOTH}")
    if (pct is None) == (mode == "percentile"):
        raise InputError(
            "mode 'percentile' takes percentiles (--pct 16,50,84 or pct=[16, 50, 84]), "
            f"and no other mode does; got mode {mode!r} and pct={pct!r}"
        )
    if pct is None:
        return _KINDS[mode]
    percentiles = np.atleast_1d(pct)
    valid = ((percentiles > 0) & (percentiles < 100)).all() and percentiles.size
    if not valid or percentiles.ndim > 1:
        raise InputError(f"percentiles lie between 0 and 100, got {pct!r}")
    return tuple(float(p) / 100 for p in percentiles)
