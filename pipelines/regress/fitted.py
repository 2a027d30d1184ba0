"""What every method of regression hands back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Radial
from dustmap.likelihoods import Likelihood

Latent = Callable[[Float[Tensor, "n d"]], LatentMoments]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """A fitted regression, in standardised units.

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
    messages
        For people, one line each.
    facts
        For the record.
    """

    latent: Latent
    likelihood: Likelihood
    kernel: Radial
    mean: float
    why: str
    converged: bool
    messages: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
