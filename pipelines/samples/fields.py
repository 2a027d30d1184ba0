r"""Samples as fields at points of grids, and models that take these for ε.

A torus model sees the field at the (refined) grid's points, and with cubic
interpolation one more on every side: those are enough to answer as ε does. Of the
published engine ``ε = Rᵀ K⁻¹ u`` is found again from the values u at its points.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid
from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.rowwise import RowwiseGaussian
from pipelines.model.plan import Plan


class GridField:
    """The field of a plan at the points of one grid that it is stored at.

    ``axes`` are the points' coordinates x, y, z [pc], ``at_grid`` the map's own among
    them, ``cells`` the map's cells that they are in; ``offset`` is the mean there, its
    logarithm for a positive density.
    """

    def __init__(self, plan: Plan, grid: Grid, model: ForwardModel) -> None:
        rowwise = isinstance(model, RowwiseGaussian)
        fine = 1 if rowwise else plan.refinement
        margin = 1 if not rowwise and plan.interpolation == "cubic" else 0
        last = [fine * (n - 1) for n in grid.shape]
        self._index = [np.arange(-margin, n + 1 + margin) for n in last]
        self.at_grid = tuple(slice(margin, margin + n + 1, fine) for n in last)
        nearest = [np.rint(index / fine).astype(int) for index in self._index]
        self.cells = np.ix_(*(i.clip(0, n - 1) for i, n in zip(nearest, grid.shape)))
        scales = zip(grid.origin, grid.spacing, self._index, strict=True)
        self.axes = [start + h / fine * index for start, h, index in scales]
        points = np.stack(np.meshgrid(*self.axes, indexing="ij"), axis=-1)
        mean = plan.mean.build()(torch.from_numpy(points.reshape(-1, 3)))
        offset = mean.log() if model.positive else mean
        self.offset = offset.numpy().reshape(points.shape[:-1])

    def place(self, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Indices on a torus of this shape."""
        return np.ix_(*(i % n for i, n in zip(self._index, shape, strict=True)))


class StoredFields:
    """The field of a plan on all its grids, the coarsest first.

    ``name`` is ``log_density`` for a positive density, whose Gaussian field it is, and
    ``density`` otherwise.
    """

    def __init__(self, plan: Plan, model: ForwardModel) -> None:
        assert isinstance(model, TorusGaussian | LogNormal | RowwiseGaussian)
        self._model = model
        self.grids = [GridField(plan, grid, model) for grid in plan.grids]
        self.name = "log_density" if model.positive else "density"

    def values(self, eps: Float[Tensor, " p"]) -> list[np.ndarray]:
        """The field of one ε with its mean on every grid, each ``(x, y, z)``."""
        model = self._model
        field = model.whitening.colour(eps).to(torch.float64).cpu()
        if isinstance(model, RowwiseGaussian):
            (grid,) = self.grids
            return [field.numpy().reshape(grid.offset.shape) + grid.offset]
        parts = zip(self.grids, field.split(self._sizes), self._shapes, strict=True)
        return [
            part.numpy().reshape(shape)[grid.place(shape)] + grid.offset
            for grid, part, shape in parts
        ]

    def parameters(
        self, fields: Sequence[Float[np.ndarray, "s x y z"]]
    ) -> Float[Tensor, "s p"]:
        """What a model of fields takes for ε; ε of the published engine."""
        model, count = self._model, len(fields[0])
        if isinstance(model, RowwiseGaussian):
            (grid,), (cubes,) = self.grids, fields
            rows = torch.from_numpy((cubes - grid.offset).reshape(count, -1))
            eps, status = model.whitening.features(rows.to(model.device))
            if not bool(status.converged.all()):
                warnings.warn(f"samples: {status.message}", stacklevel=2)
            return eps
        parts = []
        for grid, cubes, shape in zip(self.grids, fields, self._shapes, strict=True):
            found = torch.zeros(count, *shape, dtype=model.dtype)
            for row, field in zip(found.numpy(), cubes, strict=True):
                row[grid.place(shape)] = field - grid.offset
            parts.append(found.reshape(count, -1))
        return torch.cat(parts, dim=1).to(model.device)

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        """Of the refined tori."""
        assert not isinstance(self._model, RowwiseGaussian)
        whitening = self._model.whitening
        return [
            tuple(n * whitening.refinement for n in torus.shape)
            for torus in whitening.levels.tori
        ]

    @property
    def _sizes(self) -> list[int]:
        return [int(np.prod(shape)) for shape in self._shapes]
