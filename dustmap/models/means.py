"""Mean functions of the field, and functionals of them.

A new mean function is a subclass of :class:`Mean`, with its parameters ``learnable``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.memory import rows_within

AMPLITUDE = "mean"
SCALE_HEIGHT = "scale_height"


class Mean(ABC):
    """The prior mean ``μ(x)`` of the field."""

    # Attributes of positive hyperparameters, by the hyperparameters' names.
    learnable: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Return ``μ`` at positions (differentiable by autograd in ``x``)."""

    def observed(self, functionals: Functionals) -> Float[Tensor, " n"]:
        """Return ``L_n μ = Σ_j w_nj ∂^{α_j} μ(x_nj)`` for every functional."""
        parts = [torch.zeros(0, dtype=torch.float64)]
        # A long ray has some thousand nodes of 32 bytes.
        for _, part in functionals.chunks(rows_within(2**15)):
            nodes = part.nodes()
            with torch.set_grad_enabled(nodes.axes is not None):
                x = nodes.points.detach().clone()
                values = self(x.requires_grad_(nodes.axes is not None))
            if nodes.axes is not None:
                gradient = torch.zeros_like(x)
                if values.requires_grad:
                    (gradient,) = torch.autograd.grad(values.sum(), x)
                along = gradient.gather(1, nodes.axes.clamp(min=0)[:, None])[:, 0]
                values = torch.where(nodes.axes < 0, values, along)
            parts.append(nodes.sum_rows(values.detach()))
        return torch.cat(parts)

    def parameters(self) -> dict[str, Tensor]:
        """Return the learnable parameters by name; none if any is not positive."""
        values = {name: getattr(self, field) for name, field in self.learnable.items()}
        if not all(value > 0 for value in values.values()):
            return {}
        return {n: torch.tensor(v, dtype=torch.float64) for n, v in values.items()}

    def with_parameters(self, values: Mapping[str, Tensor]) -> Mean:
        """Return the mean with new values; names that it does not have are ignored.

        Raises `ValueError` if a value is not positive and finite.
        """
        changes = {
            field: float(values[name])
            for name, field in self.learnable.items()
            if name in values
        }
        for name, value in changes.items():
            if not 0 < value < float("inf"):
                raise ValueError(
                    f"the mean's {name} must be positive and finite, got {value}"
                )
        return replace(self, **changes) if changes else self  # pyright: ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantMean(Mean):
    """``μ(x) = value``."""

    learnable: ClassVar[Mapping[str, str]] = {AMPLITUDE: "value"}
    value: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        return torch.full_like(x[:, 0], self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDisc(Mean):
    r"""``μ(x) = value · exp(−|z|/h_z − (R − R_0)/h_R)``.

    ``x`` is heliocentric Galactic, +x towards the Galactic centre at ``R_0``; ``R`` is
    the cylindrical distance from it and ``value`` the density in the plane at the
    observer. All lengths in one unit.
    """

    learnable: ClassVar[Mapping[str, str]] = {
        AMPLITUDE: "value",
        SCALE_HEIGHT: "scale_height",
    }
    value: float
    scale_height: float
    scale_length: float
    centre_distance: float

    def __post_init__(self) -> None:
        for name in ("scale_height", "scale_length", "centre_distance"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[1] != 3:
            raise ValueError(f"a disc needs 3-D positions, got {x.shape[1]}-D")
        radius = torch.sqrt((x[:, 0] - self.centre_distance) ** 2 + x[:, 1] ** 2)
        height = x[:, 2].abs() / self.scale_height
        beyond = (radius - self.centre_distance) / self.scale_length
        return self.value * torch.exp(-height - beyond)
