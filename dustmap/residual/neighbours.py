"""Nearest rows of any place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial import KDTree
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndex:
    """Rows in a tree, their coordinates in units of a length along each axis."""

    tree: KDTree
    unit: Float[Tensor, " d"]

    @classmethod
    def of(cls, rows: Float[Tensor, "n d"], unit: Float[Tensor, " d"]) -> RowIndex:
        """The index of these rows."""
        unit = unit.detach().expand(rows.shape[1])
        return cls(tree=KDTree((rows / unit).cpu().numpy()), unit=unit)

    def nearest(self, places: Float[Tensor, "m d"], count: int) -> Int[Tensor, "m k"]:
        """Indices of the ``count`` rows nearest to each place, or of all rows."""
        count = min(count, self.tree.n)
        scaled = (places / self.unit).cpu().numpy()
        found = np.asarray(
            self.tree.query(scaled, k=count, workers=torch.get_num_threads())[1]
        )
        return torch.from_numpy(found.reshape(len(places), count)).to(places.device)

    def distortion(self, unit: Float[Tensor, " d"]) -> float:
        """How much one axis is stretched against another in these units, at least 1."""
        ratio = unit.detach() / self.unit
        return float(ratio.max() / ratio.min())


def nearest(
    rows: Float[Tensor, "n d"], places: Float[Tensor, "m d"], count: int
) -> Int[Tensor, "m k"]:
    """Indices of the ``count`` rows nearest to each place, or of all rows."""
    return RowIndex.of(rows, rows.new_ones(1)).nearest(places, count)


def without_self(
    near: Int[Tensor, "n k"], own: Int[Tensor, " n"] | None = None
) -> Int[Tensor, "n k-1"]:
    """Every row's neighbours without the row, the last one dropped if it is absent.

    ``own`` are the rows' numbers, 0 to n − 1 unless given.
    """
    own = torch.arange(len(near), device=near.device) if own is None else own
    itself = near == own[:, None]
    # Among rows at one place a row need not be the first that is found.
    itself[~itself.any(dim=1), -1] = True
    return near[~itself].reshape(len(near), near.shape[1] - 1)
