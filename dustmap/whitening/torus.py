r"""Whitening on a torus: the inducing points fill it, and no solve is needed.

With the periodically summed kernel ``ε = C^{-1/2} u`` is diagonal in Fourier space.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid, Torus, smooth_size
from dustmap.kernels import IMAGE_TOLERANCE, Radial
from dustmap.linalg.circulant import Circulant, inverse_transform
from dustmap.memory import rows_within
from dustmap.shapes import Device, EpsBatch, EpsDraws
from dustmap.tori import Tori
from dustmap.whitening.bands import (
    band_covariance,
    band_spectrum,
    correlated_to,
    shortest_time,
)
from dustmap.whitening.modes import Field, GridWhitening


def padded_torus(grid: Grid, kernel: Radial, wrap_tolerance: float) -> Torus:
    """Return the smallest torus with wide enough gaps between the box's faces.

    The gap per axis is the displacement at which the kernel has fallen to
    ``wrap_tolerance · k(0)``; sizes are rounded up to 2-3-5-7 numbers.
    """
    reach = correlated_to(kernel, wrap_tolerance)
    scales = kernel.lengthscale.detach().expand(grid.dimension).tolist()
    shape = tuple(
        smooth_size(n - 1 + math.ceil(reach * scale / h))
        for n, h, scale in zip(grid.shape, grid.spacing, scales, strict=True)
    )
    return Torus(grid=grid, shape=shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusReport:
    """Effects of the torus: numbers of dropped modes, and wrap error over ``k(0)``."""

    shape: tuple[int, ...]
    dropped_modes: int
    dropped_fine_modes: int
    wrap_error: float


class TorusWhitening(GridWhitening):
    r"""Map from modes ε of white noise ξ on a torus to the field on a finer torus.

    ``A ε = C^{1/2} ξ`` with ``ε = T ξ`` takes one FFT per vector. With a refinement it
    is ``E[f_fine | u = C^{1/2} ξ] = C_f Z C^{-1/2} ξ``, where Z puts a vector on every
    r-th point of the fine torus and C_f has the same periodised kernel: two more FFTs,
    of the fine torus.

    Parameters
    ----------
    kernel
        A kernel without periods; it is periodised here.
    torus
        Torus of ξ.
    refinement
        r, the factor by which the field is finer than the inducing points.
    cut
        The shortest scale of the field, in steps of the torus.
    dtype, device
        Precision and device of products; spectra are computed in float64.
    image_tolerance
        Images of the kernel below this fraction of ``k(0)`` are omitted; by default the
        precision of the products.
    """

    def __init__(
        self,
        kernel: Radial,
        torus: Torus,
        *,
        refinement: int = 1,
        cut: float = 0.0,
        dtype: torch.dtype = torch.float64,
        device: Device = "cpu",
        image_tolerance: float | None = None,
    ) -> None:
        if refinement < 1:
            raise ValueError(f"refinement must be at least 1, got {refinement}")
        super().__init__(
            kernel, Tori(tori=(torus,)), (torus,), cut=cut, dtype=dtype, device=device
        )
        self.torus = torus
        self.refinement = refinement
        # The number of images grows as the cube of their distance: for a torus of four
        # lengthscales, single precision needs a fifth as many as double precision.
        precise = IMAGE_TOLERANCE if dtype == torch.float64 else 1e-9
        self.image_tolerance = image_tolerance or precise
        self._refined: dict[int, TorusWhitening] = {}
        self.fine_shape = tuple(n * refinement for n in torus.shape)
        self.coarse = coarse = self._circulant(1)
        self.fine = fine = coarse if refinement == 1 else self._circulant(refinement)
        self._every = (..., *(slice(None, None, refinement),) * len(torus.shape))
        self.report = TorusReport(
            shape=torus.shape,
            dropped_modes=coarse.dropped_modes(),
            dropped_fine_modes=fine.dropped_modes(),
            wrap_error=self._wrap_gap() / float(kernel.variance),
        )
        # Roots for modes with the factors √2: from them, and to them.
        exponent = 0.5 if refinement == 1 else -0.5
        root = coarse.power(exponent).to(dtype, self.device).spectrum
        factor = self.modes.parts[0].pairs.sqrt().to(dtype)
        self._root, self._root_transpose = root / factor, root * factor
        self._fine_root = fine.power(0.5).to(dtype, self.device)
        self._inverse_root = coarse.power(-0.5).to(dtype, self.device)
        self._fine = fine.to(dtype, self.device)

    def _circulant(self, refinement: int) -> Circulant:
        """Return the periodised covariance on the torus with this refinement."""
        shape = tuple(n * refinement for n in self.torus.shape)
        if self.cut:
            time = shortest_time(self.kernel, self.torus.grid.spacing, self.cut)
            torus = Torus(grid=self.torus.grid.refined(refinement), shape=shape)
            spectrum = band_spectrum(self.kernel, torus, time, math.inf)
            return Circulant(spectrum.to(self.device), shape)
        periodic = self.kernel.periodised(self.torus.periods, self.image_tolerance)
        # Non-negative lags.
        axes = [
            torch.arange(n // 2 + 1, dtype=torch.float64, device=self.device)
            * (h / refinement)
            for n, h in zip(shape, self.torus.grid.spacing, strict=True)
        ]
        return Circulant.from_first_column(_even_column(periodic, axes, shape))

    def _wrap_gap(self) -> float:
        """Return ``max |k_periodic − k|`` over lags within the box."""
        grid, shape = self.torus.grid, self.torus.shape
        axes = [
            h * torch.arange(n, dtype=torch.float64, device=self.device)
            for n, h in zip(grid.shape, grid.spacing, strict=True)
        ]
        column = inverse_transform(self.coarse.spectrum.to(torch.complex128), shape)
        block = column[tuple(slice(0, n) for n in grid.shape)]
        return float((block - _even_column(self._plain, axes, grid.shape)).abs().max())

    def _plain(self, lags: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
        """Return the covariance that the torus periodises."""
        if not self.cut:
            return self.kernel(lags)
        time = shortest_time(self.kernel, self.torus.grid.spacing, self.cut)
        scaled = lags / self.kernel.lengthscale.detach().to(lags)
        distance = torch.linalg.vector_norm(scaled, dim=-1)
        return band_covariance(self.kernel, time, math.inf, distance)

    def colour(self, eps: EpsBatch) -> Field:
        """Return ``A ε``: the conditional mean of the field on the fine torus."""
        (modes,), (spectrum,) = self.modes.parts, self.modes.spectra(eps)
        field = modes.inverse(spectrum * self._root)
        if self.refinement == 1:
            return modes.flat(field)
        spread = eps.new_zeros(*eps.shape[:-1], *self.fine_shape)
        spread[self._every] = field
        return self._fine.matvec(modes.flat(spread))

    def colour_transpose(self, field: Field) -> EpsBatch:
        """Return ``Aᵀ g``."""
        (modes,) = self.modes.parts
        if self.refinement > 1:
            fine = self._fine.matvec(field).unflatten(-1, self.fine_shape)
            field = modes.flat(fine[self._every])
        spectrum = modes.forward(modes.unflat(field)).mul_(self._root_transpose)
        return self.modes.joined([spectrum])

    def prior_draw(
        self, generator: torch.Generator, count: int = 1
    ) -> tuple[Float[Tensor, "s f"], EpsDraws]:
        """Draw fields on the fine torus; also return the ε of their coarse points."""
        shape = (count, math.prod(self.fine_shape))
        white = torch.randn(shape, generator=generator, dtype=self.dtype)
        field = self._fine_root.matvec(white.to(self.device))
        grid = field.reshape(count, *self.fine_shape)
        coarse = grid[self._every].reshape(count, -1)
        return field, self.modes.of(self._inverse_root.matvec(coarse))

    def refined(self, refinement: int) -> TorusWhitening:
        """Return the same ε on another refinement."""
        if refinement == self.refinement:
            return self
        # Cached: spectra take seconds on large grids, and every prediction needs them.
        if refinement not in self._refined:
            self._refined[refinement] = TorusWhitening(
                self.kernel,
                self.torus,
                refinement=refinement,
                cut=self.cut,
                dtype=self.dtype,
                device=self.device,
                image_tolerance=self.image_tolerance,
            )
        return self._refined[refinement]


def _even_column(
    kernel: Callable[[Tensor], Tensor],
    axes: list[Float[Tensor, " _"]],
    shape: tuple[int, ...],
) -> Float[Tensor, "*n"]:
    """Return ``k`` on the mesh of these lags, mirroring axes of non-negative lags.

    Kernels here are even along every axis: ``2^{-D}`` of the evaluations suffice.
    """
    column = torch.empty(shape, dtype=torch.float64, device=axes[0].device)
    # The kernel has some dozen temporary numbers for each lag.
    planes = rows_within(96 * math.prod(len(axis) for axis in axes[1:]), 2**25)
    for place, first in enumerate(axes[0].split(planes)):
        mesh = torch.meshgrid(first, *axes[1:], indexing="ij")
        values = kernel(torch.stack(mesh, dim=-1))
        for axis, n in enumerate(shape[1:], start=1):
            if values.shape[axis] < n:
                mirrored = values.narrow(axis, 1, (n - 1) // 2).flip(axis)
                values = torch.cat([values, mirrored], dim=axis)
        column[place * planes : place * planes + len(first)] = values
    if len(axes[0]) < shape[0]:
        column[len(axes[0]) :] = column[1 : (shape[0] + 1) // 2].flip(0)
    return column
