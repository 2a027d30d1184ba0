r"""Whitening on nested grids: one prior for fine and coarse cells, without a solve.

White noise lives on one torus per level, the coarsest first. A covariance is the sum of
bands of scales (:mod:`dustmap.whitening.bands`), and the noise :math:`\epsilon_l` of a
level makes two fields:

- :math:`c_l = F^{-1} a_l F \epsilon_l`, the level's own band as coefficients of a
  quintic spline, with :math:`a_l = \sqrt{D_{[t_l, t_{l-1}]}} / B`, where B is the
  spline's symbol. The sum with the coarser levels' coefficients is passed to the next
  level by the two-scale relation, which is exact.
- :math:`F^{-1} b_l F \epsilon_l` with :math:`b_l = \sqrt{D_{[0, t_{l-1}]}}`, the same
  band and all finer bands, aliased onto this level's points. Together with the values
  of the coarser levels' spline it is the field outside finer grids.

The cuts are :math:`t_l = (c h_l)^2`, so that a level's own band is smooth over a cell.
Covariances within a level differ from the kernel's by some 1e-3 of its variance; across
the face of a finer box neighbouring points do not share the aliased scales. Hidden
coarser grids over the whole box carry correlations longer than the torus of the
coarsest level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid, Torus, smooth_size
from dustmap.kernels import Radial
from dustmap.shapes import Device, EpsBatch
from dustmap.tori import Tori
from dustmap.whitening import splines
from dustmap.whitening.bands import band_spectrum, correlated_to, shortest_time
from dustmap.whitening.modes import Field, GridWhitening, TorusModes
from dustmap.whitening.torus import padded_torus


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """One level: its roots, and the place of the next level's box.

    Arrays of coefficients begin ``MARGIN`` points before the box.
    """

    modes: TorusModes
    # Both roots are for modes with the factors √2.
    folded: Float[Tensor, "*n"] | None  # b, of levels that have a field
    own: Float[Tensor, "*n"] | None  # a, where there is a finer level
    box: tuple[Any, ...]  # index of the box in an array on the torus
    window: tuple[Any, ...]  # index of the next box in an array of coefficients
    finer: tuple[int, ...]  # points of the next box

    def gather(self, field: Tensor) -> Tensor:
        """Return coefficients around the next box, from an array on the torus."""
        axes = self.modes.axes
        return field.roll((splines.MARGIN,) * len(axes), dims=axes)[self.window]

    def scatter(self, handed: Tensor) -> Tensor:
        """Apply the transpose of :meth:`gather`."""
        axes = self.modes.axes
        batch = handed.shape[: handed.ndim - len(axes)]
        spread = handed.new_zeros(*batch, *self.modes.torus.shape)
        spread[self.window] = handed
        return spread.roll((-splines.MARGIN,) * len(axes), dims=axes)


def nested_tori(grids: Sequence[Grid], kernel: Radial, wrap_tolerance: float) -> Tori:
    """Return tori for nested grids, the coarsest first, with gaps between faces.

    For a single grid, correlations through the torus are at most ``wrap_tolerance``
    (:func:`~dustmap.whitening.torus.padded_torus`). Several grids need only the gap of
    a band: :class:`LevelWhitening` takes longer correlations from coarser grids.
    """
    if len(grids) == 1:
        return Tori(tori=(padded_torus(grids[0], kernel, wrap_tolerance),))
    return Tori(tori=tuple(_with_gap(grid) for grid in grids))


def _with_gap(grid: Grid) -> Torus:
    # Over 14 cells between opposite faces, through the torus, a level's band falls to
    # 1e-3. With 12, the error of variances of line integrals is 5.8e-3.
    shape = tuple(smooth_size(n - 1 + 14) for n in grid.shape)
    return Torus(grid=grid, shape=shape)


def hidden_tori(finest: Torus, kernel: Radial) -> list[Torus]:
    """Return coarser tori over the whole box, the coarsest first.

    Each has twice the spacing of the next, over the same box or up to a cell more;
    correlations of the kernel through the coarsest are below 1e-3.
    """
    reach = correlated_to(kernel, 1e-3)
    scale = kernel.lengthscale.detach().expand(len(finest.shape)).tolist()
    tori = [finest]
    while True:
        torus, grid = tori[0], tori[0].grid
        cells = [n - m + 1 for n, m in zip(torus.shape, grid.shape, strict=True)]
        gaps = zip(cells, grid.spacing, scale, strict=True)
        if all(n * h >= reach * s for n, h, s in gaps):
            return tori[:-1]
        coarser = Grid(
            shape=tuple(n // 2 + 1 for n in grid.shape),
            spacing=tuple(2 * h for h in grid.spacing),
            origin=grid.origin,
        )
        tori.insert(0, _with_gap(coarser))


def transformed_points(tori: Tori, kernel: Radial) -> int:
    """Return the points of all transforms of a colouring, hidden grids included.

    A level has one transform for its field, and one for coefficients passed inwards.
    """
    sizes = [torus.size for torus in tori]
    if len(sizes) == 1:
        return sizes[0]
    hidden = sum(torus.size for torus in hidden_tori(tori[0], kernel))
    return hidden + 2 * sum(sizes) - sizes[-1]


class LevelWhitening(GridWhitening):
    """Map from modes ε of white noise on all tori, hidden ones first, to the field.

    Parameters
    ----------
    kernel
        A Matérn covariance.
    tori
        Tori of the field.
    cut
        The shortest scale of the field on each grid, in its steps.
    dtype, device
        Precision and device of products; spectra are computed in float64.

    Raises
    ------
    ValueError
        If the kernel has no bands, or a torus leaves too little room beside its box.
    """

    def __init__(
        self,
        kernel: Radial,
        tori: Tori,
        *,
        cut: float = 0.0,
        dtype: torch.dtype = torch.float64,
        device: Device = "cpu",
    ) -> None:
        coarser = hidden_tori(tori[0], kernel)
        self.hidden = len(coarser)
        self._tori = (*coarser, *tori)
        super().__init__(kernel, tori, self._tori, cut=cut, dtype=dtype, device=device)
        # ``t_l``, and the shortest times that fields have. For Matérn-1/2 with four
        # cells per lengthscale, errors of covariances within a grid are 1.4e-3 with
        # c = 0.8 and 1.0e-3 with 0.9, of variances of line integrals 3.4e-3 and 5.0e-3.
        self._cuts, self._lowest = (
            [shortest_time(kernel, torus.grid.spacing, c) for torus in self._tori]
            for c in (0.9, cut)
        )
        self._parts = [self._level(kernel, n) for n in range(len(self._tori))]

    def _level(self, kernel: Radial, number: int) -> _Level:
        torus = self._tori[number]
        room = 2 * splines.MARGIN
        if len(self._tori) > 1 and any(
            n < m + room for n, m in zip(torus.shape, torus.grid.shape, strict=True)
        ):
            raise ValueError(
                f"a torus of {torus.shape} is too small for splines around the box of "
                f"{torus.grid.shape}: it needs room of {room} points along every axis"
            )
        longest = self._cuts[number - 1] if number else math.inf
        own = folded = None
        window, finer = (), ()
        modes = self.modes.parts[number]
        if number >= self.hidden:
            spectrum = band_spectrum(kernel, torus, self._lowest[number], longest)
            folded = self._root(spectrum.sqrt(), modes)
        if number + 1 < len(self._tori):
            band = band_spectrum(kernel, torus, self._cuts[number], longest)
            # The spline's symbol on the torus (``rfftn`` layout).
            symbol = torch.ones((), dtype=torch.float64)
            for n, stored in zip(torus.shape, modes.half, strict=True):
                symbol = symbol[..., None] * splines.symbol(n)[:stored]
            own = self._root(band.sqrt() / symbol, modes)
            inner = self._tori[number + 1].grid
            finer = inner.shape
            axes = zip(inner.origin, torus.grid.origin, torus.grid.spacing)
            firsts = [round((x - origin) / h) for x, origin, h in axes]
            window = tuple(
                slice(first, first + n // 2 + 1 + room)
                for first, n in zip(firsts, finer, strict=True)
            )
        return _Level(
            modes=modes,
            folded=folded,
            own=own,
            box=(..., *(slice(0, n) for n in torus.grid.shape)),
            window=(..., *window),
            finer=finer,
        )

    def _root(self, root: Tensor, modes: TorusModes) -> Tensor:
        """Return a root of a spectrum for modes with the factors √2."""
        return (root.to(self.device) / modes.pairs.sqrt()).to(self.dtype)

    def colour(self, eps: EpsBatch) -> Field:
        """Return ``A ε``: the field on the tori, without meaning in their paddings.

        Cost: two FFTs of each level, one of the finest and of hidden ones.
        """
        fields: list[Tensor] = []
        low: Tensor | None = None
        for part, spectrum in zip(self._parts, self.modes.spectra(eps), strict=True):
            if part.folded is not None:
                field = part.modes.inverse(spectrum * part.folded)
                if low is not None:
                    field[part.box] += splines.values(low, self.tori.grids.dimension)
                fields.append(part.modes.flat(field))
            if part.own is not None:
                handed = part.gather(part.modes.inverse(spectrum * part.own))
                if low is not None:
                    handed += low[part.window]
                low = splines.refine(handed, part.finer)
        return torch.cat(fields, dim=-1)

    def colour_transpose(self, field: Field) -> EpsBatch:
        """Return ``Aᵀ g``, from the finest level outwards."""
        spectra: list[Tensor] = []
        low: Tensor | None = None
        given, dimension = list(self.tori.split(field)), self.tori.grids.dimension
        for part in reversed(self._parts):
            spectrum: Tensor | None = None
            below: Tensor | None = None
            if part.folded is not None:
                grid = part.modes.unflat(given.pop())
                spectrum = part.modes.forward(grid) * part.folded
                below = splines.values_transpose(grid[part.box], dimension)
            if low is not None and part.own is not None:
                handed = splines.refine_transpose(low, dimension)
                band = part.modes.forward(part.scatter(handed)) * part.own
                spectrum = band if spectrum is None else spectrum + band
                if below is None:
                    # Coefficients extend beyond the level's own box.
                    room = [n + 2 * splines.MARGIN for n in part.modes.torus.grid.shape]
                    below = handed.new_zeros(*handed.shape[: -len(room)], *room)
                below[part.window] += handed
            assert spectrum is not None
            spectra.append(spectrum.mul_(part.modes.pairs.to(self.dtype)))
            low = below
        return self.modes.joined(spectra[::-1])
