r"""Deflation of the smooth part of ε on a coarse grid: a preconditioner for Λ.

With V the isometry from white noise on a coarse torus to the lowest Fourier modes of
that of the model, ``P⁻¹ = I + V (H⁻¹ − I) Vᵀ`` and ``H ≈ Vᵀ Λ V`` dense. A coarse
field stands for the colour of a low mode, interpolated to the grid, and a part of the
stars for all: exact modes would cost a product with Λ each.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.sparse import SparseMatrix
from dustmap.models.lognormal import LogNormal

_STARS = 20_000


class CoarseGrid:
    """``P⁻¹`` of a log-normal model's precision at one ε.

    Parameters
    ----------
    model, eps, total
        The tangent's place, and the noise Σ [mag²] of every star.
    shape
        Of the coarse torus: odd numbers, so that modes come in whole pairs.
    seed
        Of the choice of stars.
    """

    def __init__(
        self,
        model: LogNormal,
        eps: Float[Tensor, " p"],
        total: Float[Tensor, " n"],
        shape: tuple[int, int, int],
        seed: int,
    ) -> None:
        fine = model.whitening.levels.tori[0].shape
        if any(n % 2 == 0 or n > m for n, m in zip(shape, fine, strict=True)):
            raise ValueError(
                f"the coarse torus must be odd and not above {fine}, got {shape}"
            )
        self.shape, self.fine = shape, tuple(fine)
        self.size, self._points = math.prod(shape), math.prod(fine)
        modes = [np.fft.fftfreq(n, 1 / n).astype(int) for n in shape]
        modes[2] = np.arange(shape[2] // 2 + 1)
        self._modes = [
            torch.as_tensor(k % n) for k, n in zip(modes, self.fine, strict=True)
        ]
        data = torch.as_tensor(self._data_term(model, eps, total, seed))
        root = self._root(model)
        reduced = self._colour(self._colour(data, root).mT, root)
        unit = torch.eye(self.size, dtype=torch.float64)
        factor = torch.linalg.cholesky((reduced + reduced.mT) / 2 + unit)
        self._change = (torch.cholesky_inverse(factor) - unit).to(model.dtype)

    def _data_term(
        self, model: LogNormal, eps: Tensor, total: Tensor, seed: int
    ) -> np.ndarray:
        """``Pᵀ diag(ρ) Wᵀ Σ⁻¹ W diag(ρ) P`` by some of the stars, dense."""
        assert isinstance(model.weights, SparseMatrix)
        W = scipy.sparse.csr_matrix(model.weights.to_scipy(), dtype=np.float64)
        stars = len(total)
        count = min(_STARS, stars)
        rows = np.sort(np.random.default_rng(seed).permutation(stars)[:count])
        density = model.density(eps).to(torch.float64).numpy()
        seen = W[rows] @ scipy.sparse.diags(density) @ self._prolongation()
        weights = stars / count / total.to(torch.float64).numpy()[rows]
        return (seen.T @ scipy.sparse.diags(weights) @ seen).toarray()

    def _prolongation(self) -> scipy.sparse.csr_matrix:
        """Linear interpolation from the coarse torus to the fine one."""
        whole = scipy.sparse.identity(1, format="csr")
        for n, m in zip(self.fine, self.shape, strict=True):
            place = np.arange(n) * m / n
            base = np.floor(place).astype(int)
            part = place - base
            entries = np.concatenate([1 - part, part])
            columns = np.concatenate([base % m, (base + 1) % m])
            rows = np.tile(np.arange(n), 2)
            axis = scipy.sparse.csr_matrix((entries, (rows, columns)), shape=(n, m))
            whole = scipy.sparse.kron(whole, axis, format="csr")
        return scipy.sparse.csr_matrix(whole)

    def _root(self, model: LogNormal) -> Tensor:
        """``D^{1/2}`` of the low modes, for coarse fields of the same amplitude."""
        origin = torch.zeros(self._points, dtype=model.dtype)
        origin[0] = 1.0
        column = model.whitening.colour(origin).to(torch.float64).reshape(self.fine)
        spectrum = torch.fft.rfftn(column).real
        return self._low(spectrum) * math.sqrt(self.size / self._points)

    def _low(self, spectrum: Tensor) -> Tensor:
        x, y, z = self._modes
        return spectrum[..., x, :, :][..., y, :][..., z]

    def _colour(self, x: Tensor, root: Tensor) -> Tensor:
        modes = torch.fft.rfftn(x.reshape(-1, *self.shape), dim=(1, 2, 3)) * root
        return torch.fft.irfftn(modes, s=self.shape, dim=(1, 2, 3)).reshape(x.shape)

    def down(self, x: Float[Tensor, "b p"]) -> Float[Tensor, "b c"]:
        """``Vᵀ x``."""
        modes = self._low(torch.fft.rfftn(x.reshape(-1, *self.fine), dim=(1, 2, 3)))
        modes = modes * math.sqrt(self.size / self._points)
        field = torch.fft.irfftn(modes, s=self.shape, dim=(1, 2, 3))
        return field.reshape(len(x), -1)

    def up(self, c: Float[Tensor, "b c"]) -> Float[Tensor, "b p"]:
        """``V c``."""
        modes = torch.fft.rfftn(c.reshape(-1, *self.shape), dim=(1, 2, 3))
        modes = modes * math.sqrt(self._points / self.size)
        half = (*self.fine[:2], self.fine[2] // 2 + 1)
        full = torch.zeros(len(c), *half, dtype=modes.dtype)
        x, y, z = self._modes
        full[:, x[:, None, None], y[None, :, None], z[None, None, :]] = modes
        field = torch.fft.irfftn(full, s=self.fine, dim=(1, 2, 3))
        return field.reshape(len(c), -1)

    def __call__(self, x: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        return x + self.up(self.down(x) @ self._change)
