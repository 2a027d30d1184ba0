"""What every stationary covariance function offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from dustmap.kernels.composite import Sum

Lags = Float[Tensor, "*batch d"]
Values = Float[Tensor, "*batch"]


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
    def periodised(self, periods: Sequence[float]) -> Kernel:
        """The kernel summed over all images of a torus with these periods."""

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
        # A sum is itself a kernel: at the top this import would go in a circle.
        from dustmap.kernels.composite import Sum

        return Sum(terms=(self, other))
