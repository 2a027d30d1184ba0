r"""Posterior samples of a non-linear model by randomised maximum likelihood.

A sample is the mode of a posterior with perturbed data and prior mean,

``ε_s = argmin ½ |ε − ξ_s|² + ½ Σ_n (y_n + Σ_n^{1/2} η_sn − apply(ε)_n)² / Σ_n``

with η_s and ξ_s standard normal: *randomised maximum likelihood* (Oliver, He & Reynolds
1996; Bardsley et al. 2014, SIAM J. Sci. Comput. 36, A1895, without their weights). For
a linear model these are exact samples. For a non-linear one every sample still fits its
data; samples from the tangent at the mode do not, and diverge where the density is
uncertain by a factor of ten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch.gauss_newton import GaussNewton, Target
from dustmap.inference.full_batch.progress import Fitted, Iterate
from dustmap.linalg.space import WHOLE, VectorSpace


def white_noise(
    seed: int, number: int, n: int, p: int, space: VectorSpace = WHOLE
) -> tuple[Float[Tensor, " n"], Float[Tensor, " p"]]:
    """η and ξ of one pair of samples (float64), reproducible by its number."""
    generator = torch.Generator().manual_seed(seed + number)
    eta = torch.randn(n, generator=generator, dtype=torch.float64)
    return eta, space.normal(1, p, generator)[0]


def perturbed_target(
    target: Target, seed: int, number: int, latent_size: int
) -> Target:
    """The objective of sample ``number``: 2k and 2k + 1 are an antithetic pair."""
    y, total = target.y, target.total
    eta, xi = white_noise(seed, number // 2, len(y), latent_size, target.space)
    sign = 1.0 if number % 2 == 0 else -1.0
    noise = sign * total.sqrt() * eta.to(total)
    return replace(target, y=y + noise, centre=sign * xi.to(total))


def fit_sample(
    newton: GaussNewton,
    at: Iterate,
    *,
    steps: int,
    tolerance: float,
    save: Callable[[Iterate], None] | None = None,
) -> Fitted:
    """At most ``steps`` until the expected decrease is below ``tolerance`` [nats].

    A tolerance in nats does not depend on the size of the signal, as a relative
    residual would. The solver only limits the number of iterations. ``save`` is called
    between two steps.

    Raises
    ------
    FloatingPointError
        If a prediction, the objective or a solve is not finite.
    """
    # The tolerance relative to the gradient decides.
    solver = replace(newton.solver, rtol=torch.finfo(at.eps.dtype).eps)
    newton = replace(newton, solver=solver)
    while True:
        where = f"{newton.stage}, step {at.steps}"
        tangent = newton.model.linearise(at.eps)
        require_finite(where, prediction=tangent.prediction)
        step = newton.step(tangent, at.eps, where)
        iterations = at.iterations + int(step.solution.iterations.max())
        at = replace(at, eps=step.eps, iterations=iterations, steps=at.steps + 1)
        converged = step.expected_decrease < tolerance
        if converged or step.gain is None or at.steps >= steps:
            return Fitted(
                eps=at.eps,
                expected_decrease=step.expected_decrease,
                iterations=iterations,
                converged=converged,
            )
        if save is not None:
            save(at)
