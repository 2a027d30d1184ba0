"""The engines behind one door: `ENGINES` by the name in a plan.

What an engine offers besides is data, in `pipelines.config.engines`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.functionals import Functionals, LineIntegrals, PointValues
from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.models.base import ForwardModel
from pipelines.config import FitConfig
from pipelines.config.engines import EngineName
from pipelines.model import full_batch, hipgp
from pipelines.model.plan import Plan
from pipelines.model.problem import Device, Inference, Problem


class Engine(Protocol):
    """A module with these functions, from a plan and data to a posterior.

    ``spacing_limits(extent, stars, work, config)`` returns the most grid steps in a
    lengthscale, and the least spacing [pc]; ``work`` is left to the solves, in a box
    with sides ``extent`` [pc]. `rays` and `build_model` are called as those below.
    """

    spacing_limits: Callable[[np.ndarray, int, float, FitConfig], tuple[float, float]]
    rays: Callable[..., LineIntegrals]
    build_model: Callable[..., ForwardModel]
    infer: Callable[[Problem], Inference]


ENGINES: dict[EngineName, Engine] = {"full-batch": full_batch, "svi": hipgp}


def rays(
    plan: Plan, end: Tensor, start: Tensor | None = None, *, outwards: bool = False
) -> LineIntegrals:
    """Return line integrals [pc] by the quadrature of the plan's engine.

    With ``outwards`` their nodes suit sums along the ray from the observer.
    """
    return ENGINES[plan.engine].rays(plan, end, start, outwards=outwards)


def build_model(
    plan: Plan, functionals: Functionals, device: Device, group: Group | None = None
) -> ForwardModel:
    """Build the forward model of a plan for functionals such as stars' sight lines.

    The ranks of a ``group`` divide the functionals and call the model together.
    """
    return ENGINES[plan.engine].build_model(plan, functionals, device, group)


def posterior_model(
    plan: Plan, *, dtype: torch.dtype, device: torch.device, seed: int
) -> ForwardModel:
    """Return the field of a plan, without functionals."""
    generator = torch_stream(seed, Purpose.VARIANCE)
    given: Device = {"dtype": dtype, "device": device, "generator": generator}
    nowhere = torch.zeros(1, 3, dtype=torch.float64)
    return build_model(plan, PointValues(nowhere), given)


def run_engine(problem: Problem) -> Inference:
    """Return the posterior by the engine the plan names; all ranks have it."""
    state = problem.device["generator"].get_state()
    for group in (problem.group, problem.teams):
        group.require_alike("the random generator", state)
    return ENGINES[problem.plan.engine].infer(problem)
