"""What every stationary covariance function offers, and sums of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

Lags = Float[Tensor, "*batch d"]
Values = Float[Tensor, "*batch"]

# Below this share of k(0) an image adds nothing that float64 keeps.
IMAGE_TOLERANCE = 1e-17


class Kernel(ABC):
    """A stationary covariance ``k(x − x')``.

    ``derivatives`` says how often the field may be differentiated (0 or 1).
    """

    derivatives: ClassVar[int] | int = 0

    @abstractmethod
    def __call__(self, lag: Lags) -> Values:
        """Covariance ``k(Δ)`` at displacements ``Δ``."""

    @abstractmethod
    def first_derivative(self, lag: Lags, axis: int) -> Values:
        """``∂k/∂Δ_axis``. ``ValueError`` where the field has no derivative."""

    @abstractmethod
    def second_derivative(self, lag: Lags, axis: int, other: int) -> Values:
        """``∂²k/∂Δ_axis∂Δ_other``. ``ValueError`` where it does not exist."""

    @abstractmethod
    def periodised(
        self, periods: Sequence[float], tolerance: float = IMAGE_TOLERANCE
    ) -> Kernel:
        """The kernel summed over the images of a torus with these periods.

        An image that adds less than ``tolerance`` of ``k(0)`` anywhere is left out.
        """

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """The positive hyperparameters by name."""

    @abstractmethod
    def with_parameters(self, parameters: dict[str, Tensor]) -> Kernel:
        """The same kernel with other hyperparameters (names as ``parameters``)."""

    def covariance(
        self, lag: Lags, left: int | None = None, right: int | None = None
    ) -> Values:
        r"""``Cov(∂_left ρ(x), ∂_right ρ(x'))`` at ``Δ = x − x'``; ``None`` is a value.

        ``∂k(x−x')/∂x'_b = −k'_b(Δ)``, hence the signs.
        """
        if left is None and right is None:
            return self(lag)
        if right is None:
            assert left is not None
            return self.first_derivative(lag, left)
        if left is None:
            return -self.first_derivative(lag, right)
        return -self.second_derivative(lag, left, right)

    def __add__(self, other: Kernel) -> Sum:
        return Sum(terms=(self, other))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sum(Kernel):
    """``k = Σ_i k_i``. Parameters are named ``0.lengthscale``, ``1.variance``, …"""

    terms: tuple[Kernel, ...]

    @property
    def derivatives(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The roughest term decides."""
        return min(term.derivatives for term in self.terms)

    def __call__(self, lag: Lags) -> Values:
        return torch.stack([term(lag) for term in self.terms]).sum(dim=0)

    def first_derivative(self, lag: Lags, axis: int) -> Values:
        parts = [term.first_derivative(lag, axis) for term in self.terms]
        return torch.stack(parts).sum(dim=0)

    def second_derivative(self, lag: Lags, axis: int, other: int) -> Values:
        parts = [term.second_derivative(lag, axis, other) for term in self.terms]
        return torch.stack(parts).sum(dim=0)

    def periodised(
        self, periods: Sequence[float], tolerance: float = IMAGE_TOLERANCE
    ) -> Kernel:
        parts = tuple(term.periodised(periods, tolerance) for term in self.terms)
        return Sum(terms=parts)

    def parameters(self) -> dict[str, Tensor]:
        return {
            f"{i}.{name}": value
            for i, term in enumerate(self.terms)
            for name, value in term.parameters().items()
        }

    def with_parameters(self, parameters: dict[str, Tensor]) -> Sum:
        terms = []
        for i, term in enumerate(self.terms):
            prefix = f"{i}."
            own = {
                name.removeprefix(prefix): value
                for name, value in parameters.items()
                if name.startswith(prefix)
            }
            terms.append(term.with_parameters(own))
        return replace(self, terms=tuple(terms))
