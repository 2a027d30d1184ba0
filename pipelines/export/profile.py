"""A line of sight with the quantiles of its own integral."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.export.cube import LineOfSight

Band = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(LineOfSight):
    """Cumulative extinction with quantiles: of a positive density they are not normal.

    ``median`` [mag] along the ray; ``inner`` and ``outer``, each the lower and the
    upper curve [mag] that hold 68% and 95%; ``last_star`` [pc], the end of the last
    stretch that any star looks through (``None`` if it is not known).
    """

    median: np.ndarray
    inner: Band
    outer: Band
    last_star: float | None = None
