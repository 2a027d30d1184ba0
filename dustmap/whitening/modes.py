r"""White noise as Fourier modes on one or several tori: the definition of ε.

With F the orthonormal Fourier transform of a torus and :math:`A = F^{-1} a F` a
colouring of white noise ξ costs two transforms. In the basis :math:`\epsilon = T \xi`
of real and imaginary parts of :math:`F \xi` it costs one,
:math:`A T^\top \epsilon = F^{-1} a \epsilon`. One mode of each conjugate pair is kept,
times :math:`\sqrt{2}`, except where both lie in the half spectrum (``rfftn``): T is an
isometry, :math:`T^\top T = 1`, into slightly more numbers. If these are independent
standard normals, so are the :math:`T^\top \epsilon`, on which alone fields depend.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.grid import Torus
from dustmap.kernels import Radial
from dustmap.linalg.circulant import conjugates, inverse_transform
from dustmap.shapes import Device, Eps, EpsBatch
from dustmap.tori import Tori
from dustmap.whitening.bands import variance_below

# A field at the points of all tori.
Field = Float[Tensor, "*b f"]
# Observations constrain mostly modes up to this fraction of the Nyquist mode along
# every axis: a preconditioner of 1/8 of all numbers saves as many iterations as one of
# all.
LEADING = 0.5


class TorusModes:
    """Fourier modes on one torus, as complex half spectra.

    ``pairs`` is the number of modes of the full spectrum that each mode of the half
    spectrum represents.
    """

    def __init__(self, torus: Torus, dtype: torch.dtype, device: torch.device) -> None:
        *others, last = torus.shape
        self.torus = torus
        self.half = (*others, last // 2 + 1)
        self.pairs = conjugates(last).to(device, torch.float64)
        self._factor = self.pairs.sqrt().to(dtype)
        self.axes = tuple(range(-len(torus.shape), 0))
        # Real numbers that represent the modes.
        self.size = 2 * math.prod(self.half)

    def of(self, white: Float[Tensor, "*batch m"]) -> Tensor:
        """Return ``T ξ``."""
        return self.forward(self.unflat(white)).mul_(self._factor)

    def unflat(self, field: Float[Tensor, "*batch m"]) -> Tensor:
        """Return vectors as arrays on the torus."""
        return field.unflatten(-1, self.torus.shape)

    def flat(self, field: Tensor) -> Float[Tensor, "*batch m"]:
        """Return arrays on the torus as vectors."""
        return field.flatten(-len(self.axes))

    def forward(self, field: Tensor) -> Tensor:
        """Return the half spectrum of arrays on the torus, without the factors √2."""
        return torch.fft.rfftn(field, dim=self.axes, norm="ortho")

    def inverse(self, spectrum: Tensor) -> Tensor:
        """Return arrays on the torus of half spectra without the factors √2."""
        return inverse_transform(spectrum, self.torus.shape, norm="ortho")

    def longest(self, fraction: float) -> Int[Tensor, " k"]:
        """Return indices of modes below this fraction of Nyquist's on every axis."""
        kept = torch.ones(1, dtype=torch.bool)
        for n, stored in zip(self.torus.shape, self.half, strict=True):
            number = torch.arange(stored)
            number = torch.minimum(number, n - number)
            kept = kept[..., None] & (number <= fraction * n / 2)
        return torch.nonzero(kept[0][..., None].expand(*self.half, 2).flatten())[:, 0]


class Modes:
    """Fourier modes on several tori in turn, in one flat vector ε of length ``size``.

    ``parts`` holds the modes of every torus. Fields do not depend on components of ε
    outside the image of T.
    """

    def __init__(
        self, tori: Sequence[Torus], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.parts = tuple(TorusModes(torus, dtype, device) for torus in tori)
        self.size = sum(part.size for part in self.parts)
        self._dtype = dtype
        self._device = device

    def spectra(self, eps: Float[Tensor, "*batch p"]) -> list[Tensor]:
        """Return complex half spectra in the same memory, with the factors √2."""
        split = eps.split([part.size for part in self.parts], dim=-1)
        return [
            torch.view_as_complex(x.unflatten(-1, (*part.half, 2)))
            for part, x in zip(self.parts, split, strict=True)
        ]

    def joined(self, spectra: Sequence[Tensor]) -> Float[Tensor, "*batch p"]:
        """Return ε from spectra, the inverse of :meth:`spectra`."""
        flat = [
            torch.view_as_real(x).flatten(-len(part.axes) - 1)
            for part, x in zip(self.parts, spectra, strict=True)
        ]
        return flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)

    def of(self, white: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch p"]:
        """Return ``T ξ`` of white noise at the points of all tori."""
        split = white.split([part.torus.size for part in self.parts], dim=-1)
        return self.joined([m.of(x) for m, x in zip(self.parts, split, strict=True)])

    def white_noise(self, generator: np.random.Generator) -> Eps:
        """Draw ε: standard normals at the points of all tori, transformed."""
        count = sum(part.torus.size for part in self.parts)
        white = torch.from_numpy(generator.standard_normal(count))
        return self.of(white.to(dtype=self._dtype, device=self._device))

    def longest(self, fraction: float) -> Int[Tensor, " k"]:
        """Return indices in ε of the modes below this fraction of the Nyquist modes."""
        found, before = [], 0
        for part in self.parts:
            found.append(before + part.longest(fraction))
            before += part.size
        return torch.cat(found).to(self._device)


class GridWhitening(ABC):
    """Map from Fourier modes ε of white noise to a field on tori, without a solve.

    ``field = A ε``; :attr:`modes` describes the layout of ε, of P numbers (``size``).

    Parameters
    ----------
    kernel
        The covariance of the field.
    tori
        Tori of the field.
    noise
        Tori of the white noise.
    cut
        If positive, the field has the band of a Matérn covariance with times from
        :math:`t = (c h)^2` on, where c is the cut and h the largest step along an axis,
        in lengthscales (`dustmap.whitening.bands`).
    dtype, device
        Precision and device of products; spectra are computed in float64.
    """

    def __init__(
        self,
        kernel: Radial,
        tori: Tori,
        noise: Sequence[Torus],
        *,
        cut: float = 0.0,
        dtype: torch.dtype,
        device: Device,
    ) -> None:
        self.kernel = kernel
        self.tori = tori
        self.cut = cut
        self.dtype = dtype
        self.device = torch.device(device)
        self.modes = Modes(noise, dtype, self.device)
        self.size = self.modes.size

    @property
    def unresolved(self) -> list[float]:
        """The variance of the field below the cut of every grid."""
        spacings = [torus.grid.spacing for torus in self.tori]
        return [variance_below(self.kernel, each, self.cut) for each in spacings]

    @abstractmethod
    def colour(self, eps: EpsBatch) -> Field:
        """Return ``A ε``."""

    @abstractmethod
    def colour_transpose(self, field: Field) -> EpsBatch:
        """Return ``Aᵀ g``."""
