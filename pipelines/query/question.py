"""What is asked of a map, checked before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.base.errors import InputError

MODES = ("mean", "std", "median", "percentile", "samples", "random_sample")
_BOTH = (
    "integrated=True is the extinction from the observer to each place [mag], "
    "integrated=False the extinction density there [mag/pc]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One query.

    ``integrated`` says which of the two quantities, ``mode`` what of its posterior;
    ``probabilities`` are those of the quantiles, ``listed`` whether they were a list,
    which asks for an axis of its own.
    """

    integrated: bool
    mode: str
    probabilities: tuple[float, ...] = ()
    listed: bool = False

    @property
    def drawn(self) -> bool:
        """Whether it is answered by draws from the posterior."""
        return self.mode in ("samples", "random_sample")

    @property
    def quantiles(self) -> bool:
        """Whether it is answered by quantiles."""
        return bool(self.probabilities)


def question(
    *,
    integrated: bool | None,
    mode: str,
    pct: float | Sequence[float] | np.ndarray | None,
    total: bool,
) -> Question:
    """Check what is asked.

    Raises
    ------
    InputError
        If a choice is missing, unknown or contradicts another.
    """
    if integrated is None:
        raise InputError(
            f"say which of two quantities is meant: {_BOTH}. There is no default: "
            "one has too often been taken for the other"
        )
    if mode not in MODES:
        raise InputError(f"mode is one of {', '.join(MODES)}, got {mode!r}")
    if total and not integrated:
        raise InputError(f"total=True goes with integrated=True only: {_BOTH}")
    if (pct is None) == (mode == "percentile"):
        raise InputError(
            "mode 'percentile' takes percentiles (--pct 16,50,84 or pct=[16, 50, 84]), "
            f"and no other mode does; got mode {mode!r} and "
            + ("none" if pct is None else f"the percentiles {pct!r}")
        )
    percentiles = np.atleast_1d(
        50.0 if mode == "median" else pct if pct is not None else []
    )
    if not ((percentiles > 0) & (percentiles < 100)).all() or percentiles.ndim > 1:
        raise InputError(f"percentiles lie between 0 and 100, got {pct!r}")
    return Question(
        integrated=bool(integrated),
        mode=mode,
        probabilities=tuple(float(p) / 100 for p in percentiles),
        listed=pct is not None and np.ndim(pct) == 1,
    )
