"""A matrix whose rows are distributed over the processes of a group."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.functionals import Functionals
from dustmap.linalg.operator import SizedOperator


class ShardedRows(SizedOperator):
    """A matrix of which every rank holds a run of rows.

    Vectors over rows and over columns are complete on every rank. ``matvec`` gathers
    the ranks' rows; ``rmatvec`` and ``gram`` add up their vectors over columns, in the
    operator's precision.

    ``own`` are this rank's rows, and ``cuts`` the ``size + 1`` row numbers between
    which ranks hold theirs. All ranks make this object, and every product, together.
    """

    def __init__(self, own: SizedOperator, cuts: list[int], group: Group) -> None:
        self.shape = (cuts[-1], own.shape[1])
        self.dtype = own.dtype
        self.device = own.device
        self.own, self.excess = own, own.excess
        self.group = group
        self._counts = [b - a for a, b in itertools.pairwise(cuts)]
        self._rows = slice(cuts[group.rank], cuts[group.rank + 1])
        # Making the rows may take long: wait for all ranks without a timeout.
        group.meet()
        self.nonzeros = sum(group.numbers(own.nonzeros))

    @property
    def bytes(self) -> int:
        """Memory of this rank's rows [bytes]."""
        return self.own.bytes

    def matvec(self, x: Tensor) -> Tensor:
        return self.group.gather(self.own.matvec(x), self._counts)

    def nonnegative(self, x: Tensor) -> Tensor:
        return self.group.gather(self.own.nonnegative(x), self._counts)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.group.sum(self.own.rmatvec(y[..., self._rows]))

    def gram(self, x: Tensor, weights: Tensor) -> Tensor:
        return self.group.sum(self.own.gram(x, weights[self._rows]))


def row_cuts(functionals: Functionals, size: int) -> list[int]:
    """Return the cuts of rows into ``size`` runs of about equal numbers of nodes.

    All ranks, which know all functionals, get equal cuts. Cost: the nodes of a few
    thousand functionals.
    """
    count = len(functionals)
    if size == 1 or not count:
        return [0] * size + [count]
    # Shares by the nodes of 4,096 rows are even to a per cent or two.
    some = np.unique(np.linspace(0, count - 1, min(count, 4096)).astype(np.int64))
    nodes = functionals.select(torch.from_numpy(some)).nodes()
    each = np.bincount(nodes.rows.numpy(), minlength=len(some)).astype(float)
    # A row without nodes still takes part in every vector.
    total = np.concatenate([[0.0], np.cumsum(each + 1.0)])
    edges = np.concatenate([some, [count]])
    goals = np.linspace(0.0, total[-1], size + 1)[1:-1]
    inner = np.rint(np.interp(goals, total, edges)).astype(np.int64)
    return [0, *inner.tolist(), count]
