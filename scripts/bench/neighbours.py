"""The reference that needs no map: a star's neighbours on the sky and in distance."""

from __future__ import annotations

import numpy as np
from scipy.spatial import KDTree

from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import Stars

# A step of 0.0625 rad (3.6 deg) counts like one of 1 in the logarithm of the distance.
_PER_RADIAN = 16.0
COUNTS = (1, 3, 8)


def neighbours(fitted: Stars, targets: Stars, count: int) -> np.ndarray:
    """Mean extinction [mag] of the nearest in direction and logarithm of distance."""
    assert fitted.extinction is not None
    tree = KDTree(_features(fitted))
    index = np.reshape(tree.query(_features(targets), k=count)[1], (-1, count))
    return fitted.extinction[index].mean(axis=1)


def _features(stars: Stars) -> np.ndarray:
    directions = unit_vectors(stars.l, stars.b)
    return np.column_stack([_PER_RADIAN * directions, np.log(stars.distance)])
