r"""Posterior variances without Monte Carlo error, one solve for each functional.

For a linear model ``Var[L_* ρ | y] = k_*ᵀ Λ⁻¹ k_* + v_*`` with k_* the functional's row
of features and ``Λ = I + Φᵀ Σ⁻¹ Φ`` (Wu et al. 2021, eq. S4, for the full-rank q).
Samples serve a whole cube at once; this serves the few numbers that go into a table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.inference.gauss_newton import Precision
from dustmap.linalg.cg import ConjugateGradients, Product, Solution
from dustmap.models.base import ForwardModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactVariance:
    """Posterior variances of functionals, and the status of their solves.

    A solve with relative residual r makes a variance too small by at most about
    ``r² κ(Λ)`` of ``k_*ᵀ k_*``, κ the condition number.
    """

    variance: Float[Tensor, " n"]
    solution: Solution


def exact_variance(
    model: ForwardModel,
    noise_variance: Float[Tensor, " n"],
    functionals: Functionals,
    *,
    solver: ConjugateGradients,
    preconditioner: Product | None = None,
    block: int = 16,
) -> ExactVariance:
    """``k_*ᵀ Λ⁻¹ k_* + v_*`` of every functional.

    Parameters
    ----------
    model
        Linear, seen through its observations.
    noise_variance
        Σ that these were weighted with (``FullBatchResult.noise_variance``).
    functionals
        What is asked for, say a few lines of sight.
    block
        Functionals solved for together: bounds the memory.

    Raises
    ------
    ValueError
        If the model is not linear: its posterior is not normal; if nothing is asked.
    """
    if not len(functionals):
        raise ValueError("at least one functional is needed, got none")
    if not model.linear:
        raise ValueError(
            f"{type(model).__name__} is not linear: its variances come from samples"
        )
    origin = torch.zeros(model.latent_size, dtype=model.dtype, device=model.device)
    operator = model.linearise(origin).operator
    precision = Precision(operator, noise_variance.to(origin))
    target = model.at(functionals).linearise(origin)
    variances, solved = [], []
    eye = torch.eye(len(functionals), dtype=model.dtype, device=model.device)
    for units in eye.split(block):
        rows = target.operator.rmatvec(units)
        solution = solver.solve(
            precision.matvec,
            rows,
            preconditioner=preconditioner,
            space=precision.domain,
        )
        solved.append(solution)
        # Second order in the solve's error: 2 kᵀx − xᵀΛx instead of kᵀx.
        x = solution.value.to(torch.float64)
        back = precision.matvec(solution.value).to(torch.float64)
        variances.append(precision.domain.inner(x, 2 * rows.to(torch.float64) - back))
    explained = torch.cat(variances)
    return ExactVariance(
        variance=(explained + target.variance.to(torch.float64)).cpu(),
        solution=Solution.joined(solved),
    )
