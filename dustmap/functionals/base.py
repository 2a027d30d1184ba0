"""The interface of linear functionals: a batch of nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Explicit nodes of N functionals, grouped by functional.

    Parameters
    ----------
    points
        Positions ``x_nj`` (float64).
    weights
        ``w_nj``.
    rows
        The functional each node belongs to, non-decreasing, in ``0 … count−1``.
    axes
        Axis of differentiation, or −1 for a value; ``None`` if all are values.
    count
        N, the number of functionals (rows without nodes are the zero functional).
    """

    points: Float[Tensor, "p d"]
    weights: Float[Tensor, " p"]
    rows: Int[Tensor, " p"]
    axes: Int[Tensor, " p"] | None
    count: int

    def to(self, device: torch.device | str) -> Nodes:
        """The same nodes on another device."""
        return replace(
            self,
            points=self.points.to(device),
            weights=self.weights.to(device),
            rows=self.rows.to(device),
            axes=None if self.axes is None else self.axes.to(device),
        )

    def pieces(self, count: int) -> Iterator[Nodes]:
        """Consecutive nodes, at most ``count`` (or one) at a time."""
        count = max(count, 1)
        for start in range(0, len(self.rows), count):
            part = slice(start, start + count)
            yield replace(
                self,
                points=self.points[part],
                weights=self.weights[part],
                rows=self.rows[part],
                axes=None if self.axes is None else self.axes[part],
            )

    def sum_rows(self, values: Float[Tensor, " p"]) -> Float[Tensor, " n"]:
        """``Σ_j w_nj v_nj`` for every functional."""
        total = values.new_zeros(self.count)
        return total.index_add(0, self.rows, self.weights.to(values.dtype) * values)


class Functionals(ABC):
    """A batch of N linear functionals on a D-dimensional field."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def dimension(self) -> int:
        """D."""

    @abstractmethod
    def select(self, index: Int[Tensor, " b"]) -> Functionals:
        """The functionals with these row numbers, with identical nodes."""

    @abstractmethod
    def nodes(self) -> Nodes:
        """All nodes of all functionals."""

    def runs(self) -> list[tuple[slice, Functionals]]:
        """Consecutive rows of one kind."""
        return [(slice(0, len(self)), self)]

    def chunks(self, rows: int) -> Iterator[tuple[slice, Functionals]]:
        """Consecutive batches of at most ``rows`` functionals (bounds memory)."""
        for start in range(0, len(self), rows):
            stop = min(start + rows, len(self))
            yield slice(start, stop), self.select(torch.arange(start, stop))


def position_matrix(x: Tensor, name: str) -> Tensor:
    """Positions (float64), checked.

    Raises
    ------
    ValueError
        If the shape is not ``(n, d)`` with d ≥ 1 or a value is not finite.
    """
    if x.ndim != 2 or x.shape[1] < 1:
        raise ValueError(
            f"{name} must have shape (n, d) with d of 1 or more, got {tuple(x.shape)}"
        )
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{name} holds values that are not finite")
    return x.to(torch.float64)
