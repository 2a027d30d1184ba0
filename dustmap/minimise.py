r"""Minima of smooth losses: by L-BFGS-B, or by the scores of independent rows.

If a loss holds a normal prior of unit variance, the gain that is left where all
derivatives are below g is at most :math:`g^2 / 2` nats per number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """The best place of a search, and the status of the search.

    ``finite`` is false if a value or derivative was not finite: the search ended there.
    ``failures`` counts places where the loss raised a `FloatingPointError`, which count
    as the worst; ``scores`` holds the rows' derivatives, zero where not finite.
    """

    place: Float[Tensor, " p"]
    value: float
    steps: int
    converged: bool
    finite: bool
    at_bound: Bool[Tensor, " p"]
    message: str = ""
    failures: int = 0
    scores: Float[Tensor, "m p"] | None = None


def minimise(
    loss: Callable[[Tensor], Tensor],
    start: Float[Tensor, " p"],
    *,
    slope: float = 0.03,
    flat: float = 1e-9,
    lower: Float[Tensor, " p"] | float = -math.inf,
    upper: Float[Tensor, " p"] | float = math.inf,
    max_steps: int = 200,
) -> Minimum:
    """Minimise a loss with derivatives by SciPy's L-BFGS-B.

    Source: Byrd, Lu, Nocedal & Zhu 1995 (SIAM J. Sci. Comput. 16, 1190). It converges
    where no derivative (except towards a bound) exceeds ``slope``, or where a step
    gains less than the fraction ``flat`` of the value. The value is infinite if the
    loss is not finite at the start.

    Raises `FloatingPointError` if the loss raises one at the start.
    """
    low, high = (torch.as_tensor(end).expand_as(start) for end in (lower, upper))
    # The optimiser caps a derivative at the distance to a bound before comparing it
    # with the tolerance: in this unit the cap is a thousand tolerances.
    reach = float((high - low).max()) / 2
    unit = 1000.0 * slope / reach if math.isfinite(reach) else 1.0
    best, place, finite, failures = math.inf, start, True, 0

    @torch.enable_grad()
    def evaluated(vector: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, place, finite, failures
        here = torch.tensor(vector, requires_grad=True)
        try:
            found = loss(here)
            value, gradient = float(found.detach()), torch.autograd.grad(found, here)[0]
        except FloatingPointError:
            if math.isinf(best):
                raise
            failures, value, gradient = failures + 1, math.inf, torch.zeros_like(here)
        else:
            finite &= math.isfinite(value) and bool(gradient.isfinite().all())
        if not (finite and math.isfinite(value)):
            return (abs(best) * 10 + 1e6) / unit, np.zeros_like(vector)
        if value < best:
            best, place = value, here.detach()
        return value / unit, gradient.numpy() / unit

    def proceed(_: np.ndarray) -> None:
        if not finite:
            raise StopIteration

    found = scipy.optimize.minimize(
        evaluated,
        start.numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=np.column_stack([low, high]),
        callback=proceed,
        options={"maxiter": max_steps, "gtol": slope / unit, "ftol": flat},
    )
    return Minimum(
        place=place,
        value=best,
        steps=int(found.nit),
        converged=bool(found.success) and finite,
        finite=finite,
        at_bound=torch.minimum(place - low, high - place) <= 1e-8,
        message=str(found.message) if finite else "a value is not finite",
        failures=failures,
    )


def minimise_by_scores(
    log_density: Callable[[Tensor], Tensor],
    start: Float[Tensor, " p"],
    *,
    precision: Float[Tensor, " p"],
    lower: Float[Tensor, " p"],
    gain: float,
    longest: float,
    max_steps: int,
    on_step: Callable[[int, float], None],
) -> Minimum:
    r"""Minimise minus the log density of independent rows and of a normal prior.

    The prior is about zero. Newton's steps have the sum of outer products of the rows'
    scores, by finite differences, and the prior's ``precision`` for a curvature (Berndt
    et al. 1974, Ann. Econ. Soc. Meas. 3, 653). They are damped until no change exceeds
    ``longest``, and halved until they gain, five times at most. The search converges
    where the expected gain is less than ``gain`` [nats]; ``on_step`` is called with the
    number and the expected gain of each step.
    """

    def value_of(rows: Tensor, place: Tensor) -> float:
        return float((precision * place) @ place / 2 - rows.sum())

    place, rows, eye = start, log_density(start), torch.eye(len(start)).to(start)
    difference = 0.002
    for step in range(1, max_steps + 1):
        ahead = [log_density(place + move) for move in difference * eye]
        scores = (torch.stack(ahead, dim=1) - rows[:, None]) / difference
        sound, value = scores.isfinite().all(dim=1), value_of(rows, place)
        scores = scores.where(sound[:, None], 0.0)
        information = scores.T @ scores + precision.diag()
        slope = scores.sum(dim=0) - precision * place
        move = torch.linalg.solve(information, slope)
        expected, damping = 0.5 * float(slope @ move), 0.0
        finite = math.isfinite(value) and bool(information.isfinite().all())
        finite &= bool(sound.all())
        on_step(step, expected)
        if not finite or expected < gain or step == max_steps:
            break
        while float(move.abs().max()) > longest:
            damping = max(1.0, 2 * damping)
            move = torch.linalg.solve(information + damping * eye, slope)
        for halving in range(6):
            # No coordinate falls below its bound.
            tried = (place + move / 2**halving).clamp(min=lower)
            reached = log_density(tried)
            if value_of(reached, tried) < value:
                break
        else:
            break
        place, rows = tried, reached
    return Minimum(
        place=place,
        value=value,
        steps=step,
        converged=finite and expected < gain,
        finite=finite,
        at_bound=place <= lower,
        scores=scores,
    )
