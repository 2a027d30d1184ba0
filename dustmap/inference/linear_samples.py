"""Samples of a posterior that is Gaussian, by solves with white right-hand sides."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch_fit import Fit
from dustmap.inference.gauss_newton import Precision, named
from dustmap.inference.journal import (
    generator_kind,
    saved_solution,
    solution_of,
    solution_pattern,
)
from dustmap.journal import State
from dustmap.linalg.cg import Solution
from dustmap.models.base import Linearisation


def draw(
    fit: Fit,
    tangent: Linearisation,
    total: Float[Tensor, " n"],
    mean: Float[Tensor, " p"],
) -> Solution | None:
    """``m + Λ⁻¹ (Φᵀ Σ^{-1/2} η + ξ)`` in blocks; (η, ξ) drawn one by one.

    ``None`` if no samples are asked for. In the fit's journal this is the frame
    ``samples``: blocks that are done, and the generator before the one at hand.

    Raises
    ------
    FloatingPointError
        If a solve is not finite.
    """
    settings, device = fit.settings, fit.model.device
    if settings.samples == 0:
        return None
    precision = Precision(tangent.operator, total)
    root = total.sqrt()
    parts: list[Solution] = []
    with fit.journal.frame("samples") as frame:
        before = fit.generator.get_state()
        blocks = solution_pattern(None, len(mean), mean.dtype)
        known = frame.take({"generator": generator_kind(fit.generator), **blocks})
        if known is not None:
            parts.append(solution_of(known, device))
            before = known["generator"]
            fit.generator.set_state(before)

        def saved() -> State:
            joined = Solution.joined([_none(mean), *parts])
            return {"generator": before, **saved_solution(joined)}

        frame.expose(saved)
        done = sum(len(each.value) for each in parts)
        for first in range(done, settings.samples, settings.block):
            count = min(settings.block, settings.samples - first)
            before = fit.generator.get_state()
            rhs = torch.stack(
                [_sample_rhs(tangent, root, mean, fit.generator) for _ in range(count)]
            )
            solution = settings.sample_solver.solve(
                precision.matvec,
                rhs,
                preconditioner=fit.sketching.preconditioner,
                on_step=named(fit.on_step, f"samples {first + 1}-{first + count}"),
                journal=fit.journal,
                space=precision.domain,
            )
            parts.append(solution)
            before = fit.generator.get_state()
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


def _sample_rhs(
    tangent: Linearisation, root: Tensor, mean: Tensor, generator: torch.Generator
) -> Tensor:
    eta = torch.randn(len(root), generator=generator, dtype=torch.float64)
    xi = tangent.operator.domain.normal(1, len(mean), generator)[0]
    return tangent.operator.rmatvec(eta.to(root) / root) + xi.to(mean)
