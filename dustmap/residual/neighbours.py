"""Nearest rows of any place."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial import KDTree
from torch import Tensor


def nearest(
    rows: Float[Tensor, "n d"], places: Float[Tensor, "m d"], count: int
) -> Int[Tensor, "m k"]:
    """Indices of the ``count`` rows nearest to each place, or of all rows."""
    count = min(count, len(rows))
    tree = KDTree(rows.cpu().numpy())
    found = np.asarray(tree.query(places.cpu().numpy(), k=count, workers=-1)[1])
    return torch.from_numpy(found.reshape(len(places), count)).to(rows.device)


def without_self(
    near: Int[Tensor, "m k"], rows: Int[Tensor, " m"] | None = None
) -> Int[Tensor, "m k-1"]:
    """Neighbours of ``rows`` without these, the last one dropped if they are absent.

    Of all rows in order where none are named.
    """
    if rows is None:
        rows = torch.arange(len(near), device=near.device)
    own = near == rows[:, None]
    # Among rows at one place a row need not be the first that is found.
    own[~own.any(dim=1), -1] = True
    return near[~own].reshape(len(near), -1)
