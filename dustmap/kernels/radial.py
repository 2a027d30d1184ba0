r"""Radial covariance functions, their derivatives, and their sums over images.

A radial kernel is ``k(Δ) = σ² φ(r)`` of the scaled distance
``r² = Σ_d (Δ_d / ℓ_d)²``. With ``φ₁ = φ'/r`` and ``φ₂ = φ₁'/r`` (Rasmussen &
Williams 2006, ch. 4 and 9.4):

``∂k/∂Δ_a = σ² φ₁ Δ_a/ℓ_a²``,
``∂²k/∂Δ_a∂Δ_b = σ² (φ₂ Δ_aΔ_b/(ℓ_a²ℓ_b²) + φ₁ δ_ab/ℓ_a²)``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.kernels.base import IMAGE_TOLERANCE, Kernel, Lags, Values, positive


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Radial(Kernel):
    """Base of the radial kernels: a subclass has a title and ``φ``.

    With ``derivatives = 1`` it has ``φ₁`` and ``φ₂`` too.

    Parameters
    ----------
    lengthscale
        One value or one per axis, in the unit of the inputs.
    variance
        ``k(0)``, in the squared unit of the field.
    """

    title: ClassVar[str]
    # ν of a Matérn covariance.
    smoothness: ClassVar[float | None] = None
    lengthscale: Tensor
    variance: Tensor

    def __init__(
        self,
        *,
        lengthscale: float | Sequence[float] | Tensor,
        variance: float | Tensor = 1.0,
    ) -> None:
        object.__setattr__(self, "lengthscale", positive("lengthscale", lengthscale))
        object.__setattr__(self, "variance", positive("variance", variance))

    @staticmethod
    @abstractmethod
    def radial(r: Tensor) -> Tensor:
        """``φ(r)`` with ``φ(0) = 1``."""

    @staticmethod
    def radial_first(r: Tensor) -> Tensor:
        """``φ₁(r) = φ'(r)/r``."""
        raise NotImplementedError

    @staticmethod
    def radial_second(r: Tensor) -> Tensor:
        """``φ₂(r) = φ₁'(r)/r``; only its product with Δ_aΔ_b need exist at 0."""
        raise NotImplementedError

    def __call__(self, lag: Lags, *axes: int) -> Values:
        if axes and self.derivatives < 1:
            raise ValueError(
                f"a field with a {type(self).__name__} covariance has no derivative: "
                "use Matern32, Matern52 or SquaredExponential for derivative data"
            )
        r, variance = self._distance(lag), self.variance.to(lag)
        if not axes:
            return variance * self.radial(r)
        scale = self.lengthscale.to(lag).expand(lag.shape[-1])
        along = [lag[..., axis] / scale[axis] ** 2 for axis in axes]
        if len(axes) == 1:
            return variance * self.radial_first(r) * along[0]
        # Matérn-3/2 has φ₂ ~ 1/r; its product with Δ_aΔ_b vanishes at r = 0.
        second = self.radial_second(torch.where(r > 0, r, torch.ones_like(r)))
        value = second * (along[0] * along[1])
        if axes[0] == axes[1]:
            value = value + self.radial_first(r) / scale[axes[0]] ** 2
        return variance * value

    def periodised(
        self, periods: Sequence[float], tolerance: float = IMAGE_TOLERANCE
    ) -> Kernel:
        return Periodised(kernel=self, periods=tuple(periods), tolerance=tolerance)

    def parameters(self) -> dict[str, Tensor]:
        return {"lengthscale": self.lengthscale, "variance": self.variance}

    def with_parameters(self, parameters: dict[str, Tensor]) -> Self:
        return type(self)(
            lengthscale=parameters.get("lengthscale", self.lengthscale),
            variance=parameters.get("variance", self.variance),
        )

    def decay(self, tolerance: float) -> float:
        """The scaled distance beyond which ``φ < tolerance`` (bisection)."""

        def above(r: float) -> bool:
            return float(self.radial(torch.tensor(r, dtype=torch.float64))) > tolerance

        low, high = 0.0, 1.0
        while above(high):
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if above(middle) else (low, middle)
        return high

    def _distance(self, lag: Lags) -> Values:
        scaled = lag / self.lengthscale.to(lag)
        # Term by term: a sum over a short last axis takes most of a kernel's time.
        squared = scaled[..., 0] ** 2
        for axis in range(1, scaled.shape[-1]):
            squared = torch.addcmul(squared, scaled[..., axis], scaled[..., axis])
        # The square root has no derivative at 0; φ is even, so that 0 is right there.
        positive = squared > 0
        safe = torch.where(positive, squared, 1.0)
        return torch.where(positive, safe.sqrt(), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Periodised(Kernel):
    r"""``k_P(Δ) = Σ_w k(Δ + w ⊙ P)``, the image sum of a radial kernel.

    Sums every image that contributes above ``tolerance`` of ``k(0)`` to displacements
    within half a period. Cost: one evaluation of ``k`` per image (27 for periods beyond
    some twenty lengthscales, hundreds for periods of five).
    """

    kernel: Radial
    periods: tuple[float, ...]
    tolerance: float = IMAGE_TOLERANCE

    @property
    def derivatives(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Those of the kernel."""
        return self.kernel.derivatives

    def _images(self) -> Float[Tensor, "i d"]:
        """Shifts ``w ⊙ P`` of the images that count."""
        periods = torch.tensor(self.periods, dtype=torch.float64)
        scale = self.kernel.lengthscale.detach().cpu().expand(len(periods))
        reach = self.kernel.decay(self.tolerance)
        counts = torch.ceil(reach * scale / periods + 0.5).to(torch.int64).tolist()
        turns = [torch.arange(-n, n + 1, dtype=torch.float64) for n in counts]
        shifts = torch.cartesian_prod(*turns).reshape(-1, len(periods)) * periods
        # Displacements are wrapped to half a period: so near can an image come.
        nearest = (shifts.abs() - periods / 2).clamp(min=0.0) / scale
        return shifts[(nearest**2).sum(dim=1) < reach**2]

    def __call__(self, lag: Lags, *axes: int) -> Values:
        periods = lag.new_tensor(self.periods)
        lag = lag - periods * torch.round(lag / periods)
        total = torch.zeros_like(lag[..., 0])
        for shift in self._images().to(lag):
            total = total + self.kernel(lag + shift, *axes)
        return total

    def periodised(
        self, periods: Sequence[float], tolerance: float = IMAGE_TOLERANCE
    ) -> Kernel:
        if tuple(periods) != self.periods:
            raise ValueError(
                f"the kernel already has periods {self.periods}, asked for {periods}"
            )
        return self

    def parameters(self) -> dict[str, Tensor]:
        return self.kernel.parameters()

    def with_parameters(self, parameters: dict[str, Tensor]) -> Periodised:
        return replace(self, kernel=self.kernel.with_parameters(parameters))
