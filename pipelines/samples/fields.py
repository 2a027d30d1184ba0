r"""Samples as fields at points of a grid, and models that take these for ε.

A torus model sees the field at the (refined) grid's points, and with cubic
interpolation one more on every side: those are enough to answer as ε does. Of the
published engine ``ε = Rᵀ K⁻¹ u`` is found again from the values u at its points.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.rowwise import RowwiseGaussian
from pipelines.model.plan import Plan


class GridField:
    """The field of a plan at the points that it is stored at.

    ``name`` is ``log_density`` for a positive density, whose Gaussian field it is, and
    ``density`` otherwise; ``axes`` are the points' coordinates x, y, z [pc],
    ``at_grid`` the map's own among them, ``cells`` the map's cells that they are in.
    """

    def __init__(self, plan: Plan, model: ForwardModel) -> None:
        grid, rowwise = plan.grid, isinstance(model, RowwiseGaussian)
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
        self.name = "log_density" if model.positive else "density"
        offset = mean.log() if model.positive else mean
        self._offset = offset.numpy().reshape(points.shape[:-1])

    def values(self, model: ForwardModel, eps: Float[Tensor, " p"]) -> np.ndarray:
        """The field of one ε with its mean, shape ``(x, y, z)``."""
        assert isinstance(model, TorusGaussian | LogNormal | RowwiseGaussian)
        field = model.whitening.colour(eps).to(torch.float64).cpu().numpy()
        if isinstance(model, RowwiseGaussian):
            return field.reshape(self._offset.shape) + self._offset
        shape = model.whitening.fine_shape
        return field.reshape(shape)[self._place(shape)] + self._offset

    def parameters(
        self, model: ForwardModel, fields: Float[np.ndarray, "s x y z"]
    ) -> Float[Tensor, "s p"]:
        """What a model with `FieldWhitening` takes for ε; ε of the published engine."""
        assert isinstance(model, TorusGaussian | LogNormal | RowwiseGaussian)
        if isinstance(model, RowwiseGaussian):
            rows = torch.from_numpy((fields - self._offset).reshape(len(fields), -1))
            eps, status = model.whitening.features(rows.to(model.device))
            if not bool(status.converged.all()):
                warnings.warn(f"samples: {status.message}", stacklevel=2)
            return eps
        shape = model.whitening.fine_shape
        found = torch.zeros(len(fields), *shape, dtype=model.dtype)
        for row, field in zip(found.numpy(), fields, strict=True):
            row[self._place(shape)] = field - self._offset
        return found.reshape(len(fields), -1).to(model.device)

    def _place(self, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Indices on a torus of this shape."""
        return np.ix_(*(i % n for i, n in zip(self._index, shape, strict=True)))
