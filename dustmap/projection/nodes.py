r"""W by its nodes, on any device: interpolation weights are computed in every product.

A matrix has some ``2^D`` entries for each node, twice if its transpose is stored. This
form has the node: its place on the grid and its weight, ``D + 1`` numbers.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.operator import SizedOperator
from dustmap.projection.weight_rows import RecomputedProjection

# Nodes that are processed at once: some hundred bytes of temporaries each.
_TOGETHER = 2**21
# Vectors of a batch that are processed at once.
_COLUMNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Rows of similar numbers of nodes, padded with nodes of zero weight."""

    rows: Int[Tensor, " k"]
    levels: Int[Tensor, "k j"]
    places: Float[Tensor, "k j d"]  # in cells, from the level's first point
    weights: Float[Tensor, "k j"]


class NodeProjection(SizedOperator):
    """W without its entries, on a device without compiled loops over rows.

    Sums over nodes of one row are sums along a dim. Sums over rows are atomic
    additions; those in float32 are in fixed point, in units of ``2^{-62}`` of the
    largest possible sum, so that every run gives the same bits.

    Parameters
    ----------
    source
        W as recomputed by compiled loops on the CPU, which places the nodes.
    together
        Nodes that are processed at once.

    Raises
    ------
    ValueError
        If a node differentiates or lies outside the box, or weights are cubic.
    """

    stored = False

    def __init__(
        self,
        source: RecomputedProjection,
        device: torch.device,
        *,
        together: int = _TOGETHER,
    ) -> None:
        self.shape = source.shape
        self.dtype = source.dtype
        self.device = device
        self.nonzeros = source.nonzeros
        lattice = source.lattice
        axes = [d for d in range(3) if lattice.sizes[0, 1, d] > 1]
        self._sizes = torch.from_numpy(lattice.sizes[:, 0, axes]).to(device)
        self._firsts = torch.from_numpy(lattice.firsts).to(device)
        origin, step = torch.from_numpy(lattice.scales[..., axes]).unbind(1)
        self._blocks: list[_Block] = []
        for begin, run in source.node_runs(together):
            levels = torch.from_numpy(lattice.grids.level_of(run.points))
            places = (torch.from_numpy(run.points) - origin[levels]) / step[levels]
            weights = torch.from_numpy(run.weights)
            starts, counts = torch.from_numpy(run.starts), np.diff(run.starts)
            # Rows are sorted by length to minimise padding.
            order = np.argsort(counts, kind="stable")
            order = order[counts[order] > 0]
            while len(order):
                # The last row of a block is its longest.
                area = np.arange(1, len(order) + 1) * counts[order]
                taken = max(1, int(np.searchsorted(area, together, side="right")))
                some, order = order[:taken], order[taken:]
                number = torch.arange(int(counts[some[-1]]))
                node = number + starts[some][:, None]
                beyond = number >= torch.from_numpy(counts[some])[:, None]
                node = node.masked_fill(beyond, int(starts[some[0]]))
                weight = weights[node].masked_fill(beyond, 0.0)
                block = _Block(
                    rows=torch.from_numpy(some + begin).to(device),
                    levels=levels[node].to(dtype=torch.int8, device=device),
                    places=places[node].to(dtype=self.dtype, device=device),
                    weights=weight.to(dtype=self.dtype, device=device),
                )
                self._blocks.append(block)
        heaviest = [float(b.weights.abs().max()) for b in self._blocks]
        # Bound on the sums of one product, in units of the largest summand.
        self._bound = 2.0 * sum(b.weights.numel() for b in self._blocks)
        self._bound *= max(heaviest, default=0.0) or 1.0

    @property
    def bytes(self) -> int:
        """Memory of the nodes [bytes]."""
        return sum(
            part.nbytes
            for b in self._blocks
            for part in (b.rows, b.levels, b.places, b.weights)
        )

    def matvec(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch n"]:
        flat = self._flat(x, self.shape[1])
        groups = flat.split(_COLUMNS)
        results = [one.new_zeros(self.shape[0], len(one)) for one in groups]
        sources = [one.mT.contiguous() for one in groups]
        for block in self._blocks:
            corners = self._corners(block)
            for source, result in zip(sources, results, strict=True):
                values = source.new_zeros(*block.weights.shape, source.shape[1])
                for column, weight in corners:
                    values = torch.addcmul(values, weight[..., None], source[column])
                # ``Σ_j w_j Σ_c w_jc x_c``.
                sums = (block.weights[..., None] * values).sum(dim=1)
                result.index_copy_(0, block.rows, sums)
        return _joined(results, flat).reshape(*x.shape[:-1], self.shape[0])

    def rmatvec(self, y: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch columns"]:
        flat = self._flat(y, self.shape[0])
        groups = flat.split(_COLUMNS)
        totals = [_Sums(one, self.shape[1], self._bound) for one in groups]
        sources = [one.mT.contiguous() for one in groups]
        for block in self._blocks:
            corners = self._corners(block)
            for source, total in zip(sources, totals, strict=True):
                total.add(block, corners, source[block.rows])
        sums = [total.value() for total in totals]
        return _joined(sums, flat).reshape(*y.shape[:-1], self.shape[1])

    def _flat(self, x: Tensor, length: int) -> Tensor:
        self._require(x, length)
        return x.reshape(math.prod(x.shape[:-1]), length)

    def _corners(self, block: _Block) -> list[tuple[Tensor, Tensor]]:
        """Return columns and interpolation weights of every node, corner by corner."""
        floor = block.places.floor()
        cell, share = floor.to(torch.int64), block.places - floor
        level = block.levels.to(torch.int64)
        sizes = self._sizes[level].unbind(-1)
        ways = []
        for axis, size in enumerate(sizes):
            first, beyond = cell[..., axis], share[..., axis]
            ways.append([(first % size, 1 - beyond), ((first + 1) % size, beyond)])
        corners = []
        for corner in itertools.product(*ways):
            column, weight = corner[0]
            for (index, factor), size in zip(corner[1:], sizes[1:], strict=True):
                column, weight = column * size + index, weight * factor
            corners.append((self._firsts[level] + column, weight))
        return corners


def _joined(parts: list[Float[Tensor, "n k"]], like: Tensor) -> Float[Tensor, "b n"]:
    """Return the columns of all groups as rows."""
    return torch.cat(parts, dim=1).mT.contiguous() if parts else like.new_zeros(0)


class _Sums:
    """Sums along columns, in fixed point for float32: the order has no effect."""

    def __init__(self, y: Float[Tensor, "b n"], length: int, bound: float) -> None:
        self._unit: Float[Tensor, " b"] | None = None
        self._dtype = y.dtype
        if y.dtype == torch.float32 and y.shape[1]:
            largest = y.abs().amax(dim=-1).to(torch.float64)
            # Any number that is not finite makes the unit, and every sum, not finite.
            self._unit = 2.0**62 / (bound * torch.where(largest == 0, 1.0, largest))
        kind = y.dtype if self._unit is None else torch.int64
        self._total = torch.zeros(length, len(y), dtype=kind, device=y.device)

    def add(
        self,
        block: _Block,
        corners: list[tuple[Tensor, Tensor]],
        y: Float[Tensor, "k b"],
    ) -> None:
        """Add the rows of a block, multiplied by their numbers."""
        pull = block.weights[..., None] * y[:, None, :]
        if self._unit is not None:
            pull = pull.to(torch.float64) * self._unit
        for column, weight in corners:
            part = (weight[..., None] * pull).reshape(-1, pull.shape[-1])
            if self._unit is not None:
                part = part.round().to(torch.int64)
            self._total.index_add_(0, column.reshape(-1), part)

    def value(self) -> Float[Tensor, "columns b"]:
        """Return the sums, in the precision of the summands."""
        if self._unit is None:
            return self._total
        return (self._total / self._unit).to(self._dtype)
