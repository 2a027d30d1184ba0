"""Nearest rows: of any place, and of every row among those before it."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial import cKDTree
from torch import Tensor


def nearest(
    rows: Float[Tensor, "n d"], places: Float[Tensor, "m d"], count: int
) -> Int[Tensor, "m k"]:
    """Indices of the ``count`` rows nearest to each place (fewer if there are fewer)."""
    tree = cKDTree(rows.cpu().numpy())
    count = min(count, len(rows))
    found = tree.query(places.cpu().numpy(), k=np.arange(1, count + 1), workers=-1)[1]
    return torch.from_numpy(found).to(rows.device)


def earlier(rows: Float[Tensor, "n d"], count: int) -> Int[Tensor, "n k"]:
    """Indices of the ``count`` nearest rows before each row; ``-1`` where none is left.

    Rows ``m … 2m`` ask a tree of the first ``2m`` for more and more neighbours until
    enough of them are earlier; in random order about half of them are.
    """
    points = rows.cpu().numpy()
    total = len(points)
    found = np.full((total, count), -1)
    start = 0
    while start < total:
        stop = min(max(2 * start, 4 * count), total)
        tree = cKDTree(points[:stop])
        missing = np.arange(start, stop)
        ask = min(3 * count, stop)
        while len(missing):
            near = tree.query(points[missing], k=np.arange(1, ask + 1), workers=-1)[1]
            before = near < missing[:, None]
            rank = before.cumsum(axis=1) - 1
            at, column = np.nonzero(before & (rank < count))
            found[missing[at], rank[at, column]] = near[at, column]
            enough = before.sum(axis=1) >= np.minimum(count, missing)
            missing, ask = missing[~enough], min(2 * ask, stop)
        start = stop
    return torch.from_numpy(found).to(rows.device)
