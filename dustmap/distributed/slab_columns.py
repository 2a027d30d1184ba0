"""A matrix whose columns are shared out over the processes of a group."""

from __future__ import annotations

from torch import Tensor

from dustmap.distributed.slabs import Slabs, SlabSpace
from dustmap.linalg.operator import LinearOperator, SizedOperator


class SlabColumns(LinearOperator):
    """All rows of a matrix; of its columns those of this rank's slab of a grid.

    Vectors over rows are whole on every rank, vectors over columns in slabs. ``matvec``
    adds up the ranks' vectors over rows in the operator's precision, ``rmatvec`` sends
    nothing, ``gram`` as much as ``matvec``. Products are not differentiable.

    Parameters
    ----------
    own
        This rank's columns of all rows, on the rank's device.
    slabs
        How the columns are shared out. All ranks make this object, and every product,
        together.
    """

    def __init__(self, own: SizedOperator, slabs: Slabs) -> None:
        self.shape = own.shape
        self.dtype = own.dtype
        self.device = own.device
        self.domain = SlabSpace(slabs)
        self.own = own
        # The ranks may have been at this for long: they wait for each other first.
        slabs.group.meet()
        self.nonzeros = sum(slabs.group.numbers(own.nonzeros))

    @property
    def bytes(self) -> int:
        """What this rank holds [bytes]."""
        return self.own.bytes

    @property
    def stored(self) -> bool:
        """Whether this rank's weights are kept, not computed anew in every product."""
        return self.own.stored

    def matvec(self, x: Tensor) -> Tensor:
        return self.domain.total(self.own.matvec(x.detach()))

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.own.rmatvec(y.detach())
