r"""Gradients of fields on a torus by the kernel's hyperparameters at fixed ε.

A field depends on θ only through eigenvalues of circulants: with ``D_1``, ``D_r``,
``D_q`` those of the coarse, the quadrature's and the residual's torus,

``A_θ ε = F_r⁻¹[ D_r ⊙ tile( D_1^{-1/2} ⊙ F_1 ε ) ]``,
``f_θ = F_q⁻¹[ D_q^{1/2} ⊙ ω ]``.

The gradient of ``⟨g, A_θ ε⟩`` is therefore a weight on every eigenvalue. Weights of
many vectors add up, and the kernel is differentiated once at the end; by Parseval's
theorem no FFT is differentiated.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Torus
from dustmap.linalg.circulant import Circulant
from dustmap.whitening import TorusWhitening

# Number of lags that autograd holds at once.
_LAGS = 2**15


class SpectralGradient:
    """Accumulates ``∂/∂D`` of inner products with fields, then converts to ``∂/∂θ``.

    Modes whose eigenvalue is rounding error get no weight.

    Parameters
    ----------
    whitening
        A at the present hyperparameters.
    residual_refinement
        q, the refinement of the torus on which unresolved fields are drawn.
    """

    def __init__(self, whitening: TorusWhitening, residual_refinement: int) -> None:
        self.whitening = whitening
        self._fine = whitening.refined(residual_refinement)
        circulants = {
            1: whitening.coarse,
            whitening.refinement: whitening.fine,
            residual_refinement: self._fine.fine,
        }
        self._spectra: dict[int, Tensor] = {
            r: _full(circulant).to(whitening.device).requires_grad_(True)
            for r, circulant in circulants.items()
        }

    def add_coloured(
        self, eps: Float[Tensor, "s m"], cotangents: Float[Tensor, "s f"]
    ) -> None:
        """Add ``Σ_s ⟨g_s, A_θ ε_s⟩``. Cost per row: one coarse and one fine FFT."""
        w = self.whitening
        cross = torch.zeros(w.fine_shape, dtype=torch.float64, device=w.device)
        for one, cotangent in zip(eps, cotangents, strict=True):
            modes = _tiled(_modes(one, w.torus.shape), w.refinement)
            cross += (_modes(cotangent, w.fine_shape).conj() * modes).real
        total = (self._colouring() * cross).sum() / w.fine_size
        total.backward()

    def add_residual(
        self,
        field: Float[Tensor, " q"],
        of_field: Float[Tensor, " q"],
        of_conditional: Float[Tensor, " f"],
    ) -> None:
        """Add ``⟨g, f_θ⟩ − ⟨h, A_θ ε(f_θ)⟩`` of one draw of the field.

        Parameters
        ----------
        field
            The draw on the residual's torus at the present θ; its white noise ω is
            constant.
        of_field, of_conditional
            g, and h on the quadrature's torus.
        """
        w, fine = self.whitening, self._fine
        modes = _modes(field, fine.fine_shape)
        spectrum = self._spectra[fine.refinement]
        with torch.no_grad():
            white = _power(spectrum, -0.5) * modes
        drawn = _power(spectrum, 0.5) * white
        product = _modes(of_field, fine.fine_shape).conj() * drawn
        total = product.real.sum() / fine.fine_size
        coarse = self._folded(drawn, fine.refinement) / fine.refinement ** len(
            w.torus.shape
        )
        eps = _tiled(_power(self._spectra[1], -0.5) * coarse, w.refinement)
        product = _modes(of_conditional, w.fine_shape).conj() * self._colouring() * eps
        total = total - product.real.sum() / w.fine_size
        total.backward()

    def by_parameter(self) -> dict[str, Float[Tensor, "..."]]:
        """``∂/∂θ`` of the accumulated sum, one tensor per parameter of the kernel.

        Cost: the kernel and its derivative at the non-negative lags of each torus.
        """
        w = self.whitening
        start = w.kernel.parameters()
        # On the device, which avoids synchronisation in the backward pass.
        leaves = {
            n: v.detach().to(w.device, copy=True).requires_grad_(True)
            for n, v in start.items()
        }
        kernel = w.kernel.with_parameters(leaves)
        kernel = kernel.periodised(w.torus.periods, w.image_tolerance)
        for refinement, spectrum in self._spectra.items():
            if spectrum.grad is None:
                continue
            weights, lags = _on_lags(spectrum.grad, w.torus, refinement)
            for part, at in zip(weights.split(_LAGS), lags.split(_LAGS), strict=True):
                (part * kernel(at)).sum().backward()
        zero = {n: torch.zeros_like(v) for n, v in start.items()}
        return {
            n: zero[n] if v.grad is None else v.grad.to(zero[n])
            for n, v in leaves.items()
        }

    def _colouring(self) -> Tensor:
        """The multiplier of A on the tiled modes of ε."""
        if self.whitening.refinement == 1:
            return _power(self._spectra[1], 0.5)
        inverse = _power(self._spectra[1], -0.5)
        tiled = _tiled(inverse, self.whitening.refinement)
        return self._spectra[self.whitening.refinement] * tiled

    def _folded(self, modes: Tensor, refinement: int) -> Tensor:
        """Sum a full fine spectrum over aliases."""
        for axis, n in enumerate(self.whitening.torus.shape):
            modes = modes.unflatten(axis, (refinement, n)).sum(dim=axis)
        return modes


def _modes(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.fft.fftn(x.reshape(shape)).to(torch.complex128)


def _tiled(modes: Tensor, refinement: int) -> Tensor:
    return modes.repeat((refinement,) * modes.ndim)


def _power(spectrum: Tensor, exponent: float) -> Tensor:
    return Circulant(spectrum, tuple(spectrum.shape)).power(exponent).spectrum


def _full(circulant: Circulant) -> Tensor:
    """All eigenvalues of a half spectrum that is even along every axis."""
    half, last = circulant.spectrum, circulant.grid_shape[-1]
    return torch.cat([half, half[..., 1 : (last + 1) // 2].flip(-1)], dim=-1)


def _on_lags(
    gradient: Float[Tensor, "*n"], torus: Torus, refinement: int
) -> tuple[Float[Tensor, " l"], Float[Tensor, "l d"]]:
    """``∂/∂c`` at the non-negative lags from ``∂/∂D``, ``D_k = Σ_x c_x cos(k·x)``.

    Kernels are even along every axis: adding opposite lags saves all but ``2^{-D}`` of
    the kernel's evaluations.
    """
    weights = torch.fft.fftn(gradient).real
    for axis, n in enumerate(weights.shape):
        opposite = weights.narrow(axis, n // 2 + 1, (n - 1) // 2).flip(axis)
        weights = weights.narrow(axis, 0, n // 2 + 1).clone()
        weights.narrow(axis, 1, (n - 1) // 2).add_(opposite)
    steps = torus.half_lags(refinement, weights.device)
    lags = torch.stack(torch.meshgrid(*steps, indexing="ij"), dim=-1)
    return weights.reshape(-1), lags.reshape(-1, len(steps))
