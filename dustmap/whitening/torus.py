r"""Whitening on a torus: the inducing points fill it, and no solve is needed.

With the periodically summed kernel ``ε = C^{-1/2} u`` is diagonal in Fourier space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid, Torus, smooth_size
from dustmap.kernels import IMAGE_TOLERANCE, Kernel, Radial
from dustmap.linalg.circulant import Circulant
from dustmap.linalg.space import WHOLE, VectorSpace

# Displacements at which a kernel is evaluated at once.
_LAGS = 2**22


def padded_torus(grid: Grid, kernel: Radial, wrap_tolerance: float) -> Torus:
    """The smallest torus whose gap between opposite faces of the box is long enough.

    The gap per axis is the displacement at which the kernel has fallen to
    ``wrap_tolerance · k(0)``; sizes are rounded up to 2-3-5-7 numbers.
    """
    reach = kernel.decay(wrap_tolerance)
    scales = kernel.lengthscale.detach().expand(grid.dimension).tolist()
    shape = tuple(
        smooth_size(n - 1 + math.ceil(reach * scale / h))
        for n, h, scale in zip(grid.shape, grid.spacing, scales, strict=True)
    )
    return Torus(grid=grid, shape=shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusReport:
    """What the torus changed: counts of dropped modes, wrap error over ``k(0)``."""

    shape: tuple[int, ...]
    dropped_modes: int
    dropped_fine_modes: int
    wrap_error: float


class TorusWhitening:
    r"""White ε on the coarse torus to the field's conditional mean on a finer one.

    ``A ε = E[f_fine | u = C^{1/2} ε] = F_f⁻¹[ D_f ⊙ tile_r( D_c^{-1/2} ⊙ F_c ε ) ]``
    with one periodised kernel in ``D_f`` and ``D_c``. For ``refinement = 1`` it is
    ``C^{1/2} ε``. Cost per vector: one coarse and one fine FFT.

    Parameters
    ----------
    kernel
        A kernel without periods; it is periodised here.
    torus
        Where ε lives.
    refinement
        r, how many times finer the field is than the inducing points.
    dtype, device
        Of the products; spectra are computed in float64.
    image_tolerance
        Images of the kernel below this share of ``k(0)`` are left out; what the
        products' precision can tell if ``None``.
    """

    # Where ε is: here as a whole.
    space: VectorSpace = WHOLE

    def __init__(
        self,
        kernel: Kernel,
        torus: Torus,
        *,
        refinement: int = 1,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        image_tolerance: float | None = None,
    ) -> None:
        if refinement < 1:
            raise ValueError(f"refinement must be at least 1, got {refinement}")
        self.kernel = kernel
        self.torus = torus
        self.refinement = refinement
        self.dtype = dtype
        self.device = torch.device(device)
        self.image_tolerance = image_tolerance or default_image_tolerance(dtype)
        self.periodic = kernel.periodised(torus.periods, self.image_tolerance)
        self._refined: dict[int, TorusWhitening] = {}
        self._dims = tuple(range(-len(torus.shape), 0))
        self.fine_shape = tuple(n * refinement for n in torus.shape)
        column = _even_column(self.periodic, torus, 1, self.device)
        coarse = fine = Circulant.from_first_column(column)
        if refinement > 1:
            refined = _even_column(self.periodic, torus, refinement, self.device)
            fine = Circulant.from_first_column(refined)
        self.report = TorusReport(
            shape=torus.shape,
            dropped_modes=coarse.dropped_modes(),
            dropped_fine_modes=fine.dropped_modes(),
            wrap_error=self._wrap_error(column),
        )
        self.coarse = coarse
        self.fine = fine
        self._root = coarse.power(0.5).to(dtype, self.device)
        self._fine_root = fine.power(0.5).to(dtype, self.device)
        inverse_root = coarse.power(-0.5)
        self._inverse_root = inverse_root.to(dtype, self.device)
        if refinement > 1:
            self._full_inverse_root = _full_spectrum(inverse_root).to(dtype)
            self._fine_spectrum = fine.spectrum.to(dtype)

    @property
    def size(self) -> int:
        """Length of ε."""
        return self.torus.size

    @property
    def fine_size(self) -> int:
        """Length of the field."""
        return math.prod(self.fine_shape)

    def colour(self, eps: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch f"]:
        """``A ε``: the conditional mean of the field on the fine torus."""
        if self.refinement == 1:
            return self._root.matvec(eps)
        field = eps.reshape(*eps.shape[:-1], *self.torus.shape)
        modes = torch.fft.fftn(field, dim=self._dims) * self._full_inverse_root
        repeats = (self.refinement,) * len(self._dims)
        tiled = modes.repeat(*(1,) * (modes.ndim - len(repeats)), *repeats)
        half = tiled[..., : self.fine_shape[-1] // 2 + 1]
        fine = torch.fft.irfftn(
            half * self._fine_spectrum, s=self.fine_shape, dim=self._dims
        )
        return fine.reshape(*eps.shape[:-1], -1)

    def colour_transpose(
        self, field: Float[Tensor, "*batch f"]
    ) -> Float[Tensor, "*batch m"]:
        """``Aᵀ g``: the fine spectrum's aliases are summed onto the coarse modes."""
        if self.refinement == 1:
            return self._root.matvec(field)
        grid = field.reshape(*field.shape[:-1], *self.fine_shape)
        modes = torch.fft.rfftn(grid, dim=self._dims) * self._fine_spectrum
        folded = self._folded(modes) * self._full_inverse_root
        eps = torch.fft.ifftn(folded, dim=self._dims).real
        scale = self.refinement ** -len(self._dims)
        return (scale * eps).reshape(*field.shape[:-1], -1)

    def whiten(self, values: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """``ε = C^{-1/2} u`` for values on the coarse torus."""
        return self._inverse_root.matvec(values)

    def prior_draw(
        self, generator: torch.Generator, count: int = 1
    ) -> tuple[Float[Tensor, "s f"], Float[Tensor, "s m"]]:
        """Draws of the field on the fine torus, and the ε of its coarse points."""
        shape = (count, self.fine_size)
        white = torch.randn(shape, generator=generator, dtype=self.dtype)
        field = self._fine_root.matvec(white.to(self.device))
        return field, self.whiten(self.subsample(field))

    def subsample(self, field: Float[Tensor, "*batch f"]) -> Float[Tensor, "*batch m"]:
        """The values of a fine field at the inducing points."""
        grid = field.reshape(*field.shape[:-1], *self.fine_shape)
        every = (slice(None, None, self.refinement),) * len(self._dims)
        return grid[(..., *every)].reshape(*field.shape[:-1], -1)

    def refined(self, refinement: int) -> TorusWhitening:
        """The same ε seen on another refinement."""
        if refinement == self.refinement:
            return self
        # The spectra take seconds on large grids, and every prediction asks for them.
        if refinement not in self._refined:
            self._refined[refinement] = TorusWhitening(
                self.kernel,
                self.torus,
                refinement=refinement,
                dtype=self.dtype,
                device=self.device,
                image_tolerance=self.image_tolerance,
            )
        return self._refined[refinement]

    def with_kernel(self, kernel: Kernel) -> TorusWhitening:
        """The same ε (torus, refinement, precision) under another kernel."""
        return TorusWhitening(
            kernel,
            self.torus,
            refinement=self.refinement,
            dtype=self.dtype,
            device=self.device,
            image_tolerance=self.image_tolerance,
        )

    def _folded(self, modes: Tensor) -> Tensor:
        """Σ over aliases of a half spectrum, as a full complex coarse spectrum."""
        r, batch = self.refinement, modes.shape[: modes.ndim - len(self._dims)]
        coarse = self.torus.shape
        for axis, n in enumerate(coarse[:-1]):
            place = len(batch) + axis
            split = modes.reshape(*modes.shape[:place], r, n, *modes.shape[place + 1 :])
            modes = split.sum(dim=place)
        # The other half of the last axis: conjugates at the negated other indices.
        last = self.fine_shape[-1]
        mirrored = modes[..., 1 : (last + 1) // 2].conj().flip(-1)
        for axis in range(len(coarse) - 1):
            place = len(batch) + axis
            mirrored = mirrored.flip(place).roll(1, dims=place)
        full = torch.cat([modes, mirrored], dim=-1)
        return full.reshape(*full.shape[:-1], r, coarse[-1]).sum(dim=-2)

    def _wrap_error(self, column: Tensor) -> float:
        grid = self.torus.grid
        block = tuple(slice(0, n) for n in grid.shape)
        steps = [
            h * torch.arange(n, dtype=torch.float64, device=self.device)
            for n, h in zip(grid.shape, grid.spacing, strict=True)
        ]
        plain = _on_mesh(self.kernel, steps)
        return float((column[block] - plain).abs().max() / plain.reshape(-1)[0])


def default_image_tolerance(dtype: torch.dtype) -> float:
    """The images of a kernel that products in this precision can tell.

    Their number grows as the cube of the distance: for a torus of four lengthscales
    single precision needs a fifth of those of double precision.
    """
    return IMAGE_TOLERANCE if dtype == torch.float64 else 1e-9


def _even_column(
    kernel: Kernel, torus: Torus, refinement: int, device: torch.device
) -> Float[Tensor, "*n"]:
    """``k`` at all lags of a torus from the non-negative ones.

    Kernels here are even along every axis: ``2^{-D}`` of the evaluations are enough.
    """
    column = _on_mesh(kernel, torus.half_lags(refinement, device))
    for axis, n in enumerate(torus.shape):
        mirrored = column.narrow(axis, 1, (n * refinement - 1) // 2).flip(axis)
        column = torch.cat([column, mirrored], dim=axis)
    return column


def _on_mesh(kernel: Kernel, axes: list[Float[Tensor, " _"]]) -> Float[Tensor, "*mesh"]:
    """``k`` on the mesh of these displacements, some planes at a time."""
    planes = max(1, _LAGS // math.prod(len(axis) for axis in axes[1:]))
    parts = []
    for first in axes[0].split(planes):
        mesh = torch.meshgrid(first, *axes[1:], indexing="ij")
        parts.append(kernel(torch.stack(mesh, dim=-1)))
    return torch.cat(parts)


def _full_spectrum(circulant: Circulant) -> Tensor:
    """All eigenvalues (real, even) from the half spectrum."""
    last = circulant.grid_shape[-1]
    half = circulant.spectrum
    mirrored = half[..., 1 : (last + 1) // 2].flip(-1)
    for axis in range(len(circulant.grid_shape) - 1):
        mirrored = mirrored.flip(axis).roll(1, dims=axis)
    return torch.cat([half, mirrored], dim=-1)
