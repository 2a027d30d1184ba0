"""Real Fourier transforms of a grid that is shared out in slabs.

Each rank transforms the axes that lie in its planes, the ranks exchange what they have
(every one sends to every other), and each transforms the first axis of its columns.
"""

from __future__ import annotations

import itertools
import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from dustmap.distributed.rows import even_cuts
from dustmap.distributed.slabs import Slabs


class SlabFFT:
    """``rfftn`` and its inverse, modes being shared out by *columns*.

    A column is all modes along the first axis at one place of the half spectrum of the
    other axes, of which there are ``Q = n_2 ⋯ (n_D // 2 + 1)`` in C order; every rank
    holds a run of them, all as long but one. Of a grid with one axis there is one
    column, not halved, which the last rank holds alone.

    Cost per transform of a real vector: an exchange in which each rank hands over the
    modes of its planes, ``planes · Q`` complex numbers, of which it keeps one share.

    Parameters
    ----------
    slabs
        How grid vectors are shared out.
    """

    def __init__(self, slabs: Slabs) -> None:
        self.slabs = slabs
        rest = slabs.shape[1:]
        self.half_shape = (*rest[:-1], rest[-1] // 2 + 1) if rest else ()
        count = math.prod(self.half_shape)
        self.cuts = even_cuts(count, slabs.group.size)
        self._widths = [b - a for a, b in itertools.pairwise(self.cuts)]
        self._dims = tuple(range(2, 2 + len(rest)))

    @property
    def columns(self) -> slice:
        """This rank's columns."""
        rank = self.slabs.group.rank
        return slice(self.cuts[rank], self.cuts[rank + 1])

    def forward(self, x: Float[Tensor, "*b n"]) -> Complex[Tensor, "*b planes q"]:
        """The modes of real vectors: all of this rank's columns."""
        slabs = self.slabs
        grid = x.reshape(-1, *slabs.own_shape)
        if self._dims:
            grid = torch.fft.rfftn(grid, dim=self._dims)
        flat = grid.reshape(*grid.shape[:2], self.cuts[-1])
        turned = self._to_columns(flat)
        # cuFFT and MKL refuse empty tensors.
        if turned.numel():
            turned = torch.fft.fft(turned, dim=1)
        elif not turned.is_complex():
            turned = turned.to(turned.dtype.to_complex())
        return turned.reshape(*x.shape[:-1], *turned.shape[1:])

    def inverse(self, modes: Complex[Tensor, "*b planes q"]) -> Float[Tensor, "*b n"]:
        """The real vectors with these modes."""
        slabs = self.slabs
        # Not −1: of an empty tensor it could be anything.
        batch = math.prod(modes.shape[:-2])
        turned = modes.reshape(batch, *modes.shape[-2:])
        if turned.numel():
            turned = torch.fft.ifft(turned, dim=1)
        if not self._dims:
            turned = turned.real
        flat = self._to_planes(turned)
        grid = flat.reshape(len(flat), -1, *self.half_shape)
        if self._dims:
            grid = torch.fft.irfftn(grid, s=slabs.shape[1:], dim=self._dims)
        return grid.reshape(*modes.shape[:-2], slabs.size)

    def product(
        self, x: Float[Tensor, "*b n"], spectrum: Float[Tensor, "planes q"]
    ) -> Float[Tensor, "*b n"]:
        """Vectors with their modes multiplied: one exchange there and one back."""
        modes = self.forward(x)
        modes *= spectrum
        return self.inverse(modes)

    def _to_columns(self, x: Tensor) -> Tensor:
        """``(b, own planes, Q)`` to ``(b, all planes, own columns)``."""
        group = self.slabs.group
        if group.size == 1:
            return x
        batch = len(x)
        parts = [x[:, :, a:b].reshape(-1) for a, b in itertools.pairwise(self.cuts)]
        own = self._widths[group.rank]
        counts = [batch * n * own for n in self.slabs.counts]
        flat = group.exchange(torch.cat(parts), [len(p) for p in parts], counts)
        pieces = flat.split(counts)
        return torch.cat(
            [p.view(batch, n, own) for p, n in zip(pieces, self.slabs.counts)], dim=1
        )

    def _to_planes(self, x: Tensor) -> Tensor:
        """``(b, all planes, own columns)`` to ``(b, own planes, Q)``."""
        group = self.slabs.group
        if group.size == 1:
            return x
        batch = len(x)
        own = self.slabs.counts[group.rank]
        parts = [x[:, a:b].reshape(-1) for a, b in itertools.pairwise(self.slabs.cuts)]
        counts = [batch * own * n for n in self._widths]
        flat = group.exchange(torch.cat(parts), [len(p) for p in parts], counts)
        pieces = flat.split(counts)
        return torch.cat(
            [p.view(batch, own, n) for p, n in zip(pieces, self._widths)], dim=2
        )
