r"""Linear functionals of a field as nodes, weights and derivative orders.

``L_n ρ = Σ_j w_nj ∂^{α_nj} ρ(x_nj)``: a point value has one node, a derivative one
node with an axis, a line integral many nodes along the ray. Everything downstream
(inter-domain covariances, sparse projections) sees only :class:`Nodes`, so different
kinds mix freely in one data set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.quadrature import (
    FixedStep,
    GaussLegendre,
    MonteCarlo,
    Rule,
    StepsOutwards,
)

__all__ = [
    "Combination",
    "Derivatives",
    "FixedStep",
    "Functionals",
    "GaussLegendre",
    "LineIntegrals",
    "MonteCarlo",
    "Nodes",
    "PointValues",
    "Rule",
    "Stack",
    "StepsOutwards",
]


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
        """The functionals with these row numbers, with the very same nodes."""

    @abstractmethod
    def nodes(self) -> Nodes:
        """All nodes of all functionals."""

    def chunks(self, rows: int) -> Iterator[tuple[slice, Functionals]]:
        """The functionals in runs of at most ``rows`` (bounds memory)."""
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


class PointValues(Functionals):
    """``L_n ρ = ρ(x_n)``."""

    def __init__(self, points: Float[Tensor, "n d"]) -> None:
        self.points = position_matrix(points, "points")

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dimension(self) -> int:
        return self.points.shape[1]

    def select(self, index: Int[Tensor, " b"]) -> PointValues:
        return PointValues(self.points[index])

    def nodes(self) -> Nodes:
        n = len(self)
        return Nodes(
            points=self.points,
            weights=torch.ones(n, dtype=torch.float64),
            rows=torch.arange(n),
            axes=None,
            count=n,
        )


class Derivatives(Functionals):
    """``L_n ρ = ∂ρ/∂x_a (x_n)`` with ``a = axes[n]``."""

    def __init__(
        self, points: Float[Tensor, "n d"], axes: Int[Tensor, " n"] | int
    ) -> None:
        self.points = position_matrix(points, "points")
        axes = torch.as_tensor(axes).expand(len(self.points))
        if len(axes) and not bool(((axes >= 0) & (axes < self.dimension)).all()):
            raise ValueError(f"axes must lie in 0..{self.dimension - 1}")
        self.axes = axes

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dimension(self) -> int:
        return self.points.shape[1]

    def select(self, index: Int[Tensor, " b"]) -> Derivatives:
        return Derivatives(self.points[index], self.axes[index])

    def nodes(self) -> Nodes:
        n = len(self)
        return Nodes(
            points=self.points,
            weights=torch.ones(n, dtype=torch.float64),
            rows=torch.arange(n),
            axes=self.axes,
            count=n,
        )


class LineIntegrals(Functionals):
    """``L_n ρ = ∫ ρ ds`` along the straight segment from ``start`` to ``end``.

    Parameters
    ----------
    end
        Where the rays end.
    rule
        Where along a ray its nodes lie.
    start
        Where the rays begin: one point for all, one each, or the origin.
    index
        Numbers of the rays in the batch the rule was made for.
    """

    def __init__(
        self,
        end: Float[Tensor, "n d"],
        rule: Rule,
        *,
        start: Float[Tensor, "#n d"] | None = None,
        index: Int[Tensor, " n"] | None = None,
    ) -> None:
        self.end = position_matrix(end, "end")
        if start is None:
            start = torch.zeros_like(self.end)
        start = position_matrix(start.reshape(-1, self.dimension), "start")
        self.start = start.expand_as(self.end)
        self.rule = rule
        self.index = torch.arange(len(self.end)) if index is None else index

    def __len__(self) -> int:
        return len(self.end)

    @property
    def dimension(self) -> int:
        return self.end.shape[1]

    @property
    def lengths(self) -> Float[Tensor, " n"]:
        """Lengths of the segments."""
        return torch.linalg.vector_norm(self.end - self.start, dim=-1)

    def select(self, index: Int[Tensor, " b"]) -> LineIntegrals:
        return LineIntegrals(
            self.end[index],
            self.rule,
            start=self.start[index],
            index=self.index[index],
        )

    def nodes(self) -> Nodes:
        lengths = self.lengths
        rows, fraction, weight = self.rule.fractions(lengths, self.index)
        direction = self.end - self.start
        return Nodes(
            points=self.start[rows] + fraction[:, None] * direction[rows],
            weights=weight * lengths[rows],
            rows=rows,
            axes=None,
            count=len(self),
        )


class Stack(Functionals):
    """Functionals of different kinds one after another in one data set."""

    def __init__(self, parts: Sequence[Functionals]) -> None:
        self.parts = _same_dimension(parts)
        self._starts = np.cumsum([0] + [len(p) for p in self.parts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def dimension(self) -> int:
        return self.parts[0].dimension

    def select(self, index: Int[Tensor, " b"]) -> Functionals:
        index = torch.as_tensor(index)
        if not len(index):
            return self.parts[0].select(index)
        if int(index.min()) < 0 or int(index.max()) >= len(self):
            raise IndexError(f"row numbers must lie in 0..{len(self) - 1}")
        part = torch.bucketize(index, torch.as_tensor(self._starts[1:]), right=True)
        if bool((part[1:] >= part[:-1]).all()):
            kept = [
                p.select(index[part == i] - int(self._starts[i]))
                for i, p in enumerate(self.parts)
                if bool((part == i).any())
            ]
            return kept[0] if len(kept) == 1 else Stack(kept)
        # Out of order: single rows keep the order asked for.
        singles = [
            self.parts[int(p)].select((i - int(self._starts[int(p)])).reshape(1))
            for p, i in zip(part, index)
        ]
        return Stack(singles)

    def nodes(self) -> Nodes:
        nodes = [p.nodes() for p in self.parts]
        return _joined(nodes, self._starts[:-1].tolist(), len(self))


class Combination(Functionals):
    """``L_n = Σ_p c_p L_n^{(p)}``: row by row sums of equally long batches."""

    def __init__(
        self, parts: Sequence[Functionals], coefficients: Sequence[float]
    ) -> None:
        self.parts = _same_dimension(parts)
        self.coefficients = tuple(coefficients)
        if len({len(p) for p in self.parts}) != 1:
            raise ValueError(
                f"parts must be equally long, got {[len(p) for p in self.parts]}"
            )
        if len(self.coefficients) != len(self.parts):
            raise ValueError(
                f"{len(self.parts)} parts need as many coefficients, "
                f"got {len(self.coefficients)}"
            )

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def dimension(self) -> int:
        return self.parts[0].dimension

    def select(self, index: Int[Tensor, " b"]) -> Combination:
        return Combination([p.select(index) for p in self.parts], self.coefficients)

    def nodes(self) -> Nodes:
        nodes = [p.nodes() for p in self.parts]
        scaled = [
            Nodes(
                points=n.points,
                weights=c * n.weights,
                rows=n.rows,
                axes=n.axes,
                count=n.count,
            )
            for c, n in zip(self.coefficients, nodes, strict=True)
        ]
        return _joined(scaled, [0] * len(scaled), len(self))


def _same_dimension(parts: Sequence[Functionals]) -> tuple[Functionals, ...]:
    if not parts:
        raise ValueError("at least one batch of functionals is needed")
    if len({p.dimension for p in parts}) != 1:
        raise ValueError(
            f"parts must share one dimension, got {[p.dimension for p in parts]}"
        )
    return tuple(parts)


def _joined(parts: Sequence[Nodes], starts: Sequence[int], count: int) -> Nodes:
    rows = torch.cat([n.rows + s for n, s in zip(parts, starts, strict=True)])
    order = torch.argsort(rows, stable=True)
    axes = None
    if any(n.axes is not None for n in parts):
        axes = torch.cat(
            [n.axes if n.axes is not None else -torch.ones_like(n.rows) for n in parts]
        )[order]
    return Nodes(
        points=torch.cat([n.points for n in parts])[order],
        weights=torch.cat([n.weights for n in parts])[order],
        rows=rows[order],
        axes=axes,
        count=count,
    )
