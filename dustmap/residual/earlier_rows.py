"""Nearest among the earlier rows of an ordering (Vecchia 1988, JRSS B 50, 297)."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial import KDTree
from torch import Tensor


def nearest_earlier(points: Float[Tensor, "n d"], count: int) -> Int[Tensor, "m k"]:
    """For each row from number ``count`` on its ``count`` nearest earlier rows.

    A tree of the rows up to the block's end serves each block of rows, and blocks
    double in size: in random order half of a row's neighbours there are earlier.

    Raises
    ------
    ValueError
        If there are no more rows than ``count``.
    """
    rows = points.cpu().numpy()
    if not 0 < count < len(rows):
        raise ValueError(
            f"expected more rows than the {count} neighbours of each, got {len(rows)}"
        )
    found, start = [], count
    while start < len(rows):
        end = min(2 * start, len(rows))
        found.append(_of_block(rows[:end], start, count))
        start = end
    return torch.from_numpy(np.concatenate(found))


def _of_block(rows: np.ndarray, start: int, count: int) -> np.ndarray:
    """The neighbours of the rows from ``start`` to the end."""
    tree, found = KDTree(rows), np.empty((len(rows) - start, count), dtype=np.int64)
    missing, asked = np.arange(start, len(rows)), 3 * count
    while len(missing):
        asked = min(asked, len(rows))
        near = np.asarray(tree.query(rows[missing], k=asked)[1])
        is_earlier = near < missing[:, None]
        enough = is_earlier.sum(axis=1) >= count
        # A stable sort keeps the order by distance among those that are earlier.
        first = np.argsort(~is_earlier, axis=1, kind="stable")[:, :count]
        nearest = np.take_along_axis(near, first, axis=1)
        found[missing[enough] - start] = nearest[enough]
        missing, asked = missing[~enough], 2 * asked
    return found
