"""Functionals of several kinds, one after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dustmap.functionals.base import Functionals, Nodes


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
