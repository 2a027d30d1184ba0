"""Grid vectors in slabs: how they are cut, summed, drawn and put together again."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.distributed.rows import even_cuts
from dustmap.linalg.space import VectorSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Slabs:
    """Planes along the first axis of a grid, shared out in the order of ranks.

    Parameters
    ----------
    shape
        Of the whole grid.
    cuts
        Plane numbers, ``size + 1`` of them, between which ranks hold planes.
    group
        The ranks.

    Raises
    ------
    ValueError
        If the cuts do not share out all planes, or leave a rank without any.
    """

    shape: tuple[int, ...]
    cuts: tuple[int, ...]
    group: Group

    def __post_init__(self) -> None:
        planes, size = self.shape[0], self.group.size
        cuts = self.cuts
        whole = len(cuts) == size + 1 and cuts[0] == 0 and cuts[-1] == planes
        if not whole or any(b <= a for a, b in itertools.pairwise(cuts)):
            raise ValueError(
                f"{planes} planes of a grid cannot be cut at {cuts} for {size} "
                "processes, each of which needs one or more: take fewer processes, or "
                "a finer grid"
            )

    @classmethod
    def even(cls, shape: tuple[int, ...], group: Group) -> Slabs:
        """As many planes for each rank, but one."""
        cuts = even_cuts(shape[0], group.size)
        return cls(shape=tuple(shape), cuts=tuple(cuts), group=group)

    @property
    def counts(self) -> list[int]:
        """How many planes each rank holds."""
        return [b - a for a, b in itertools.pairwise(self.cuts)]

    @property
    def planes(self) -> slice:
        """This rank's planes."""
        return slice(self.cuts[self.group.rank], self.cuts[self.group.rank + 1])

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Of this rank's slab."""
        return (self.counts[self.group.rank], *self.shape[1:])

    @property
    def plane_size(self) -> int:
        """Points of a plane."""
        return math.prod(self.shape[1:])

    @property
    def size(self) -> int:
        """Points of this rank's slab."""
        return math.prod(self.own_shape)

    def own(self, x: Float[Tensor, "*b m"]) -> Float[Tensor, "*b n"]:
        """This rank's part of a whole grid vector."""
        first, last = self.planes.start, self.planes.stop
        return x[..., first * self.plane_size : last * self.plane_size]

    def whole(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        """The grid vector of this rank's part, on every rank.

        Memory: two whole vectors.
        """
        return self.group.gather(x, [n * self.plane_size for n in self.counts])

    def to_first(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        """The grid vectors of these parts, on the CPU of rank 0; nothing on others.

        One after another: beside the result rank 0 holds one whole vector.
        """
        group = self.group
        counts = [n * self.plane_size for n in self.counts]
        sent = [self.size] + [0] * (group.size - 1)
        received = counts if group.first else [0] * group.size
        whole = torch.empty(
            math.prod(x.shape[:-1]), sum(received), dtype=x.dtype, device="cpu"
        )
        for row, part in zip(whole, x.reshape(-1, self.size), strict=True):
            row.copy_(group.exchange(part, sent, received))
        if not group.first:
            return whole[:0]
        return whole.reshape(*x.shape[:-1], whole.shape[1])

    def from_first(self, x: Float[Tensor, " m"]) -> Float[Tensor, " n"]:
        """This rank's part of a grid vector that rank 0 has; the inverse of `to_first`.

        What other ranks give is ignored but for its dtype.
        """
        group = self.group
        counts = [n * self.plane_size for n in self.counts]
        sent = counts if group.first else [0] * group.size
        received = [self.size] + [0] * (group.size - 1)
        return group.exchange(x if group.first else x[:0], sent, received)


class SlabSpace(VectorSpace):
    """Grid vectors of which every rank holds its slab.

    White noise is keyed by the plane: each is drawn by the rank that holds it from a
    counter-based generator (Philox; Salmon et al. 2011, SC '11) whose key is one number
    of the generator given and the plane's. It is the same for any number of ranks.
    """

    def __init__(self, slabs: Slabs) -> None:
        self.slabs = slabs

    def total(self, partial: Tensor) -> Tensor:
        return self.slabs.group.sum(partial)

    def length(self, here: int) -> int:
        self._require(here)
        return math.prod(self.slabs.shape)

    def normal(
        self,
        count: int,
        here: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float64,
    ) -> Float[Tensor, "s n"]:
        self._require(here)
        seed = int(torch.randint(2**63 - 1, (1,), generator=generator))
        slabs = self.slabs
        planes = range(slabs.planes.start, slabs.planes.stop)
        noise = torch.empty(count, len(planes), slabs.plane_size, dtype=dtype)
        for vector, (place, plane) in itertools.product(
            range(count), enumerate(planes)
        ):
            key = np.array([seed, vector * slabs.shape[0] + plane], dtype=np.uint64)
            draw = np.random.Generator(np.random.Philox(key=key))
            white = draw.standard_normal(slabs.plane_size)
            noise[vector, place] = torch.from_numpy(white)
        return noise.reshape(count, here)

    def orthonormal(self, rows: Float[Tensor, "r n"]) -> Float[Tensor, "r n"]:
        """By Cholesky factors of Gram matrices, twice (Yamamoto et al. 2015)."""
        for _ in range(2):
            gram = self.total((rows @ rows.mT).to(torch.float64))
            factor = torch.linalg.cholesky(gram)
            inverse = torch.linalg.solve_triangular(
                factor, torch.eye(len(gram)).to(factor), upper=False
            )
            rows = inverse.to(rows) @ rows
        return rows

    def _require(self, here: int) -> None:
        if here != self.slabs.size:
            raise ValueError(
                f"this rank's slab has {self.slabs.size} points, a vector of {here} "
                "was given"
            )
