"""Subsets of the inputs: centres of clusters, and groups of near neighbours."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from dustmap.shapes import Places, Points


def kmeans_points(
    positions: Points, count: int, generator: torch.Generator, *, rows: int = 20_000
) -> Places:
    """Return at most ``count`` centres of clusters of the positions.

    Ten rounds of Lloyd's algorithm (1982, IEEE Trans. Inf. Theory 28, 129) cluster
    standardised positions, or a random subset of ``rows`` (or ``count``) of them if
    there are more. Cost of a round: rows · M · D.
    If there are no more than ``count`` distinct positions, all of them are returned.

    Raises `ValueError` if there is no position or ``count`` is below one.
    """
    if count < 1 or not len(positions):
        raise ValueError(
            f"inducing points need count ≥ 1 and at least one position, got {count} "
            f"and {len(positions)}"
        )
    if len(positions) > (kept := max(rows, count)):
        some = torch.randperm(len(positions), generator=generator)[:kept]
        positions = positions[some]
    distinct = torch.unique(positions.to(torch.float64), dim=0)
    if len(distinct) <= count:
        return distinct
    first = distinct[torch.randperm(len(distinct), generator=generator)[:count]]
    data = positions.numpy().astype(np.float64)
    with warnings.catch_warnings():
        # A cluster without members keeps its centre.
        warnings.filterwarnings("ignore", message="One of the clusters is empty")
        centres, _ = kmeans2(data, first.numpy(), iter=10, minit="matrix")
    return torch.as_tensor(centres)


def clustered_subset(
    positions: Points, size: int, neighbours: int, generator: torch.Generator
) -> Tensor:
    """Return the numbers of ``size`` observations in groups of near neighbours.

    A uniform subset of a large catalogue has no close pairs and does not constrain
    short lengthscales; groups around random members contain every separation. Groups
    have at most ``size`` members; if they overlap, random rows complete the subset.
    """
    n = len(positions)
    if n <= size:
        return torch.arange(n)
    neighbours = min(neighbours, size)
    seeds = torch.randperm(n, generator=generator)[: size // neighbours]
    # A few at a time: all distances at once take gigabytes for millions of rows.
    near = [
        torch.cdist(positions[few], positions).topk(neighbours, largest=False).indices
        for few in seeds.split(4)
    ]
    chosen = torch.unique(torch.cat(near))
    if len(chosen) < size:
        is_left = torch.ones(n, dtype=torch.bool).index_fill(0, chosen, False)
        rest = torch.nonzero(is_left)[:, 0]
        order = torch.randperm(len(rest), generator=generator)
        chosen = torch.cat([chosen, rest[order[: size - len(chosen)]]]).sort().values
    return chosen
