"""Mean functions of the field, and functionals of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals

# Rows evaluated at once.
_ROWS = 4096


class Mean(ABC):
    """The prior mean ``μ(x)`` of the field."""

    @abstractmethod
    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """``μ`` at positions (differentiable by autograd in ``x``)."""

    def observed(self, functionals: Functionals) -> Float[Tensor, " n"]:
        """``L_n μ = Σ_j w_nj ∂^{α_j} μ(x_nj)`` for every functional."""
        parts = [torch.zeros(0, dtype=torch.float64)]
        for _, part in functionals.chunks(_ROWS):
            nodes = part.nodes()
            if nodes.axes is None:
                values = self(nodes.points)
            else:
                values = self._values_and_derivatives(nodes.points, nodes.axes)
            parts.append(nodes.sum_rows(values.detach()))
        return torch.cat(parts)

    def _values_and_derivatives(self, points: Tensor, axes: Tensor) -> Tensor:
        with torch.enable_grad():
            x = points.detach().clone().requires_grad_(True)
            values = self(x)
            if values.requires_grad:
                (gradient,) = torch.autograd.grad(values.sum(), x)
            else:
                gradient = torch.zeros_like(x)
        along = gradient.gather(1, axes.clamp(min=0)[:, None])[:, 0]
        return torch.where(axes < 0, values.detach(), along)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantMean(Mean):
    """``μ(x) = value``."""

    value: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        return torch.full_like(x[:, 0], self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDisc(Mean):
    r"""``μ(x) = value · exp(−|z − z_0|/h_z − (R − R_0)/h_R)``.

    ``x`` is heliocentric Galactic, +x towards the Galactic centre at ``R_0``; ``R`` is
    the cylindrical distance from it and ``value`` the density in the plane at the
    observer. All lengths in one unit.
    """

    value: float
    scale_height: float
    scale_length: float
    centre_distance: float
    midplane: float = 0.0

    def __post_init__(self) -> None:
        for name in ("scale_height", "scale_length", "centre_distance"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[1] != 3:
            raise ValueError(f"a disc needs 3-D positions, got {x.shape[1]}-D")
        radius = torch.sqrt((x[:, 0] - self.centre_distance) ** 2 + x[:, 1] ** 2)
        height = (x[:, 2] - self.midplane).abs() / self.scale_height
        beyond = (radius - self.centre_distance) / self.scale_length
        return self.value * torch.exp(-height - beyond)
