"""Nearest rows of any place, and nearest earlier rows of an ordering."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial import KDTree
from torch import Tensor

from dustmap.memory import row_blocks
from dustmap.shapes import Places, Points

# Numbers of the k neighbours of every place.
Near = Int[Tensor, "m k"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndex:
    """Search tree of rows, with coordinates in units of a length along each axis."""

    tree: KDTree
    unit: Float[Tensor, " d"]

    @classmethod
    def of(cls, rows: Points, unit: Float[Tensor, " d"], leaf: int = 16) -> RowIndex:
        """Build the index of these rows, with at most ``leaf`` of them in a leaf."""
        unit = unit.detach().expand(rows.shape[1])
        tree = KDTree((rows / unit).cpu().numpy(), leafsize=leaf)
        return cls(tree=tree, unit=unit)

    def nearest(self, places: Places, count: int) -> Near:
        """Return the ``count`` rows nearest to each place, or all rows."""
        count = min(count, self.tree.n)
        scaled, threads = (places / self.unit).cpu().numpy(), torch.get_num_threads()
        found = np.empty((len(places), count), dtype=np.int64)
        # The tree returns distances and numbers.
        for own in row_blocks(len(places), 16 * count):
            near = np.asarray(self.tree.query(scaled[own], k=count, workers=threads)[1])
            found[own] = near.reshape(-1, count)
        return torch.from_numpy(found).to(places.device)

    def leaves(self) -> tuple[Int[Tensor, " n"], Float[Tensor, "l d"]]:
        """Return the number of every row's leaf of the tree, and the leaves' centres.

        The rows of a leaf are near one another.
        """
        number = np.empty(self.tree.n, dtype=np.int64)
        waiting, count = [self.tree.tree], 0
        while waiting:
            node = waiting.pop()
            if isinstance(node, KDTree.leafnode):
                number[node.idx] = count
                count += 1
            else:
                waiting += [node.greater, node.less]
        sums = [np.bincount(number, column, count) for column in self.tree.data.T]
        centres = np.column_stack(sums) / np.bincount(number)[:, None]
        return torch.from_numpy(number), torch.from_numpy(centres) * self.unit


def nearest(rows: Points, places: Places, count: int) -> Near:
    """Return the ``count`` rows nearest to each place, or all rows."""
    return RowIndex.of(rows, rows.new_ones(1)).nearest(places, count)


def without_self(
    near: Int[Tensor, "n k"], own: Int[Tensor, " n"] | None = None
) -> Int[Tensor, "n k-1"]:
    """Return every row's neighbours without the row, or without the last one.

    ``own`` are the rows' numbers, 0 to n − 1 unless given.
    """
    own = torch.arange(len(near), device=near.device) if own is None else own
    itself = near == own[:, None]
    # With coincident rows, the query may not return the row itself.
    itself[~itself.any(dim=1), -1] = True
    return near[~itself].reshape(len(near), near.shape[1] - 1)


def nearest_earlier(points: Points, count: int) -> Near:
    """Return the ``count`` nearest earlier rows of each row from number ``count`` on.

    They are the neighbours of Vecchia (1988, JRSS B 50, 297). Rows are searched in
    blocks, each with a tree of all rows up to its end, a quarter more than before: in
    random order, four fifths or more of a row's neighbours in the tree are earlier.

    Raises `ValueError` if there are no more rows than ``count``.
    """
    rows = points.cpu().numpy()
    if not 0 < count < len(rows):
        raise ValueError(
            f"expected more rows than the {count} neighbours of each, got {len(rows)}"
        )
    found = np.empty((len(rows) - count, count), dtype=np.int32)
    start, threads = count, torch.get_num_threads()
    while start < len(rows):
        # A tree of fewer than 1,024 rows saves no time.
        end = min(max(start + start // 4, 1_024), len(rows))
        tree = KDTree(rows[:end])
        # In the order of the tree a search is near the one before, and faster.
        own = tree.indices[tree.indices >= start]
        # Distances, numbers and orders of twice as many neighbours.
        for block in row_blocks(len(own), 64 * count):
            missing, reach = own[block], 2 * count
            while len(missing):
                reach = min(reach, end)
                near = tree.query(rows[missing], k=reach, workers=threads)[1]
                is_earlier = near < missing[:, None]
                enough = is_earlier.sum(axis=1) >= count
                # A stable sort keeps the order by distance among earlier rows.
                order = np.argsort(~is_earlier, axis=1, kind="stable")[:, :count]
                nearest_of = np.take_along_axis(near, order, axis=1)
                found[missing[enough] - count] = nearest_of[enough]
                missing, reach = missing[~enough], 2 * reach
        start = end
    return torch.from_numpy(found)
