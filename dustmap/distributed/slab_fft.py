"""Fourier transforms, and circulant matrices, of a grid that is shared out in slabs.

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
from dustmap.distributed.slabs import Slabs, SlabSpace
from dustmap.linalg.circulant import Circulant


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
        """The modes of real vectors: all of this rank's columns.

        Memory: beside the argument two to three times its size at the peak.
        """
        batch = math.prod(x.shape[:-1])
        turned = self._to_columns(self._along_planes(x, batch))
        # Libraries refuse empty tensors.
        if turned.numel():
            turned = torch.fft.fft(turned, dim=1)
        elif not turned.is_complex():
            turned = turned.to(turned.dtype.to_complex())
        return turned.reshape(*x.shape[:-1], *turned.shape[1:])

    def inverse(self, modes: Complex[Tensor, "*b planes q"]) -> Float[Tensor, "*b n"]:
        """The real vectors with these modes; memory as of :meth:`forward`."""
        shape = (*modes.shape[:-2], self.slabs.size)
        # Not −1: of an empty tensor it could be anything.
        turned = modes.reshape(math.prod(shape[:-1]), *modes.shape[-2:])
        del modes
        if turned.numel():
            turned = torch.fft.ifft(turned, dim=1)
        grid = self._to_planes(turned if self._dims else turned.real)
        del turned
        grid = grid.reshape(*grid.shape[:2], *self.half_shape)
        if self._dims:
            grid = torch.fft.irfftn(grid, s=self.slabs.shape[1:], dim=self._dims)
        return grid.reshape(shape)

    def _along_planes(self, x: Tensor, batch: int) -> Tensor:
        """``(b, own planes, Q)``: transformed along all axes but the first."""
        grid = x.reshape(batch, *self.slabs.own_shape)
        if self._dims:
            grid = torch.fft.rfftn(grid, dim=self._dims)
        return grid.reshape(batch, self.slabs.own_shape[0], self.cuts[-1])

    def _to_columns(self, x: Tensor) -> Tensor:
        """``(b, own planes, Q)`` to ``(b, all planes, own columns)``."""
        slabs, batch = self.slabs, len(x)
        if slabs.group.size == 1:
            return x
        own = self._widths[slabs.group.rank]
        sent = [batch * x.shape[1] * n for n in self._widths]
        received = [batch * n * own for n in slabs.counts]
        packed = x.new_empty(x.numel())
        for part, columns in zip(
            packed.split(sent), x.split(self._widths, dim=2), strict=True
        ):
            part.view(columns.shape).copy_(columns)
        del x
        flat = slabs.group.exchange(packed, sent, received)
        del packed
        if batch == 1:
            # As they come, parts are planes one after another.
            return flat.view(1, slabs.shape[0], own)
        parts = zip(flat.split(received), slabs.counts, strict=True)
        return torch.cat([part.view(batch, n, own) for part, n in parts], dim=1)

    def _to_planes(self, x: Tensor) -> Tensor:
        """``(b, all planes, own columns)`` to ``(b, own planes, Q)``."""
        slabs, batch = self.slabs, len(x)
        if slabs.group.size == 1:
            return x
        own = slabs.counts[slabs.group.rank]
        sent = [batch * n * x.shape[2] for n in slabs.counts]
        received = [batch * own * n for n in self._widths]
        if batch == 1:
            packed = x.reshape(-1)
        else:
            packed = torch.cat([p.reshape(-1) for p in x.split(slabs.counts, dim=1)])
        del x
        flat = slabs.group.exchange(packed, sent, received)
        del packed
        parts = zip(flat.split(received), self._widths, strict=True)
        return torch.cat([part.view(batch, own, n) for part, n in parts], dim=2)


class SlabCirculant(Circulant):
    """:class:`~dustmap.linalg.circulant.Circulant`, vectors and spectrum in parts.

    Cost per product: two exchanges (:class:`SlabFFT`).

    Parameters
    ----------
    spectrum
        Eigenvalues of this rank's columns.
    fft
        The transform that diagonalises the matrix.
    """

    def __init__(self, spectrum: Float[Tensor, "planes q"], fft: SlabFFT) -> None:
        super().__init__(spectrum, fft.slabs.shape)
        self.shape = (fft.slabs.size, fft.slabs.size)
        self.domain = SlabSpace(fft.slabs)
        self.fft = fft

    @classmethod
    def from_slab(cls, column: Float[Tensor, " n"], fft: SlabFFT) -> SlabCirculant:
        """The circulant whose first column has this slab (float64 transform)."""
        # A copy: the imaginary part is let go.
        return cls(fft.forward(column.to(torch.float64)).real.clone(), fft)

    def largest(self) -> Tensor:
        spectrum, group = self.spectrum, self.fft.slabs.group
        here = spectrum.max() if spectrum.numel() else spectrum.new_tensor(-torch.inf)
        return group.gather(here.reshape(1), [1] * group.size).max()

    def matvec(self, x: Tensor) -> Tensor:
        return self.fft.inverse(self.fft.forward(x).mul_(self.spectrum))

    def full_counts(self) -> Tensor:
        half, last = self.fft.half_shape, self.fft.slabs.shape[-1]
        place = torch.arange(self.fft.cuts[-1])[self.fft.columns]
        if not half:
            return torch.ones_like(place)
        alone = (place % half[-1] == 0) | (2 * (place % half[-1]) == last)
        return torch.where(alone, 1, 2)

    def dropped_modes(self) -> int:
        return sum(self.fft.slabs.group.numbers(super().dropped_modes()))

    def _with(self, spectrum: Tensor) -> SlabCirculant:
        return SlabCirculant(spectrum, self.fft)
