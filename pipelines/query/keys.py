"""What draws at places have in common: their direction, or the cell they are in."""

from __future__ import annotations

import numpy as np

# Directions closer than this [rad], 2 milliarcsec, are one. Round coordinates lie in
# the middle of such a step, where another rounding of the same direction stays in it.
_NEAR = 1e-8
_DIRECTION, _CELL = 0, 1


def direction_keys(ends: np.ndarray) -> np.ndarray:
    """Keys, shape ``(n, 4)``, that are equal along a ray from the observer.

    ``ends`` are places [pc], shape ``(n, 3)``; the observer's own has one, too.
    """
    distance = np.linalg.norm(ends, axis=1, keepdims=True)
    vectors = ends / np.where(distance > 0, distance, 1.0)
    return _keys(_DIRECTION, np.rint(vectors / _NEAR))


def cell_keys(ends: np.ndarray, origin: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """Keys, shape ``(n, 4)``, that are equal between the same points of a grid."""
    return _keys(_CELL, np.floor((ends - origin) / spacing))


def _keys(kind: int, numbers: np.ndarray) -> np.ndarray:
    kinds = np.full((len(numbers), 1), kind)
    return np.concatenate([kinds, numbers], axis=1).astype(np.int64)
