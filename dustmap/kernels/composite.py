"""Kernels made of kernels, and the constant one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dustmap.kernels.base import Kernel, Lags, Values
from dustmap.kernels.radial import Radial


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constant(Kernel):
    """``k(Δ) = variance``: an unknown offset common to the whole field."""

    variance: Tensor
    derivatives = 1

    def __init__(self, *, variance: float | Tensor) -> None:
        tensor = torch.as_tensor(variance, dtype=torch.float64)
        if not bool(torch.isfinite(tensor) and tensor > 0):
            raise ValueError(f"variance must be positive and finite, got {variance}")
        object.__setattr__(self, "variance", tensor)

    def __call__(self, lag: Lags) -> Values:
        return Radial._cast(self.variance, lag).expand(lag.shape[:-1])

    def first_derivative(self, lag: Lags, axis: int) -> Values:
        return torch.zeros_like(lag[..., axis])

    def second_derivative(self, lag: Lags, axis: int, other: int) -> Values:
        return torch.zeros_like(lag[..., axis])

    def periodised(self, periods: Sequence[float]) -> Kernel:
        """Itself: a constant has every period (its image sum would diverge)."""
        return self

    def parameters(self) -> dict[str, Tensor]:
        return {"variance": self.variance}

    def with_parameters(self, parameters: dict[str, Tensor]) -> Constant:
        return Constant(variance=parameters.get("variance", self.variance))


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

    def periodised(self, periods: Sequence[float]) -> Kernel:
        return Sum(terms=tuple(term.periodised(periods) for term in self.terms))

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
