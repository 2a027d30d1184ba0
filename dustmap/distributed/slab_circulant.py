"""Multilevel circulant matrices on a grid that is shared out in slabs."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.slab_fft import SlabFFT
from dustmap.distributed.slabs import SlabSpace
from dustmap.linalg.circulant import DROP
from dustmap.linalg.operator import LinearOperator


class SlabCirculant(LinearOperator):
    """As :class:`~dustmap.linalg.circulant.Circulant`, vectors and spectrum in parts.

    Cost per product: two exchanges (:class:`SlabFFT`).

    Parameters
    ----------
    spectrum
        Eigenvalues of this rank's columns.
    fft
        The transform that diagonalises the matrix.
    """

    def __init__(self, spectrum: Float[Tensor, "planes q"], fft: SlabFFT) -> None:
        size = fft.slabs.size
        self.shape = (size, size)
        self.dtype = spectrum.dtype
        self.device = spectrum.device
        self.domain = SlabSpace(fft.slabs)
        self.spectrum = spectrum
        self.fft = fft

    @classmethod
    def from_first_column(
        cls, column: Float[Tensor, " n"], fft: SlabFFT
    ) -> SlabCirculant:
        """The circulant whose first column has this slab (float64 transform)."""
        # A copy: the imaginary part is let go.
        return cls(fft.forward(column.to(torch.float64)).real.clone(), fft)

    def largest(self) -> float:
        """The largest eigenvalue of all."""
        spectrum, group = self.spectrum, self.fft.slabs.group
        here = spectrum.max() if spectrum.numel() else spectrum.new_tensor(-torch.inf)
        return float(group.gather(here.reshape(1), [1] * group.size).max())

    def power(self, exponent: float) -> SlabCirculant:
        """``C^p`` on the modes above ``1e-14 max D``, zero on the others."""
        kept = self.spectrum > DROP * self.largest()
        safe = torch.where(kept, self.spectrum, 1.0)
        powered = torch.where(kept, safe**exponent, 0.0)
        return SlabCirculant(powered, self.fft)

    def to(self, dtype: torch.dtype, device: torch.device | str) -> SlabCirculant:
        """The same matrix in another precision or place."""
        return SlabCirculant(self.spectrum.to(dtype=dtype, device=device), self.fft)

    def matvec(self, x: Tensor) -> Tensor:
        return self.fft.product(x, self.spectrum)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.matvec(y)

    def dropped_modes(self) -> int:
        """Number of eigenvalues that :meth:`power` replaces by zero."""
        half, last = self.fft.half_shape, self.fft.slabs.shape[-1]
        # How many eigenvalues of the full spectrum a column's entries are.
        counts = torch.ones(self.fft.cuts[-1], dtype=torch.int64)
        if half:
            place = torch.arange(len(counts)) % half[-1]
            alone = (place == 0) | (2 * place == last)
            counts = torch.where(alone, 1, 2)
        dropped = (self.spectrum <= DROP * self.largest()).cpu().sum(dim=0)
        here = int((dropped * counts[self.fft.columns]).sum())
        return sum(self.fft.slabs.group.numbers(here))
