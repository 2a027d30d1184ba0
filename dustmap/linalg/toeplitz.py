r"""Hierarchical Toeplitz matrices through a positive circulant embedding.

The covariance of a stationary field on a regular grid is hierarchical (multilevel)
Toeplitz. It is a block of a circulant matrix on a larger periodic grid, filled with
the covariance at the shortest wrapped lags (HIP-GP, eq. 16–19). ``R Rᵀ = K``
holds for the rows ``R`` of ``C^{1/2}`` only if every eigenvalue of C is non-negative,
so the padding grows, the relatively thinnest axis first, until none is negative.

A solve ``x = K⁻¹ v`` depends on the right-hand side and on ``c``, the covariance at the
box's non-negative lags. With ``g`` the gradient in x and ``a = K⁻¹ g``,

``∂/∂v = a``,  ``∂/∂c = −∂(aᵀ K x)/∂c``   (HIP-GP, eq. S13–S15, in D dimensions),

without autograd through the solver. The paper's S16 evaluates the last derivative in
one dimension; here it is the folded cross-correlation of `toeplitz_gradient`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from dustmap.grid import Grid, Torus, smooth_size
from dustmap.linalg.cg import Solution
from dustmap.linalg.circulant import DROP, Circulant
from dustmap.linalg.operator import SymmetricOperator
from dustmap.shapes import Device

Covariance = Callable[[Float[Tensor, "*n d"]], Float[Tensor, "*n"]]
Solve = Callable[[Float[Tensor, "b m"]], Solution]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingReport:
    """Size of a circulant embedding, and its effect on the covariance.

    ``negative_modes`` counts eigenvalues at or below ``1e-14 max D``, which are set
    to zero; ``covariance_error`` is the largest resulting change of the covariance in
    the box, relative to ``k(0)``; ``clipped`` is true if some of these eigenvalues were
    negative beyond rounding.
    """

    shape: tuple[int, ...]
    minimum: float
    maximum: float
    negative_modes: int
    covariance_error: float
    clipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingLimits:
    """Limits of a circulant embedding's size and error.

    The embedding has at most ``max_points``. With ``clip``, eigenvalues still negative
    at the limit become zero, if this changes the covariance by at most ``max_error`` of
    ``k(0)``.
    """

    max_points: int = 2**24
    clip: bool = False
    max_error: float = 1e-2


class CirculantEmbedding:
    """A circulant C that contains the Toeplitz covariance of ``grid`` as a block.

    Parameters
    ----------
    covariance
        ``k(Δ)`` for lags of shape ``(*n, d)``.
    grid
        The box.
    lengthscales
        Correlation length per axis, used to choose which axis grows.
    nugget
        Added to ``k(0)``: enters K, R and C alike.
    limits
        See :class:`EmbeddingLimits`.
    shape
        Points of the embedding, at least ``2 n − 2`` per axis, instead of growth from
        the smallest one. A fixed shape fixes the meaning of ε.

    Raises
    ------
    ValueError
        If the grid needs more than ``max_points``, or no embedding within the limits
        is positive semi-definite to rounding (and clipping is off, or its
        covariance error exceeds the bound).
    """

    def __init__(
        self,
        covariance: Covariance,
        grid: Grid,
        *,
        lengthscales: Sequence[float],
        nugget: float = 0.0,
        limits: EmbeddingLimits | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        limits = EmbeddingLimits() if limits is None else limits
        self.grid = grid
        fixed = shape is not None
        shape = shape or tuple(smooth_size(max(2 * n - 2, 2)) for n in grid.shape)
        if any(p < 2 * n - 2 for p, n in zip(shape, grid.shape, strict=True)):
            raise ValueError(
                f"an embedding of {grid.shape} points needs at least 2 n - 2 of them "
                f"per axis, got {shape}"
            )
        if math.prod(shape) > limits.max_points:
            raise ValueError(
                f"a circulant embedding of the grid {grid.shape} needs at least "
                f"{math.prod(shape)} points {shape}, more than the limit of "
                f"{limits.max_points}: use a coarser grid or raise max_points"
            )
        while True:
            self.torus = Torus(grid=grid, shape=shape)
            column = first_column(covariance, self.torus, nugget)
            self.circulant = Circulant.from_first_column(column)
            smallest, largest = map(float, self.circulant.spectrum.aminmax())
            # Negative eigenvalues closer to zero are rounding.
            clipped = smallest < -1e-12 * largest
            # The axis that is thinnest in lengthscales grows by a quarter.
            sides = zip(shape, grid.spacing, lengthscales, strict=True)
            scales = [n * h / s for n, h, s in sides]
            thinnest, grown = scales.index(min(scales)), list(shape)
            grown[thinnest] = smooth_size(math.ceil(shape[thinnest] * 1.25))
            shape = tuple(grown)
            if fixed or math.prod(shape) > limits.max_points or not clipped:
                break
        kept = torch.fft.irfftn(self.circulant.power(1.0).spectrum, s=self.torus.shape)
        off = (kept - column)[tuple(slice(0, n) for n in grid.shape)].abs().max()
        self.report = report = EmbeddingReport(
            shape=self.torus.shape,
            minimum=smallest,
            maximum=largest,
            negative_modes=self.circulant.dropped_modes(),
            covariance_error=float(off / column.reshape(-1)[0]),
            clipped=clipped,
        )
        if not clipped or (limits.clip and report.covariance_error <= limits.max_error):
            return
        clipping = limits.clip and (
            f"; clipping them changes the covariance by {report.covariance_error:.2g} "
            f"of k(0), more than {limits.max_error:g}"
        )
        raise ValueError(
            f"the circulant embedding of shape {report.shape} has "
            f"{report.negative_modes} eigenvalues at or below {DROP:g} of the largest "
            f"(minimum {smallest / largest:.2g} of it) and may not exceed "
            f"{limits.max_points} points or its given shape{clipping or ''}: use a "
            "shorter lengthscale, a rougher kernel or a thicker box, raise max_points, "
            "use the torus whitening, or enable clipping"
        )


def first_column(
    covariance: Covariance, torus: Torus, nugget: float, device: Device = "cpu"
) -> Tensor:
    """Return ``k`` at the shortest wrapped lags of a torus, plus the nugget at zero."""
    column = covariance(torus.lags().to(device))
    bump = torch.zeros_like(column)
    bump.view(-1)[0] = nugget
    return column + bump


class ToeplitzOperator(SymmetricOperator):
    """The block ``K`` of a circulant embedding: ``K x`` by zero-padding and FFT.

    (HIP-GP, Algorithm 2.) Vectors are points of the box in C order.
    """

    def __init__(self, circulant: Circulant, grid: Grid) -> None:
        self.shape = (grid.size, grid.size)
        self.dtype = circulant.dtype
        self.device = circulant.device
        self.circulant = circulant
        self.grid_shape = grid.shape

    def matvec(self, x: Tensor) -> Tensor:
        whole = self.circulant.matvec(extend(x, self.grid_shape, self.circulant))
        return restrict(whole, self.grid_shape, self.circulant)


def extend(x: Tensor, grid_shape: tuple[int, ...], circulant: Circulant) -> Tensor:
    """Zero-pad vectors on the box to the embedding."""
    batch = x.shape[:-1]
    field = x.new_zeros(*batch, *circulant.grid_shape)
    box = (..., *(slice(0, n) for n in grid_shape))
    field[box] = x.reshape(*batch, *grid_shape)
    return field.reshape(*batch, -1)


def restrict(y: Tensor, grid_shape: tuple[int, ...], circulant: Circulant) -> Tensor:
    """Restrict vectors on the embedding to the box."""
    batch = y.shape[:-1]
    box = (..., *(slice(0, n) for n in grid_shape))
    field = y.reshape(*batch, *circulant.grid_shape)
    return field[box].reshape(*batch, -1)


def toeplitz_gradient(
    a: Float[Tensor, "*batch m"], b: Float[Tensor, "*batch m"], shape: tuple[int, ...]
) -> Float[Tensor, "*n"]:
    r"""Return ``∂(aᵀ K b)/∂c`` for a hierarchical Toeplitz K even along every axis.

    ``c`` holds k at the non-negative lags of the box. The full cross-correlation
    ``G[l] = Σ_i a_{i+l} b_i`` is folded per axis, ``g[l] = G[l] + G[−l]`` for l > 0
    and once at l = 0. (HIP-GP's S16 is this in one dimension only.) Batches are
    summed. Cost: three padded FFTs.
    """
    dims = tuple(range(-len(shape), 0))
    padded = tuple(smooth_size(2 * n - 1) for n in shape)
    fa = torch.fft.rfftn(a.reshape(-1, *shape), s=padded, dim=dims)
    fb = torch.fft.rfftn(b.reshape(-1, *shape), s=padded, dim=dims)
    g = torch.fft.irfftn((fa * fb.conj()).sum(dim=0), s=padded, dim=dims)
    for axis, n in enumerate(shape):
        forward = g.narrow(axis, 0, n)
        backward = g.narrow(axis, g.shape[axis] - n + 1, n - 1).flip(axis)
        tail = forward.narrow(axis, 1, n - 1) + backward
        g = torch.cat([forward.narrow(axis, 0, 1), tail], dim=axis)
    return g


class _ToeplitzSolve(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, column: Tensor, rhs: Tensor, value: Tensor, solve: Solve
    ) -> Tensor:
        ctx.solve = solve
        ctx.save_for_backward(column, value)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        column, value = ctx.saved_tensors
        adjoint = ctx.solve(gradient).value
        by_column = None
        if ctx.needs_input_grad[0]:
            by_column = -toeplitz_gradient(adjoint, value, tuple(column.shape))
        return by_column, adjoint, None, None


def toeplitz_solve(
    column: Float[Tensor, "*n"], rhs: Float[Tensor, "b m"], solve: Solve
) -> tuple[Float[Tensor, "b m"], Solution]:
    """Return ``K⁻¹ v`` of rows, differentiable in ``column`` and ``rhs``, and status.

    ``column`` is k at the box's non-negative lags, of the box's shape. ``solve`` must
    solve for the same K; it is called once forward and once backward, and derivatives
    have its accuracy.
    """
    solution = solve(rhs.detach())
    value = _ToeplitzSolve.apply(column, rhs, solution.value, solve)
    return value, solution  # pyright: ignore[reportReturnType]
