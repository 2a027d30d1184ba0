"""The forward model of a plan, with functionals such as stars' sight lines."""

from __future__ import annotations

from typing import Any

import torch

from dustmap.distributed.group import Group
from dustmap.functionals import Functionals
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import (
    LevelWhitening,
    ToeplitzWhitening,
    TorusWhitening,
)
from pipelines.model.plan import RESIDUAL_DRAWS, Plan


def build_model(
    plan: Plan,
    functionals: Functionals,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    group: Group | None = None,
) -> ForwardModel:
    """Build the forward model of a plan for these functionals.

    The ranks of a group divide the functionals, and call the model together.
    """
    shared: dict[str, Any] = {"mean": plan.mean, "group": group}
    if not plan.is_full_batch:
        whitening = toeplitz_whitening(plan, device)
        return RowwiseGaussian(whitening, functionals, **shared)
    place: dict[str, Any] = {"cut": plan.cut, "dtype": dtype, "device": device}
    kernel, tori = plan.build_kernel(), plan.tori
    if not plan.is_lognormal:
        return TorusGaussian(
            TorusWhitening(kernel, tori[0], **place),
            functionals,
            residual_refinement=2,
            residual_count=RESIDUAL_DRAWS,
            generator=generator,
            **shared,
        )
    return LogNormal(
        LevelWhitening(kernel, tori, **place)
        if len(tori) > 1
        else TorusWhitening(kernel, tori[0], **place),
        functionals,
        subgrid_share=plan.subgrid_share,
        **shared,
    )


def toeplitz_whitening(plan: Plan, device: torch.device) -> ToeplitzWhitening:
    """Build the published engine's whitening, on the grid's circulant embedding."""
    own = plan.embedding
    return ToeplitzWhitening(
        plan.build_kernel(),
        plan.grid,
        lengthscales=plan.lengthscale,
        nugget=own.nugget,
        limits=EmbeddingLimits(max_points=own.max_points),
        solver=ConjugateGradients(rtol=own.tolerance, max_steps=own.max_steps),
        shape=own.shape or None,
        device=device,
    )
