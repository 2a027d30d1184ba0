"""The task of an engine, its result, and its device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch
from pydantic import ConfigDict
from torch import Tensor

from dustmap.checkpoint import Checkpointer
from dustmap.distributed.group import Group
from dustmap.inference.full_batch.gauss_newton import OnStep
from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.residual.vecchia import Vecchia
from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars
from pipelines.config import FitConfig
from pipelines.model.cost import uses_cuda
from pipelines.model.plan import Plan


class Device(TypedDict):
    """Device and precision of the products, and the random generator."""

    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator


def device_of(config: FitConfig) -> Device:
    """Return the configured device; ``auto`` uses CUDA if present.

    Engines without single precision compute in float64.

    Raises `InputError` if CUDA is requested and absent, or TF32 is on.
    """
    inference = config.inference
    if inference.device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "inference.device = cuda, but torch sees no CUDA device: install a CUDA "
            "build of torch (see the README) or use device = auto"
        )
    on_cuda = uses_cuda(config)
    if on_cuda and torch.backends.cuda.matmul.allow_tf32:
        raise InputError("TF32 is on, but too coarse for a fit: switch it off")
    precise = inference.dtype == "float64" or not inference.abilities.single_precision
    return Device(
        device=torch.device("cuda" if on_cuda else "cpu"),
        dtype=torch.float64 if precise else torch.float32,
        generator=torch_stream(inference.seed, Purpose.FIT),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The task of an engine.

    The ranks of ``group`` divide the stars, ``teams`` the samples (`Group.split`);
    ``checkpointer`` holds the state to resume. The stars' noise is independent, or has
    this ``correlation``; beside it they have ``shared_errors`` (see
    `dustmap.inference.full_batch.infer`). The search of the mode begins at ``start``
    if that is of the same modes, with loose tolerances if ``rough``. Engines with this
    ability draw the shared errors.
    """

    plan: Plan
    stars: Stars
    config: FitConfig
    device: Device
    on_step: OnStep
    checkpointer: Checkpointer[Any] | None = None
    group: Group = field(default_factory=Group)
    teams: Group = field(default_factory=Group)
    correlation: Vecchia | None = None
    shared_errors: Tensor | None = None
    start: Tensor | None = None
    rough: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """The posterior from an engine: ε's mean and samples, and diagnostics.

    ``plan`` holds the learnt hyperparameters; ``noise`` [mag] is the standard deviation
    used to weight every star. ``warnings`` are the ``messages`` that remain of concern
    in a converged fit.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    plan: Plan
    mean: Tensor
    samples: Tensor
    noise: Tensor
    converged: bool
    messages: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
