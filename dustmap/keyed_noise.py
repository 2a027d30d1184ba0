"""White noise keyed by places, independent of the order of evaluation."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import ndtri
from torch import Tensor

_BITS = 2**64 - 1
# SplitMix64 (Steele, Lea & Flood 2014, OOPSLA '14): the increment; shifts and factors.
_STEP = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def keyed_normals(
    keys: Int[Tensor, "n k"], count: int, seed: int
) -> Float[Tensor, "s n"]:
    """Draw ``count`` standard normals for each key (float64), reproducibly.

    A key is a row of integers; equal keys get equal numbers, others independent ones.
    Each key starts its own stream of SplitMix64, whose uniforms are inverted.
    """
    state = np.full(len(keys), seed & _BITS, dtype=np.uint64)
    for column in keys.numpy().astype(np.int64).T:
        state = _mixed(state ^ column.view(np.uint64))
    found = torch.empty(count, len(keys), dtype=torch.float64)
    for row in range(count):
        bits = _mixed(state + np.uint64(row * _STEP & _BITS))
        uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        found[row] = torch.from_numpy(ndtri(uniform))
    return found


def _mixed(words: np.ndarray) -> np.ndarray:
    """Add the increment and mix: a bijection of uint64; each bit affects all bits."""
    words = words + np.uint64(_STEP)
    for shift, factor in _MIX:
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words
