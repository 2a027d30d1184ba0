"""What every method of regression takes and hands back, in standardised units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Radial
from dustmap.likelihoods import Likelihood

Latent = Callable[[Float[Tensor, "n d"]], LatentMoments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows to fit, their noise, and all inputs that may be asked for."""

    x: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]
    everywhere: Float[Tensor, "m d"]
    likelihood: type[Likelihood]
    generator: torch.Generator
    whitening: str = "cholesky"


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """A fitted regression.

    Parameters
    ----------
    latent
        From inputs to the moments of the latent field there.
    likelihood
        Of the target given the field.
    kernel, mean
        Of the field, learnt.
    why
        What decided for the kernel.
    converged
        Whether every search and solve did.
    messages
        For people, one line each.
    facts
        For the record.
    refit
        The same hyperparameters with other rows, of a method that can be compared.
    """

    latent: Latent
    likelihood: Likelihood
    kernel: Radial
    mean: float
    why: str
    converged: bool
    messages: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    refit: Callable[[Tensor, Tensor], FittedModel] | None = None
