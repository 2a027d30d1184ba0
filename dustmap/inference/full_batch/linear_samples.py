"""Samples of a Gaussian posterior by solves with white right-hand sides."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch.fit import Fit
from dustmap.inference.full_batch.gauss_newton import Precision
from dustmap.inference.full_batch.randomized_map import white_noise
from dustmap.linalg.cg import Solution
from dustmap.models.base import Linearisation


def linear_samples(
    fit: Fit,
    tangent: Linearisation,
    total: Float[Tensor, " n"],
    mean: Float[Tensor, " p"],
) -> Solution:
    """``m + Λ⁻¹ (Φᵀ Σ^{-1/2} η + ξ)`` in blocks, with white noise η and ξ.

    The fit is saved after every block.

    Raises
    ------
    FloatingPointError
        If a solve is not finite.
    """
    settings, root = fit.settings, total.sqrt()
    precision = Precision(tangent.operator, total)

    def right_side(number: int) -> Float[Tensor, " p"]:
        eta, xi = white_noise(fit.seed, number, len(root), len(mean), precision.domain)
        return tangent.operator.rmatvec(eta.to(root) / root) + xi.to(mean)

    while fit.blocks is None or len(fit.blocks.value) < settings.samples:
        first = 0 if fit.blocks is None else len(fit.blocks.value)
        last = min(first + settings.block, settings.samples)
        name = f"samples {first + 1}-{last}"
        block = settings.sample_solver.solve(
            precision.matvec,
            torch.stack([right_side(number) for number in range(first, last)]),
            preconditioner=fit.cache.preconditioner,
            on_step=functools.partial(fit.on_step, name),
            space=precision.domain,
        )
        require_finite(name, residual=block.residual)
        if fit.blocks is not None:
            block = Solution.joined([fit.blocks, block])
        fit.save(blocks=block)
    return replace(fit.blocks, value=mean + fit.blocks.value)
