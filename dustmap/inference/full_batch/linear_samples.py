"""Samples of a Gaussian posterior by solves with white right-hand sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch.fit import Fit
from dustmap.inference.full_batch.gauss_newton import Precision, named
from dustmap.inference.full_batch.white_noise import White
from dustmap.linalg.cg import Solution
from dustmap.models.base import Linearisation


def draw(
    fit: Fit,
    tangent: Linearisation,
    total: Float[Tensor, " n"],
    mean: Float[Tensor, " p"],
    white: White,
    *,
    save: Callable[[Solution], None],
    restored: Solution | None = None,
) -> Solution:
    """``m + Λ⁻¹ (Φᵀ Σ^{-1/2} η + ξ)`` in blocks; (η, ξ) the white noise's pairs.

    ``save`` is called with the solves so far after every block.

    Raises
    ------
    FloatingPointError
        If a solve is not finite.
    """
    settings = fit.settings
    precision = Precision(tangent.operator, total)
    root = total.sqrt()
    solved = restored
    while solved is None or len(solved.value) < settings.samples:
        first = 0 if solved is None else len(solved.value)
        count = min(settings.block, settings.samples - first)
        numbers = range(first, first + count)
        rhs = torch.stack([_rhs(tangent, root, mean, white, s) for s in numbers])
        name = f"samples {first + 1}-{first + count}"
        block = settings.sample_solver.solve(
            precision.matvec,
            rhs,
            preconditioner=fit.cache.preconditioner,
            on_step=named(fit.on_step, name),
            space=precision.domain,
        )
        require_finite(name, residual=block.residual)
        solved = block if solved is None else Solution.joined([solved, block])
        save(solved)
    return replace(solved, value=mean + solved.value)


def _rhs(
    tangent: Linearisation, root: Tensor, mean: Tensor, white: White, number: int
) -> Tensor:
    eta, xi = white.pair(number, len(root), len(mean), tangent.operator.domain)
    return tangent.operator.rmatvec(eta.to(root) / root) + xi.to(mean)
