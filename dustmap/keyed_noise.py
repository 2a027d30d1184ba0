"""White noise that belongs to places and not to the order in which they are asked."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import ndtri
from torch import Tensor

from dustmap.splitmix import STEP, mixed

_BITS = 2**64 - 1


def keyed_normals(
    keys: Int[Tensor, "n k"], count: int, seed: int
) -> Float[Tensor, "s n"]:
    """``count`` standard normals for each key (float64), the same whenever it is asked.

    A key is a row of integers; equal ones get equal numbers, others independent ones.
    Each starts a stream of SplitMix64 of its own, whose uniforms are inverted.
    """
    state = np.full(len(keys), seed & _BITS, dtype=np.uint64)
    for column in keys.numpy().astype(np.int64).T:
        state = mixed(state ^ column.view(np.uint64))
    found = torch.empty(count, len(keys), dtype=torch.float64)
    for row in range(count):
        bits = mixed(state + np.uint64(row * STEP & _BITS))
        uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        found[row] = torch.from_numpy(ndtri(uniform))
    return found
