r"""The same field from Fourier modes of the white noise: half of the transforms.

With F the orthonormal Fourier transform of every torus and :math:`A = F^{-1} a F` a
colouring costs two transforms. In the basis :math:`x = T \epsilon` of real and
imaginary parts of :math:`F \epsilon` it costs one, :math:`A T^\top x = F^{-1} a x`.
Of modes that are each other's conjugates one is kept, times :math:`\sqrt{2}`, except
where both lie in the half spectrum (``rfftn``): T is an isometry,
:math:`T^\top T = 1`, into slightly more numbers, and inner products stay as they are.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.grid import Torus
from dustmap.linalg.circulant import inverse_transform
from dustmap.whitening.base import GridWhitening


class Modes:
    """Fourier modes of white noise on one torus, as flat vectors of real numbers.

    ``pairs`` is how many modes of the full spectrum each one of the half spectrum
    stands for: two, or one in the first plane and in that of the Nyquist mode.
    """

    def __init__(self, torus: Torus, device: torch.device) -> None:
        *others, last = torus.shape
        self.torus = torus
        self.half = (*others, last // 2 + 1)
        pairs = torch.full(self.half[-1:], 2.0, dtype=torch.float64)
        pairs[0] = 1.0
        if last % 2 == 0:
            pairs[-1] = 1.0
        self.pairs = pairs.to(device)
        self.axes = tuple(range(-len(torus.shape), 0))

    @property
    def size(self) -> int:
        """Length of a vector."""
        return 2 * math.prod(self.half)

    def of(self, white: Float[Tensor, "*batch m"]) -> Tensor:
        """``T ε`` as a complex half spectrum."""
        return self.forward(self.unflat(white)).mul_(self.pairs.sqrt().to(white))

    def white(self, spectrum: Tensor) -> Float[Tensor, "*batch m"]:
        """``Tᵀ x``, the inverse of :meth:`of`."""
        return self.flat(self.inverse(spectrum / self.pairs.sqrt().to(spectrum.real)))

    def unflat(self, field: Float[Tensor, "*batch m"]) -> Tensor:
        """Vectors as arrays on the torus."""
        return field.reshape(*field.shape[:-1], *self.torus.shape)

    def flat(self, field: Tensor) -> Float[Tensor, "*batch m"]:
        """The inverse of :meth:`unflat`."""
        return field.flatten(-len(self.axes))

    def forward(self, field: Tensor) -> Tensor:
        """The half spectrum of arrays on the torus, without the factors √2."""
        return torch.fft.rfftn(field, dim=self.axes, norm="ortho")

    def inverse(self, spectrum: Tensor) -> Tensor:
        """Arrays on the torus of these half spectra, without the factors √2."""
        return inverse_transform(spectrum, self.torus.shape, norm="ortho")

    def unpacked(self, x: Float[Tensor, "*batch p"]) -> Tensor:
        """The complex half spectrum in the same memory, with the factors √2."""
        return torch.view_as_complex(x.reshape(*x.shape[:-1], *self.half, 2))

    def packed(self, spectrum: Tensor) -> Float[Tensor, "*batch p"]:
        """The inverse of :meth:`unpacked`."""
        return torch.view_as_real(spectrum).flatten(-len(self.axes) - 1)

    def longest(self, fraction: float) -> Int[Tensor, " k"]:
        """Places of the modes below this fraction of the Nyquist mode on every axis."""
        kept = torch.ones(1, dtype=torch.bool)
        for axis, (n, stored) in enumerate(
            zip(self.torus.shape, self.half, strict=True)
        ):
            number = torch.arange(stored)
            if axis < len(self.half) - 1:
                number = torch.minimum(number, n - number)
            kept = kept[..., None] & (number <= fraction * n / 2)
        return torch.nonzero(kept[0][..., None].expand(*self.half, 2).flatten())[:, 0]


class SpectralWhitening(GridWhitening, Protocol):
    """A whitening on tori that takes its white noise as Fourier modes, too."""

    @property
    def modes(self) -> tuple[Modes, ...]:
        """Those of ε, of one torus after another."""
        ...

    def colour_modes(self, spectra: list[Tensor]) -> Float[Tensor, "*batch f"]:
        """``A Tᵀ x``, x as half spectra with the factors √2."""
        ...

    def colour_modes_transpose(self, field: Float[Tensor, "*batch f"]) -> list[Tensor]:
        """``T Aᵀ g``, as half spectra with the factors √2."""
        ...


class ModeWhitening:
    """Fourier modes x of ε in place of ε: ``field = A Tᵀ x``.

    Vectors that are no ``T ε`` for any ε lose what is none in :meth:`white`; no field
    depends on it.
    """

    def __init__(self, whitening: SpectralWhitening) -> None:
        self.whitening = whitening
        self.levels = whitening.levels
        self.refinement = whitening.refinement
        self.dtype = whitening.dtype
        self.device = whitening.device
        self.kernel = whitening.kernel

    @property
    def size(self) -> int:
        """Length of x."""
        return sum(self._sizes)

    @property
    def white_size(self) -> int:
        """Length of ε."""
        return self.whitening.size

    @property
    def fine_size(self) -> int:
        """Length of the field."""
        return self.whitening.fine_size

    @property
    def invertible(self) -> bool:
        """Whether a field has an ε."""
        return self.whitening.invertible

    def colour(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch f"]:
        """``A Tᵀ x``."""
        parts = zip(self.whitening.modes, eps.split(self._sizes, dim=-1), strict=True)
        return self.whitening.colour_modes([m.unpacked(x) for m, x in parts])

    def colour_transpose(
        self, field: Float[Tensor, "*batch f"]
    ) -> Float[Tensor, "*batch p"]:
        """``T Aᵀ g``."""
        spectra = self.whitening.colour_modes_transpose(field)
        return self._joined(spectra)

    def whiten(self, values: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch p"]:
        """The modes of a field's ε."""
        return self.modes(self.whitening.whiten(values))

    def modes(self, eps: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch p"]:
        """``T ε``."""
        sizes = [modes.torus.size for modes in self.whitening.modes]
        parts = zip(self.whitening.modes, eps.split(sizes, dim=-1), strict=True)
        return self._joined([modes.of(white) for modes, white in parts])

    def white(self, x: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch m"]:
        """``Tᵀ x``."""
        parts = zip(self.whitening.modes, x.split(self._sizes, dim=-1), strict=True)
        return torch.cat([m.white(m.unpacked(part)) for m, part in parts], dim=-1)

    def longest(self, fraction: float) -> Int[Tensor, " k"]:
        """Places in x of the modes below this fraction of the Nyquist modes."""
        found, before = [], 0
        for modes in self.whitening.modes:
            found.append(before + modes.longest(fraction))
            before += modes.size
        return torch.cat(found).to(self.device)

    def _joined(self, spectra: list[Tensor]) -> Tensor:
        parts = zip(self.whitening.modes, spectra, strict=True)
        packed = [modes.packed(x) for modes, x in parts]
        return packed[0] if len(packed) == 1 else torch.cat(packed, dim=-1)

    @property
    def _sizes(self) -> list[int]:
        return [modes.size for modes in self.whitening.modes]
