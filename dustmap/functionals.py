r"""Linear functionals of a field as nodes, weights and derivative orders.

``L_n ρ = Σ_j w_nj ∂^{α_nj} ρ(x_nj)``: a point value has one node, a derivative one node
with an axis, a line integral many nodes along the ray. Covariances and projections use
only :class:`Nodes`, so one data set may mix all kinds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.memory import row_blocks

# The rules are part of this module's names.
from dustmap.quadrature import FixedStep, GaussLegendre, MonteCarlo, Rule, StepsOutwards  # noqa: F401
from dustmap.shapes import Device, Points, Vector


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
        The functional of each node, non-decreasing, in ``0 … count−1``.
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

    def to(self, device: Device) -> Nodes:
        """Return the same nodes on another device."""
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Nodes:
        """Return nodes whose tensors are changed alike."""
        tensors = {n: getattr(self, n) for n in ("points", "weights", "rows", "axes")}
        present = {n: change(t) for n, t in tensors.items() if t is not None}
        return replace(self, **present)

    def pieces(self, count: int) -> Iterator[Nodes]:
        """Yield consecutive nodes, at most ``count`` (or one) at a time."""
        for piece in row_blocks(len(self.rows), 1, count):
            yield self._each(itemgetter(piece))

    def sum_rows(self, values: Float[Tensor, " p"]) -> Vector:
        """Return ``Σ_j w_nj v_nj`` for every functional."""
        total = values.new_zeros(self.count)
        return total.index_add(0, self.rows, self.weights.to(values.dtype) * values)


class Functionals(ABC):
    """A batch of N linear functionals on a D-dimensional field.

    ``places`` are their points, or the ends of their rays.
    """

    places: Points

    def __len__(self) -> int:
        return len(self.places)

    @property
    def dimension(self) -> int:
        """D."""
        return self.places.shape[1]

    @abstractmethod
    def select(self, index: Int[Tensor, " b"]) -> Functionals:
        """Return the functionals with these row numbers, with identical nodes."""

    @abstractmethod
    def nodes(self) -> Nodes:
        """Return all nodes of all functionals."""

    def runs(self) -> list[tuple[slice, Functionals]]:
        """Return consecutive rows of one kind."""
        return [(slice(0, len(self)), self)]

    def chunks(self, rows: int) -> Iterator[tuple[slice, Functionals]]:
        """Yield consecutive batches of at most ``rows`` functionals (bounds memory)."""
        for part in row_blocks(len(self), 1, rows):
            yield part, self.select(torch.arange(part.start, part.stop))


def _positions(x: Tensor, name: str) -> Tensor:
    """Check positions; return them in float64."""
    if x.ndim != 2 or x.shape[1] < 1:
        raise ValueError(
            f"{name} must have shape (n, d) with d of 1 or more, got {tuple(x.shape)}"
        )
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{name} holds values that are not finite")
    return x.to(torch.float64)


class PointValues(Functionals):
    """``L_n ρ = ρ(x_n)``."""

    def __init__(self, points: Points) -> None:
        self.points = self.places = _positions(points, "points")

    def select(self, index: Int[Tensor, " b"]) -> PointValues:
        return PointValues(self.points[index])

    def nodes(self) -> Nodes:
        return _one_node_each(self.points, None)


class Derivatives(Functionals):
    """``L_n ρ = ∂ρ/∂x_a (x_n)`` with ``a = axes[n]``."""

    def __init__(self, points: Points, axes: Int[Tensor, " n"] | int) -> None:
        self.points = self.places = _positions(points, "points")
        axes = torch.as_tensor(axes).expand(len(self.points))
        if len(axes) and not bool(((axes >= 0) & (axes < self.dimension)).all()):
            raise ValueError(f"axes must lie in 0..{self.dimension - 1}")
        self.axes = axes

    def select(self, index: Int[Tensor, " b"]) -> Derivatives:
        return Derivatives(self.points[index], self.axes[index])

    def nodes(self) -> Nodes:
        return _one_node_each(self.points, self.axes)


def _one_node_each(points: Tensor, axes: Tensor | None) -> Nodes:
    n = len(points)
    weights = torch.ones(n, dtype=torch.float64)
    rows = torch.arange(n)
    return Nodes(points=points, weights=weights, rows=rows, axes=axes, count=n)


class LineIntegrals(Functionals):
    """``L_n ρ = ∫ ρ ds`` along the straight segment from ``start`` to ``end``.

    Parameters
    ----------
    end
        End points of the rays.
    rule
        Quadrature along the rays.
    start
        Start points: one for all, one each, or the origin.
    """

    def __init__(
        self, end: Points, rule: Rule, *, start: Float[Tensor, "#n d"] | None = None
    ) -> None:
        self.end = self.places = _positions(end, "end")
        if start is None:
            start = torch.zeros_like(self.end)
        start = _positions(start.reshape(-1, self.dimension), "start")
        self.start = start.expand_as(self.end)
        self.rule = rule

    @property
    def lengths(self) -> Vector:
        """Lengths of the segments."""
        return torch.linalg.vector_norm(self.end - self.start, dim=-1)

    def select(self, index: Int[Tensor, " b"]) -> LineIntegrals:
        return LineIntegrals(self.end[index], self.rule, start=self.start[index])

    def nodes(self) -> Nodes:
        rows, fraction, weight = self.rule.fractions(self.start, self.end)
        direction = self.end - self.start
        return Nodes(
            points=self.start[rows] + fraction[:, None] * direction[rows],
            weights=weight * self.lengths[rows],
            rows=rows,
            axes=None,
            count=len(self),
        )


class DistanceMarginalizedIntegrals(Functionals):
    r"""``E_d[∫_0^d ρ ds]`` over an uncertain distance.

    Every path element is weighted by the probability that the star lies beyond it,
    ``L_n ρ = ∫ P(d > s) ρ(s) ds``, ``d ~ N(d_n, σ_n²)`` between 0 and ``reach_n``.

    Parameters
    ----------
    end
        ``d_n`` times the direction.
    spread
        ``σ_n ≥ 0``; zero is a plain line integral.
    reach
        Upper limit of the distance (the edge of the box, or infinity); the normal
        distribution is also truncated at three standard deviations.
    rule
        Quadrature along the rays.
    """

    def __init__(self, end: Points, spread: Vector, reach: Vector, rule: Rule) -> None:
        self.end = self.places = _positions(end, "end")
        self.spread = spread.to(torch.float64)
        self.reach = reach.to(torch.float64)
        self.rule = rule
        lengths = torch.linalg.vector_norm(self.end, dim=-1)
        if bool((self.spread < 0).any()) or bool((self.reach < lengths).any()):
            raise ValueError(
                "expected spread of at least 0 and reach of at least the distance"
            )
        farthest = torch.minimum(self.reach, lengths + 3 * self.spread)
        stretch = torch.where(lengths > 0, farthest / lengths, 1.0)
        self.lengths = lengths
        self._rays = LineIntegrals(stretch[:, None] * self.end, rule)

    def select(self, index: Int[Tensor, " b"]) -> DistanceMarginalizedIntegrals:
        own = self.end[index], self.spread[index], self.reach[index]
        return DistanceMarginalizedIntegrals(*own, self.rule)

    def nodes(self) -> Nodes:
        nodes, full = self._rays.nodes(), self._rays.lengths
        rows, given = nodes.rows, nodes.weights
        # The truncated normal distribution: σ, Φ at the upper limit, and the
        # probability between both limits.
        spread = torch.where(self.spread > 0, self.spread, 1.0)
        top = torch.special.ndtr((full - self.lengths) / spread)
        share = top - torch.special.ndtr(-self.lengths / spread)
        own = self.lengths, spread, top, share
        distance, spread, top, share = (x[rows] for x in own)

        def path(s: Tensor) -> Tensor:
            """Return ``∫_0^s P(d > t) dt`` plus a constant; ``∫ Φ = z Φ(z) + φ(z)``."""
            z = (s - distance) / spread
            density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
            return (top * s - spread * (z * torch.special.ndtr(z) + density)) / share

        if isinstance(self.rule, MonteCarlo):
            along = torch.linalg.vector_norm(nodes.points, dim=-1)
            below = torch.special.ndtr((along - distance) / spread)
            weights = given * ((top - below) / share)
        else:
            # Over the path element of each node, exact for constant ρ: P falls off
            # within σ_n, which may be far shorter than an element.
            far = torch.cumsum(given, 0) - (torch.cumsum(full, 0) - full)[rows]
            weights = path(far) - path(far - given)
        # A ray of zero length has no direction along which to marginalise.
        uncertain = ((self.spread > 0) & (self.lengths > 0))[rows]
        return replace(nodes, weights=torch.where(uncertain, weights, given))


class Stack(Functionals):
    """Functionals of different kinds in sequence."""

    def __init__(self, parts: Sequence[Functionals]) -> None:
        if not parts:
            raise ValueError("at least one batch of functionals is needed")
        dimensions = [p.dimension for p in parts]
        if len(set(dimensions)) != 1:
            raise ValueError(f"parts must share one dimension, got {dimensions}")
        self.parts = tuple(parts)
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
        starts = torch.as_tensor(self._starts)
        part = torch.bucketize(index, starts[1:], right=True)
        kinds, counts = torch.unique_consecutive(part, return_counts=True)
        rows = (index - starts[part]).split(counts.tolist())
        kept = [self.parts[k].select(r) for k, r in zip(kinds.tolist(), rows)]
        return kept[0] if len(kept) == 1 else Stack(kept)

    def runs(self) -> list[tuple[slice, Functionals]]:
        return [
            (slice(rows.start + start, rows.stop + start), kind)
            for start, part in zip(self._starts.tolist(), self.parts)
            for rows, kind in part.runs()
        ]

    def nodes(self) -> Nodes:
        parts, axes = [p.nodes() for p in self.parts], None
        if any(n.axes is not None for n in parts):
            axes = torch.cat(
                [-torch.ones_like(n.rows) if n.axes is None else n.axes for n in parts]
            )
        starts = self._starts[:-1].tolist()
        return Nodes(
            points=torch.cat([n.points for n in parts]),
            weights=torch.cat([n.weights for n in parts]),
            rows=torch.cat([n.rows + s for n, s in zip(parts, starts, strict=True)]),
            axes=axes,
            count=len(self),
        )
