r"""Exact features as functions of the kernel's hyperparameters.

The whole row computation ``k_un(θ)``, ``k_nn(θ)``, ``K(θ)⁻¹``, ``R(θ)`` is
differentiated: autograd for the kernel and the square root of the spectrum, the
analytic derivative of :mod:`dustmap.linalg.toeplitz` for the solve. (HIP-GP's
S13–S16 cover the solve alone; without the derivative of R the gradient is wrong.)
The shape of the embedding, and so the meaning of ε, is held fixed. Other whitenings
differentiate their own features.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.covariance import functional_variance
from dustmap.kernels import Kernel
from dustmap.linalg.circulant import DROP, Circulant
from dustmap.linalg.toeplitz import extend, first_column, toeplitz_solve
from dustmap.models.rowwise import FeatureRows, RowwiseGaussian, cross_covariance
from dustmap.whitening import ToeplitzWhitening, Whitening


def differentiable_rows(
    model: RowwiseGaussian,
    kernel: Kernel,
    index: Int[Tensor, " b"],
    *,
    whitening: Whitening | None = None,
) -> FeatureRows:
    """``k_n(θ)`` and ``v_n(θ)`` with their derivatives in ``kernel``'s parameters.

    Cost: one solve forward and one backward for each row.

    Parameters
    ----------
    model
        Supplies the functionals and takes the solves' report.
    kernel
        A kernel whose parameters carry gradients.
    index
        Numbers of the observations.
    whitening
        On an embedding: solver and embedding at the same hyperparameters, by default
        the model's. Else one of ``kernel``, whose points may carry gradients, too.
    """
    whitening = model.whitening if whitening is None else whitening
    if not isinstance(whitening, ToeplitzWhitening):
        if whitening.kernel is not kernel:
            whitening = whitening.with_kernel(kernel)
        return model.free_rows(whitening, index)
    column, root = embedded_spectra(whitening, kernel)
    part = model.functionals.select(index)
    cross = cross_covariance(kernel, part, whitening.points)
    dual, solution = toeplitz_solve(column, cross, whitening.solve)
    model.report = model.report.with_solution(solution)
    features = root.matvec(extend(dual, whitening.grid.shape, root))
    total = functional_variance(kernel, part, device=model.device)
    explained = 2 * (dual * cross).sum(dim=-1) - (features**2).sum(dim=-1)
    return FeatureRows(features, model.checked_variance(total, explained))


def embedded_spectra(
    whitening: ToeplitzWhitening, kernel: Kernel
) -> tuple[Float[Tensor, "*n"], Circulant]:
    """The column of K at the box's lags, and ``C^{1/2}``, as functions of θ.

    Modes that the whitening drops are dropped here: they have no square root.
    """
    torus = whitening.embedding.torus
    column = first_column(kernel, torus, whitening.nugget, whitening.device)
    spectrum = torch.fft.rfftn(column).real
    values = whitening.embedding.circulant.spectrum
    kept = (values > DROP * values.max()).to(spectrum.device)
    positive = torch.where(kept, spectrum, torch.zeros_like(spectrum))
    block = tuple(slice(0, n) for n in whitening.grid.shape)
    column = torch.fft.irfftn(positive, s=torus.shape)[block]
    safe = torch.where(kept, spectrum, torch.ones_like(spectrum))
    roots = torch.where(kept, safe.sqrt(), torch.zeros_like(spectrum))
    return column, Circulant(roots, torus.shape)
