r"""Simulated extinctions of a catalogue's stars, for any scales of the prior.

Fields of unit variance and lengthscale fill a periodic cube. Scaled to
:math:`\rho = \bar\rho\, e^{\sigma f(x/\ell) - \sigma^2/2}` (or
:math:`\bar\rho + \sigma f(x/\ell)`) the same white noise serves all scales, so that
simulations vary smoothly with them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import LineIntegrals, Nodes, StepsOutwards
from dustmap.grid import Grid, Torus
from dustmap.kernels import Radial
from dustmap.linalg.sparse import Rows, SparseMatrix
from dustmap.models.means import Mean
from dustmap.whitening import TorusWhitening

# Cells per axis, and per lengthscale: the cube is 16 lengthscales wide.
_CELLS, _TO_A_LENGTHSCALE = 128, 8
# Images of the kernel below this fraction of its variance are omitted.
_IMAGES = 1e-4
# Step along a ray, in lengthscales; neighbouring rays cross the same cells.
_STEP = 1 / 32
# Fields whose densities are held at once.
_TOGETHER = 8


class PeriodicFields:
    """Fields of unit variance around an observer.

    A place takes the value of its cell. The covariance is then the kernel interpolated
    linearly between multiples of the cell, exact at zero; interpolated fields would be
    too smooth.

    Parameters
    ----------
    kernel
        Family of the covariance; its lengthscale and variance are one here.
    count
        Number of fields S. Memory: ``4 S 128³`` bytes, plus twice the densities of
        eight fields.
    """

    def __init__(
        self, kernel: type[Radial], count: int, generator: torch.Generator
    ) -> None:
        shape, step = (_CELLS,) * 3, 1 / _TO_A_LENGTHSCALE
        grid = Grid(shape=shape, spacing=(step,) * 3, origin=(0.0,) * 3)
        whitening = TorusWhitening(
            kernel(lengthscale=1.0),
            Torus(grid=grid, shape=shape),
            dtype=torch.float32,
            image_tolerance=_IMAGES,
        )
        size = whitening.torus.size
        white = (torch.randn(size, generator=generator) for _ in range(count))
        modes = whitening.modes
        self.fields = torch.stack([whitening.colour(modes.of(xi)) for xi in white])
        # Place of the observer in its cell.
        self._phase = torch.rand(3, generator=generator, dtype=torch.float64)
        self._crossed: _Crossed | None = None

    def extinctions(
        self,
        ends: Float[Tensor, "n 3"],
        lengthscale: Float[Tensor, " d"],
        std: float,
        mean: Mean,
        *,
        positive: bool,
    ) -> Float[Tensor, "s n"]:
        """Return noise-free line integrals [mag] from the observer to places [pc].

        ``mean`` is the density's mean; ``std`` is that of the density or, if
        ``positive``, of its logarithm.
        """
        scaled = ends / lengthscale
        nodes, cells = self._along(scaled)
        lengths = torch.linalg.vector_norm(scaled, dim=1)
        stretch = torch.linalg.vector_norm(ends, dim=1) / lengths.clamp_min(1e-300)
        average = mean(nodes.points * lengthscale)
        factor = average if positive else torch.ones_like(average)
        sums = _sums(nodes, cells, factor)
        found = []
        for fields in self.fields.split(_TOGETHER):
            # Exponentiate the cells, of which there are fewer than nodes of many rays.
            if positive:
                found.append(sums.matvec((std * fields - std**2 / 2).exp()))
            else:
                found.append(nodes.sum_rows(average) + std * sums.matvec(fields))
        return stretch * torch.cat(found)

    def _along(self, scaled: Float[Tensor, "n 3"]) -> tuple[Nodes, np.ndarray]:
        """Return the rays' nodes and their cells, cached while lengthscales stay."""
        known = self._crossed
        if known is None or not torch.equal(known.scaled, scaled):
            nodes = LineIntegrals(scaled, StepsOutwards(step=_STEP)).nodes()
            cells = self._cells(nodes.points).numpy().astype(np.uint32)
            self._crossed = known = _Crossed(scaled, nodes, cells)
        return known.nodes, known.cells

    def _cells(self, places: Float[Tensor, "m 3"]) -> Tensor:
        """Return indices of the cells at places in lengthscales."""
        x, y, z = torch.floor(_TO_A_LENGTHSCALE * places + self._phase).long().T
        x, y, z = (axis.remainder(_CELLS) for axis in (x, y, z))
        return (x * _CELLS + y) * _CELLS + z


class _Crossed(NamedTuple):
    """Rays in lengthscales, their nodes, and the nodes' cells."""

    scaled: Float[Tensor, "n 3"]
    nodes: Nodes
    cells: np.ndarray


def _sums(nodes: Nodes, cells: np.ndarray, factor: Float[Tensor, " p"]) -> SparseMatrix:
    """Return the matrix that sums the cells of each ray's nodes, with their weights."""
    ends = torch.searchsorted(nodes.rows, torch.arange(nodes.count + 1))
    rows = Rows(
        pointers=ends.numpy().astype(np.uint64),
        columns=cells,
        values=(nodes.weights * factor).numpy().astype(np.float32),
        first=0,
        count=nodes.count,
    )
    return SparseMatrix.of_rows(rows, _CELLS**3)
