"""The interface of stationary covariance functions; sums and the constant one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
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
    def __call__(self, lag: Lags, *axes: int) -> Values:
        """``k(Δ)``; with axes its derivative ``∂k/∂Δ_a`` or ``∂²k/∂Δ_a∂Δ_b``.

        Raises
        ------
        ValueError
            If the field has no derivative.
        """

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

        ``∂k(x−x')/∂x'_b = −k'_b(Δ)``, hence the sign.
        """
        values = self(lag, *(axis for axis in (left, right) if axis is not None))
        return values if right is None else -values

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

    def __call__(self, lag: Lags, *axes: int) -> Values:
        return torch.stack([term(lag, *axes) for term in self.terms]).sum(dim=0)

    def periodised(
        self, periods: Sequence[float], tolerance: float = IMAGE_TOLERANCE
    ) -> Kernel:
        return Sum(terms=tuple(t.periodised(periods, tolerance) for t in self.terms))

    def parameters(self) -> dict[str, Tensor]:
        return {
            f"{i}.{name}": value
            for i, term in enumerate(self.terms)
            for name, value in term.parameters().items()
        }

    def with_parameters(self, parameters: dict[str, Tensor]) -> Sum:
        own: list[dict[str, Tensor]] = [{} for _ in self.terms]
        for name, value in parameters.items():
            term, _, rest = name.partition(".")
            own[int(term)][rest] = value
        changed = zip(self.terms, own, strict=True)
        return Sum(terms=tuple(term.with_parameters(part) for term, part in changed))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constant(Kernel):
    """``k(Δ) = variance``: an unknown offset common to the whole field."""

    variance: Tensor
    derivatives = 1

    def __init__(self, *, variance: float | Tensor) -> None:
        object.__setattr__(self, "variance", positive("variance", variance))

    def __call__(self, lag: Lags, *axes: int) -> Values:
        if axes:
            return torch.zeros_like(lag[..., 0])
        return self.variance.to(lag).expand(lag.shape[:-1])

    def periodised(
        self, periods: Sequence[float], tolerance: float = IMAGE_TOLERANCE
    ) -> Kernel:
        """Itself: a constant has every period (its image sum would diverge)."""
        return self

    def parameters(self) -> dict[str, Tensor]:
        return {"variance": self.variance}

    def with_parameters(self, parameters: dict[str, Tensor]) -> Constant:
        return Constant(variance=parameters.get("variance", self.variance))


def positive(name: str, value: float | Sequence[float] | Tensor) -> Tensor:
    """A hyperparameter in float64, or a ValueError if it is not positive and finite."""
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if not bool(torch.isfinite(tensor).all() and (tensor > 0).all()):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return tensor
