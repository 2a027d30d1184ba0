r"""The interface between prior and likelihood: a forward model.

Inference engines use a model only through ``apply``, ``linearise`` and
``residual_draws``, and must not assume that it is linear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.linalg.operator import LinearOperator
from dustmap.shapes import Draws, Eps, EpsDraws, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearisation:
    r"""``L_n ρ(ε + δ) ≈ prediction_n + (Φ δ)_n`` around one ε.

    ``prediction`` is ``apply(ε)``, ``operator`` is Φ, of shape (N, P), and ``variance``
    is ``v_n(ε)``, the conditional variance of ``L_n ρ`` given ε.
    """

    prediction: Vector
    operator: LinearOperator
    variance: Vector


class ForwardModel(ABC):
    """Map from whitened parameters ε ~ N(0, I) to predictions of N observations."""

    functionals: Functionals
    """The observed functionals."""
    latent_size: int
    dtype: torch.dtype
    device: torch.device
    # True if every prediction is positive: quantiles are then log-normal.
    positive: bool = False
    # True if ``apply`` is linear in ε (and the tangent the same everywhere).
    linear: bool = False
    # Independent share α of the unresolved variance of line integrals.
    subgrid_share: float = 1.0

    # Indices in ε that observations constrain most, if known: a preconditioner needs no
    # others.
    leading: Int[Tensor, " k"] | None = None

    @abstractmethod
    def apply(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch n"]:
        """Return ``E[L_n ρ | ε]`` of all observations, mean function included."""

    @abstractmethod
    def linearise(self, eps: Eps) -> Linearisation:
        """Return the model's tangent at ε."""

    def with_subgrid_share(self, share: float) -> ForwardModel:
        """Return the same field with another share of the unresolved variance."""
        raise ValueError(f"{type(self).__name__} has no share of unresolved variance")

    def white_noise(self, generator: np.random.Generator) -> Eps:
        """Draw ε from its prior."""
        white = torch.from_numpy(generator.standard_normal(self.latent_size))
        return white.to(dtype=self.dtype, device=self.device)

    @abstractmethod
    def residual_draws(self, eps: EpsDraws, generator: torch.Generator) -> Draws:
        """Draw ``L_n ρ − E[L_n ρ | ε_s]`` once per ε, jointly in all observations."""

    @abstractmethod
    def at(self, functionals: Functionals) -> ForwardModel:
        """Return the same field with other functionals."""
