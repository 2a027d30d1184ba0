r"""Multilevel circulant matrices: diagonal in Fourier space.

``C = F⁻¹ diag(F c) F`` with ``c`` the first column on a periodic grid (HIP-GP,
eq. 17). With real even ``c`` the spectrum is real; powers of C have its powers.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.operator import SymmetricOperator

# Modes below this fraction of the largest are rounding error of a smooth kernel.
DROP = 1e-14


class Circulant(SymmetricOperator):
    """A symmetric multilevel circulant matrix.

    ``spectrum`` is the half spectrum (``rfftn`` layout) of its eigenvalues; vectors are
    the points of a periodic grid of ``grid_shape`` in C order.
    """

    def __init__(self, spectrum: Tensor, grid_shape: tuple[int, ...]) -> None:
        size = math.prod(grid_shape)
        self.shape = (size, size)
        self.dtype = spectrum.dtype
        self.device = spectrum.device
        self.spectrum = spectrum
        self.grid_shape = tuple(grid_shape)

    @classmethod
    def from_first_column(cls, column: Float[Tensor, "*n"]) -> Circulant:
        """Return the circulant whose first column is ``column`` (float64 transform)."""
        spectrum = torch.fft.rfftn(column.to(torch.float64)).real
        return cls(spectrum, tuple(column.shape))

    def power(self, exponent: float) -> Circulant:
        """Return ``C^p`` on the modes above ``1e-14 max D``, zero on the others."""
        kept = self.spectrum > DROP * self.spectrum.max()
        powered = torch.where(kept, self.spectrum, 1.0) ** exponent
        return Circulant(torch.where(kept, powered, 0.0), self.grid_shape)

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Circulant:
        """Return the same matrix with another dtype or on another device."""
        return Circulant(self.spectrum.to(dtype=dtype, device=device), self.grid_shape)

    def matvec(self, x: Tensor) -> Tensor:
        dims = tuple(range(-len(self.grid_shape), 0))
        field = x.reshape(*x.shape[:-1], *self.grid_shape)
        modes = torch.fft.rfftn(field, dim=dims)
        # Multiply in place, unless derivatives need the operand: on large grids a new
        # array costs as much as the product.
        if self.spectrum.requires_grad or modes.real.dtype != self.spectrum.dtype:
            modes = modes * self.spectrum
        else:
            modes.mul_(self.spectrum)
        return inverse_transform(modes, self.grid_shape).reshape(x.shape)

    def dropped_modes(self) -> int:
        """Return the number of eigenvalues that :meth:`power` replaces by zero."""
        dropped = (self.spectrum <= DROP * self.spectrum.max()).cpu()
        return int((conjugates(self.grid_shape[-1]) * dropped).sum())


def conjugates(last: int) -> Int[Tensor, " n"]:
    """Return the number of full-spectrum modes that each stored mode represents.

    ``last`` is the length of the last axis, along which the spectrum is halved.
    """
    counts = torch.full((last // 2 + 1,), 2)
    counts[0] = 1
    if last % 2 == 0:
        counts[-1] = 1
    return counts


def inverse_transform(
    spectrum: Tensor, shape: tuple[int, ...], *, norm: str = "backward"
) -> Tensor:
    """Return ``irfftn`` over the last axes of half spectra.

    On a CPU a single field goes axis by axis: the transform of three axes at once takes
    1.4 to 4 times as long. Several fields take 0.7 times as long together, with all but
    the last axis at once, up to some four million points; eight of 144 x 144 x 56 at
    once take 1.5 times as long.
    """
    axes = tuple(range(-len(shape), 0))
    if spectrum.device.type != "cpu":
        return torch.fft.irfftn(spectrum, s=shape, dim=axes, norm=norm)
    batch = math.prod(spectrum.shape[: -len(shape)])
    together = max(1, 2**22 // math.prod(shape))
    if batch > together:
        parts = spectrum.reshape(batch, *spectrum.shape[-len(shape) :])
        found = spectrum.real.new_empty(batch, *shape)
        for out, part in zip(found.split(together), parts.split(together), strict=True):
            out.copy_(inverse_transform(part, shape, norm=norm))
        return found.reshape(*spectrum.shape[: -len(shape)], *shape)
    if batch > 1 and len(axes) > 1:
        spectrum = torch.fft.ifftn(spectrum, dim=axes[:-1], norm=norm)
    else:
        for axis in axes[:-1]:
            spectrum = torch.fft.ifft(spectrum, dim=axis, norm=norm)
    return torch.fft.irfft(spectrum, n=shape[-1], dim=-1, norm=norm)
