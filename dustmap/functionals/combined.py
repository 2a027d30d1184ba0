"""Functionals of several kinds, one after another or summed row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dustmap.functionals.base import Functionals, Nodes


class Stack(Functionals):
    """Functionals of different kinds in sequence."""

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
        nodes = [p.nodes() for p in self.parts]
        return _joined(nodes, self._starts[:-1].tolist(), len(self))


class Combination(Functionals):
    """``L_n = Σ_p c_p L_n^{(p)}``: row by row sums of equally long batches."""

    def __init__(
        self, parts: Sequence[Functionals], coefficients: Sequence[float]
    ) -> None:
        self.parts = _same_dimension(parts)
        self.coefficients = tuple(coefficients)
        lengths = [len(p) for p in self.parts]
        if len(set(lengths)) != 1:
            raise ValueError(f"parts must be equally long, got {lengths}")
        if len(self.coefficients) != len(self.parts):
            raise ValueError(
                f"{len(lengths)} parts need as many coefficients, got "
                f"{len(self.coefficients)}"
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
            replace(n, weights=c * n.weights)
            for c, n in zip(self.coefficients, nodes, strict=True)
        ]
        return _joined(scaled, [0] * len(scaled), len(self))


def _same_dimension(parts: Sequence[Functionals]) -> tuple[Functionals, ...]:
    if not parts:
        raise ValueError("at least one batch of functionals is needed")
    dimensions = [p.dimension for p in parts]
    if len(set(dimensions)) != 1:
        raise ValueError(f"parts must share one dimension, got {dimensions}")
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
