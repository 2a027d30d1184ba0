r"""The interface between prior and likelihood: a forward model.

Inference engines use a model only through ``apply``, ``linearise`` and
``residual_draws``, and must not assume that it is linear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.linalg.operator import LinearOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearisation:
    r"""``L_n ρ(ε + δ) ≈ prediction_n + (Φ δ)_n`` around one ε.

    Parameters
    ----------
    prediction
        ``apply(ε)``.
    operator
        Φ, of shape (N, P).
    variance
        ``v_n(ε)``, the conditional variance of ``L_n ρ`` given ε, which the grid cannot
        resolve.
    """

    prediction: Float[Tensor, " n"]
    operator: LinearOperator
    variance: Float[Tensor, " n"]


class ForwardModel(ABC):
    """From whitened parameters ε ~ N(0, I) to predictions of N observations."""

    latent_size: int
    dtype: torch.dtype
    device: torch.device
    # Whether every prediction is positive: quantiles are then log-normal.
    positive: bool = False
    # Whether ``apply`` is linear in ε (and the tangent the same everywhere).
    linear: bool = False
    # Independent share α of the unresolved variance of line integrals.
    subgrid_share: float = 1.0

    # Places of the latent numbers that observations tell most about, if it is known.
    leading: Int[Tensor, " k"] | None = None

    @property
    @abstractmethod
    def functionals(self) -> Functionals:
        """The observed functionals."""

    @abstractmethod
    def apply(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch n"]:
        """``E[L_n ρ | ε]`` for all observations, mean function included."""

    @abstractmethod
    def linearise(self, eps: Float[Tensor, " p"]) -> Linearisation:
        """The model's tangent at ε."""

    def retract(
        self, eps: Float[Tensor, " p"], step: Float[Tensor, " p"], length: float
    ) -> Float[Tensor, " p"]:
        """``ε + length · step``, or another curve with the same tangent at ε."""
        return eps + length * step

    def with_subgrid_share(self, share: float) -> ForwardModel:
        """The same field with another share of the unresolved variance."""
        raise ValueError(f"{type(self).__name__} takes the unresolved variance whole")

    def in_modes(self) -> ForwardModel:
        """The model in an orthonormal basis of ε where products cost less, or itself.

        It takes ``latent(ε)`` for ε; inner products are the same.
        """
        return self

    @property
    def white_size(self) -> int:
        """Length of ε, that of ``latent(ε)`` being ``latent_size``."""
        return self.latent_size

    def latent(self, white: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch p"]:
        """ε in the model's basis."""
        return white

    def white(self, latent: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch m"]:
        """The inverse of :meth:`latent`."""
        return latent

    @abstractmethod
    def residual_draws(
        self, eps: Float[Tensor, "s p"], generator: torch.Generator
    ) -> Float[Tensor, "s n"]:
        """A draw of ``L_n ρ − E[L_n ρ | ε_s]`` per ε, joint in all observations."""

    def residual_from(
        self, eps: Float[Tensor, "s p"], white: Float[Tensor, "s n"]
    ) -> Float[Tensor, "s n"]:
        """The same from given standard normals, independent between functionals."""
        raise ValueError(
            f"the residuals of {type(self).__name__} are correlated between functionals"
        )

    @abstractmethod
    def at(self, functionals: Functionals) -> ForwardModel:
        """The same field with other functionals."""
