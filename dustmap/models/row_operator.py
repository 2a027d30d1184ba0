"""The features of all observations as one operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dustmap.linalg.operator import LinearOperator
from dustmap.models.row_report import RowReport

if TYPE_CHECKING:
    from dustmap.models.rowwise import RowwiseGaussian


class RowwiseFeatures(LinearOperator):
    """``Φ`` by one solve per vector: ``Φ ε = K_nu K⁻¹ R ε``, ``Φᵀ y = Rᵀ K⁻¹ K_un y``.

    With kept rows, ``Φ ε = A R ε`` without any solve. Otherwise the rows ``k_un`` are
    evaluated chunk by chunk, or once if ``N M`` numbers fit into ``memory`` bytes.
    ``report`` gathers the status of the solves.
    """

    def __init__(self, model: RowwiseGaussian, *, memory: int = 2**30) -> None:
        self.shape = (len(model.functionals), model.latent_size)
        self.dtype = model.dtype
        self.device = model.device
        self.report = RowReport()
        self._model = model
        self._fits = self.shape[0] * model.inducing_size * 8 <= memory
        self._cross: list[Tensor] = []

    def matvec(self, x: Tensor) -> Tensor:
        model = self._model
        if model.kept is not None:
            values = model.whitening.colour(x) if model.embedded else x
            return values @ model.kept.values.mT
        solved = self._solve(model.whitening.colour(x))
        return torch.cat([solved @ part.mT for part in self._chunks()], dim=-1)

    def rmatvec(self, y: Tensor) -> Tensor:
        model = self._model
        if model.kept is not None:
            return model.features_of(y @ model.kept.values)
        total = y.new_zeros(*y.shape[:-1], model.inducing_size)
        start = 0
        for part in self._chunks():
            total = total + y[..., start : start + len(part)] @ part
            start += len(part)
        return model.whitening.colour_transpose(self._solve(total))

    def _solve(self, values: Tensor) -> Tensor:
        flat = values.reshape(-1, values.shape[-1])
        solution = self._model.whitening.solve(flat)
        self.report = self.report.with_solution(solution)
        return solution.value.reshape(values.shape)

    def _chunks(self) -> Iterator[Tensor]:
        """``k_un`` of some rows after others."""
        if self._cross:
            yield from self._cross
            return
        parts = []
        for _, part in self._model.functionals.chunks(self._model.chunk):
            cross = self._model.cross(part)
            if self._fits:
                parts.append(cross)
            yield cross
        self._cross = parts
