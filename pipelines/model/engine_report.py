"""What a full-batch inference says of itself: in words, and as facts for the run."""

from __future__ import annotations

from typing import Any

import torch

from dustmap.inference.full_batch import FullBatchResult
from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal

# Expected decrease at which a lognormal fit is done [nats per star]: an error
# of 0.14 posterior standard deviations in each direction that a star fixes.
NEWTON_TOLERANCE = 1e-2


def messages_of(
    model: ForwardModel, result: FullBatchResult, tolerance: float
) -> tuple[str, ...]:
    """What the solves, the steps and the share say of themselves."""
    messages = [f"mean: {result.mean_solution.message}{_rule(result, tolerance)}"]
    if not model.linear and not result.converged:
        messages.append(
            f"the log-normal fit, {result.newton_steps} Gauss-Newton steps to the mode "
            "and those of every sample, stopped while a step was expected to gain over "
            f"{NEWTON_TOLERANCE} nats per star"
        )
    if result.sample_solution is not None:
        messages.append(f"samples: {result.sample_solution.message}")
    if not result.share_settled:
        messages.append(
            "the share of the unresolved variance still moved when its rounds ended, "
            f"or is the least or largest that is tried ({result.subgrid_share:.3g}): "
            "intervals may be off by that much"
        )
    return tuple(messages)


def _rule(result: FullBatchResult, tolerance: float) -> str:
    """By what the last solve of several steps ended, if not by ``tolerance``."""
    solution = result.mean_solution
    ended = bool(solution.converged.all())
    if not ended or not bool((solution.residual > 1.01 * tolerance).any()):
        return ""
    return (
        f", as small as the last of {result.newton_steps} Gauss-Newton steps needs; "
        f"these end when the expected decrease is {NEWTON_TOLERANCE:g} nats per star "
        f"(inference.tolerance = {tolerance:g} is of fits in one step)"
    )


def outlier_facts(result: FullBatchResult) -> dict[str, Any]:
    """Steps of the fit, and stars that count less."""
    facts: dict[str, Any] = {"newton_steps": result.newton_steps}
    if result.degrees is not None:
        down = result.weights < 0.3
        facts["student_degrees"] = result.degrees
        facts["stars_weighed_down"] = int(down.sum())
    return facts


def torus_facts(model: ForwardModel) -> dict[str, Any]:
    """The torus, what it leaves out, and the size of W."""
    assert isinstance(model, TorusGaussian | LogNormal)
    report = model.whitening.report
    if isinstance(model, LogNormal):
        subgrid = {"subgrid_line_variance": model.local.line}
    else:
        median = model.variance.to(torch.float64).sqrt().median()
        subgrid = {"median_subgrid_std": float(median)}
    return {
        "torus_shape": list(report.shape),
        "wrap_error": report.wrap_error,
        "dropped_modes": report.dropped_modes,
        "entries_of_W": model.weights.nonzeros,
        **subgrid,
    }
