"""Mean density in HEALPix shells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelines.maps.checks import check_arrays, check_edges, nside_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellMaps:
    """Density averaged over the pixels of spherical shells around the observer.

    Parameters
    ----------
    edges
        Increasing distances [pc] between which the shells lie, shape ``(n + 1,)``.
    arrays
        Name to array of shape ``(n, npix)`` [unit], HEALPix NESTED in Galactic
        coordinates: ``mean``, ``std`` of the average, and of a positive density its
        quantiles ``p16``, ``p50``, ``p84``; NaN where a pixel reaches out of the map.
    unit
        Of the arrays.
    meta
        Provenance: JSON-serialisable.
    """

    edges: np.ndarray
    arrays: dict[str, np.ndarray]
    unit: str = "mag pc-1"
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_edges(self.edges)
        check_arrays(self.arrays, (len(self.edges) - 1, self.arrays["mean"].shape[-1]))
        nside_of(self.arrays["mean"].shape[-1])

    @property
    def nside(self) -> int:
        """HEALPix resolution."""
        return nside_of(self.arrays["mean"].shape[1])
