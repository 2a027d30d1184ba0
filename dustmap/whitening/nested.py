r"""Whitening on nested grids: one prior for fine and coarse cells, without a solve.

White noise lives on one torus per level, the coarsest first. A covariance is the sum of
bands of scales (:mod:`dustmap.whitening.bands`), and of the noise :math:`\epsilon_l` of
a level two fields are made:

- :math:`c_l = F^{-1} a_l F \epsilon_l`, the level's own band as coefficients of a
  quintic spline, with :math:`a_l = \sqrt{D_{[t_l, t_{l-1}]}} / B`, where B is the
  spline's symbol. Added to those of the coarser levels they are handed inwards by the
  two-scale relation, which is exact.
- :math:`F^{-1} b_l F \epsilon_l` with :math:`b_l = \sqrt{D_{[0, t_{l-1}]}}`, the same
  band and all finer ones, folded on this level's points. With the values of the coarser
  levels' spline it is the field where no finer grid is.

The cuts are :math:`t_l = (c h_l)^2`, so that a level's own band is smooth over a cell.
Covariances within a level are those of the kernel to some 5e-4 of its variance; across
the face of a finer box neighbouring points miss what the coarse grid folds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid, Torus, smooth_size
from dustmap.kernels import Kernel, Radial
from dustmap.levels import Levels
from dustmap.whitening import splines
from dustmap.whitening.bands import band_spectrum
from dustmap.whitening.torus import padded_torus

# The shortest smooth scale of a level's own band, in its cells: with 0.8 splines of
# fifth degree carry it to 3e-4 of the variance.
_CUT = 0.8
# Cells between opposite faces of a box, through its torus: a finer level's band has
# fallen to 1e-3 there.
_GAP = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """One level: its roots, and where the next one's box lies.

    Arrays of coefficients begin ``MARGIN`` points before the box.
    """

    torus: Torus
    folded: Float[Tensor, "*n"]  # b
    own: Float[Tensor, "*n"] | None  # a, where there is a finer level
    box: tuple[Any, ...]  # of an array on the torus
    window: tuple[Any, ...]  # of the next box, of an array of coefficients

    def forward(self, field: Tensor) -> Tensor:
        """The half spectrum of fields on the torus."""
        return torch.fft.rfftn(field, dim=self._dims)

    def unflat(self, field: Tensor) -> Tensor:
        """Vectors as arrays on the torus."""
        return field.reshape(*field.shape[:-1], *self.torus.shape)

    def inverse(self, modes: Tensor) -> Tensor:
        """Fields on the torus of these half spectra."""
        return torch.fft.irfftn(modes, s=self.torus.shape, dim=self._dims)

    def gather(self, field: Tensor) -> Tensor:
        """Coefficients around the next box, from an array on the torus."""
        shifts = (splines.MARGIN,) * len(self._dims)
        return field.roll(shifts, dims=self._dims)[self.window]

    def scatter(self, handed: Tensor) -> Tensor:
        """The transpose of :meth:`gather`."""
        batch = handed.shape[: handed.ndim - len(self._dims)]
        spread = handed.new_zeros(*batch, *self.torus.shape)
        spread[self.window] = handed
        return spread.roll((-splines.MARGIN,) * len(self._dims), dims=self._dims)

    @property
    def _dims(self) -> tuple[int, ...]:
        return tuple(range(-len(self.torus.shape), 0))


def nested_tori(grids: Sequence[Grid], kernel: Radial, wrap_tolerance: float) -> Levels:
    """Tori for nested grids, the coarsest first, that keep opposite faces apart.

    The coarsest one's correlation through the torus is at most ``wrap_tolerance``
    (:func:`~dustmap.whitening.torus.padded_torus`).
    """
    coarsest = padded_torus(grids[0], kernel, wrap_tolerance)
    if len(grids) == 1:
        return Levels(tori=(coarsest,))
    tori = [coarsest]
    for grid in grids[1:]:
        room = padded_torus(grid, kernel, wrap_tolerance).shape
        shape = (min(n, smooth_size(m - 1 + _GAP)) for n, m in zip(room, grid.shape))
        tori.append(Torus(grid=grid, shape=tuple(shape)))
    return Levels(
        tori=tuple(
            replace(torus, shape=_with_room(torus.shape, torus.grid)) for torus in tori
        )
    )


def _with_room(shape: tuple[int, ...], grid: Grid) -> tuple[int, ...]:
    """The least sizes in which splines have their margins beside the box."""
    return tuple(
        max(n, smooth_size(m + 2 * splines.MARGIN))
        for n, m in zip(shape, grid.shape, strict=True)
    )


class LevelWhitening:
    """White ε on all levels' tori to the field on them.

    Parameters
    ----------
    kernel
        A Matérn covariance.
    levels
        Where ε and the field live.
    dtype, device
        Of the products; spectra are computed in float64.

    Raises
    ------
    ValueError
        If the kernel has no bands, or a torus leaves too little room beside its box.
    """

    refinement = 1

    def __init__(
        self,
        kernel: Radial,
        levels: Levels,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.kernel = kernel
        self.levels = levels
        self.dtype = dtype
        self.device = torch.device(device)
        self._parts = [self._level(number) for number in range(len(levels))]

    def _level(self, number: int) -> _Level:
        torus = self.levels.tori[number]
        room = 2 * splines.MARGIN
        if len(self.levels) > 1 and any(
            n < m + room for n, m in zip(torus.shape, torus.grid.shape, strict=True)
        ):
            raise ValueError(
                f"a torus of {torus.shape} leaves no room for splines beside the box "
                f"of {torus.grid.shape}: it takes {room} points along every axis"
            )
        longest = self._cut(number - 1) if number else math.inf
        folded = band_spectrum(self.kernel, torus, 0.0, longest).sqrt()
        own, window = None, ()
        if number + 1 < len(self.levels):
            band = band_spectrum(self.kernel, torus, self._cut(number), longest)
            own = (band.sqrt() / _symbol(torus.shape)).to(self.dtype).to(self.device)
            finer = self.levels.grids[number + 1].shape
            window = tuple(
                slice(first, first + (n + 1) // 2 + room)
                for first, n in zip(self.levels.offsets()[number], finer, strict=True)
            )
        return _Level(
            torus=torus,
            folded=folded.to(self.dtype).to(self.device),
            own=own,
            box=(..., *(slice(0, n) for n in torus.grid.shape)),
            window=(..., *window),
        )

    def _cut(self, number: int) -> float:
        """``t_l``, in lengthscales squared."""
        spacing = self.levels.grids[number].spacing
        scale = self.kernel.lengthscale.detach().expand(len(spacing)).tolist()
        cells = [h / s for h, s in zip(spacing, scale, strict=True)]
        return (_CUT * max(cells)) ** 2

    @property
    def size(self) -> int:
        """Length of ε."""
        return self.levels.size

    @property
    def fine_size(self) -> int:
        """Length of the field."""
        return self.levels.size

    @property
    def invertible(self) -> bool:
        """Never: what coarse levels hand inwards is in many ε."""
        return False

    def whiten(self, values: Tensor) -> Tensor:
        """No field on levels has one ε."""
        raise ValueError("a field on several levels has no single ε")

    def colour(self, eps: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """``A ε``: the field on the tori. In paddings it has no meaning, but is finite.

        Cost: three FFTs of each level, two of the finest.
        """
        fields: list[Tensor] = []
        low: Tensor | None = None
        for part, white in zip(self._parts, self.levels.split(eps), strict=True):
            modes = part.forward(part.unflat(white))
            field = part.inverse(modes * part.folded)
            if low is not None:
                field[part.box] += splines.values(low, self.levels.dimension)
            fields.append(field.reshape(white.shape))
            if part.own is not None:
                handed = part.gather(part.inverse(modes * part.own))
                if low is not None:
                    handed += low[part.window]
                low = splines.refine(handed, self.levels.dimension)
        return torch.cat(fields, dim=-1)

    def colour_transpose(
        self, field: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch m"]:
        """``Aᵀ g``, from the finest level outwards."""
        white: list[Tensor] = []
        low: Tensor | None = None
        parts = zip(self._parts, self.levels.split(field), strict=True)
        for part, flat in reversed(list(parts)):
            grid = part.unflat(flat)
            modes = part.forward(grid) * part.folded
            below = splines.values_transpose(grid[part.box], self.levels.dimension)
            if low is not None and part.own is not None:
                handed = splines.refine_transpose(low, self.levels.dimension)
                modes += part.forward(part.scatter(handed)) * part.own
                below[part.window] += handed
            white.append(part.inverse(modes).reshape(flat.shape))
            low = below
        return torch.cat(white[::-1], dim=-1)

    def prior_draw(
        self, generator: torch.Generator, count: int = 1
    ) -> tuple[Float[Tensor, "s m"], Float[Tensor, "s m"]]:
        """Draws of the field, and their ε."""
        eps = torch.randn(count, self.size, generator=generator, dtype=self.dtype)
        eps = eps.to(self.device)
        return self.colour(eps), eps

    def with_kernel(self, kernel: Kernel) -> LevelWhitening:
        """The same ε under another kernel."""
        assert isinstance(kernel, Radial)
        return LevelWhitening(kernel, self.levels, dtype=self.dtype, device=self.device)


def _symbol(shape: tuple[int, ...]) -> Float[Tensor, "*n"]:
    """The spline's symbol on a torus (``rfftn`` layout)."""
    *axes, last = [splines.symbol(n) for n in shape]
    product = torch.ones((), dtype=torch.float64)
    for along in (*axes, last[: shape[-1] // 2 + 1]):
        product = product[..., None] * along
    return product
