"""Samples of a posterior that is Gaussian, by solves with white right-hand sides."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch_fit import Fit
from dustmap.inference.gauss_newton import Precision, named
from dustmap.inference.journal import saved_solution, solution_of, solution_pattern
from dustmap.inference.white_noise import White
from dustmap.journal import State
from dustmap.linalg.cg import Solution
from dustmap.models.base import Linearisation


def draw(
    fit: Fit,
    tangent: Linearisation,
    total: Float[Tensor, " n"],
    mean: Float[Tensor, " p"],
    white: White,
) -> Solution:
    """``m + Λ⁻¹ (Φᵀ Σ^{-1/2} η + ξ)`` in blocks; (η, ξ) the white noise's pairs.

    At least one sample. In the fit's journal this is the frame ``samples``: blocks that
    are done.

    Raises
    ------
    FloatingPointError
        If a solve is not finite.
    """
    settings, device = fit.settings, fit.model.device
    precision = Precision(tangent.operator, total)
    root = total.sqrt()
    parts: list[Solution] = []
    with fit.journal.frame("samples") as frame:
        known = frame.take(solution_pattern(None, len(mean), mean.dtype))
        if known is not None:
            parts.append(solution_of(known, device))

        def saved() -> State:
            return saved_solution(Solution.joined([_none(mean), *parts]))

        frame.expose(saved)
        done = sum(len(each.value) for each in parts)
        for first in range(done, settings.samples, settings.block):
            count = min(settings.block, settings.samples - first)
            numbers = range(first, first + count)
            rhs = torch.stack([_rhs(tangent, root, mean, white, s) for s in numbers])
            solution = settings.sample_solver.solve(
                precision.matvec,
                rhs,
                preconditioner=fit.sketching.preconditioner,
                on_step=named(fit.on_step, f"samples {first + 1}-{first + count}"),
                space=precision.domain,
            )
            fit.journal.require_finite("a solve", residual=solution.residual)
            parts.append(solution)
            fit.journal.safe_point()
    whole = Solution.joined(parts)
    return replace(whole, value=mean + whole.value)


def _none(mean: Float[Tensor, " p"]) -> Solution:
    """No samples yet."""
    empty = torch.zeros(0, dtype=torch.float64, device=mean.device)
    return Solution(
        value=mean.new_zeros(0, len(mean)),
        residual=empty,
        iterations=empty.to(torch.int64),
        converged=empty.to(torch.bool),
    )


def _rhs(
    tangent: Linearisation, root: Tensor, mean: Tensor, white: White, number: int
) -> Tensor:
    eta, xi = white.pair(number, len(root), len(mean), tangent.operator.domain)
    return tangent.operator.rmatvec(eta.to(root) / root) + xi.to(mean)
