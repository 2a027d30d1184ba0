r"""Stationary covariance functions with their first and mixed second derivatives.

A radial kernel is ``k(Δ) = σ² φ(r)`` of the scaled distance
``r² = Σ_d (Δ_d / ℓ_d)²``. With ``φ₁ = φ'/r`` and ``φ₂ = φ₁'/r`` (Rasmussen &
Williams 2006, ch. 4 and 9.4):

``∂k/∂Δ_a = σ² φ₁ Δ_a/ℓ_a²``,
``∂²k/∂Δ_a∂Δ_b = σ² (φ₂ Δ_aΔ_b/(ℓ_a²ℓ_b²) + φ₁ δ_ab/ℓ_a²)``.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from dustmap.kernels.base import IMAGE_TOLERANCE, Kernel, Lags, Values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Radial(Kernel):
    """Base of the radial kernels.

    Parameters
    ----------
    lengthscale
        One value or one per axis, in the unit of the inputs.
    variance
        ``k(0)``, in the squared unit of the field.
    """

    title: ClassVar[str]
    """What people call it."""
    lengthscale: Tensor
    variance: Tensor

    def __init__(
        self,
        *,
        lengthscale: float | Sequence[float] | Tensor,
        variance: float | Tensor = 1.0,
    ) -> None:
        for name, value in (("lengthscale", lengthscale), ("variance", variance)):
            tensor = torch.as_tensor(value, dtype=torch.float64)
            if not bool(torch.isfinite(tensor).all() and (tensor > 0).all()):
                raise ValueError(f"{name} must be positive and finite, got {value}")
            object.__setattr__(self, name, tensor)

    @staticmethod
    @abstractmethod
    def radial(r: Tensor) -> Tensor:
        """``φ(r)`` with ``φ(0) = 1``."""

    @staticmethod
    def radial_first(r: Tensor) -> Tensor:
        """``φ₁(r) = φ'(r)/r``."""
        raise AssertionError("guarded by `derivatives`")

    @staticmethod
    def radial_second(r: Tensor) -> Tensor:
        """``φ₂(r) = φ₁'(r)/r``; only its product with Δ_aΔ_b need exist at 0."""
        raise AssertionError("guarded by `derivatives`")

    def __call__(self, lag: Lags) -> Values:
        return self._cast(self.variance, lag) * self.radial(self._distance(lag))

    def first_derivative(self, lag: Lags, axis: int) -> Values:
        self._require_derivative()
        first = self.radial_first(self._distance(lag))
        return self._cast(self.variance, lag) * first * self._slope(lag, axis)

    def second_derivative(self, lag: Lags, axis: int, other: int) -> Values:
        self._require_derivative()
        r = self._distance(lag)
        # Matérn-3/2 has φ₂ ~ 1/r; its product with Δ_aΔ_b vanishes at r = 0.
        second = self.radial_second(torch.where(r > 0, r, torch.ones_like(r)))
        product = self._slope(lag, axis) * self._slope(lag, other)
        value = second * product
        if axis == other:
            value = value + self.radial_first(r) / self._scale(lag, axis) ** 2
        return self._cast(self.variance, lag) * value

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
        low, high = 0.0, 1.0
        while float(self.radial(torch.tensor(high, dtype=torch.float64))) > tolerance:
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            value = float(self.radial(torch.tensor(middle, dtype=torch.float64)))
            low, high = (middle, high) if value > tolerance else (low, middle)
        return high

    def _distance(self, lag: Lags) -> Values:
        scaled = lag / self._cast(self.lengthscale, lag)
        # Term by term: a sum over a short last axis takes most of a kernel's time.
        squared = scaled[..., 0] ** 2
        for axis in range(1, scaled.shape[-1]):
            squared = torch.addcmul(squared, scaled[..., axis], scaled[..., axis])
        # The square root has no derivative at 0; φ is even, so that 0 is right there.
        positive = squared > 0
        safe = torch.where(positive, squared, 1.0)
        return torch.where(positive, safe.sqrt(), 0.0)

    def _scale(self, lag: Lags, axis: int) -> Tensor:
        scale = self._cast(self.lengthscale, lag)
        return scale[axis] if scale.ndim else scale

    def _slope(self, lag: Lags, axis: int) -> Values:
        return lag[..., axis] / self._scale(lag, axis) ** 2

    @staticmethod
    def _cast(value: Tensor, like: Tensor) -> Tensor:
        return value.to(dtype=like.dtype, device=like.device)

    def _require_derivative(self) -> None:
        if self.derivatives < 1:
            raise ValueError(
                f"a field with a {type(self).__name__} covariance has no derivative: "
                "use Matern32, Matern52 or SquaredExponential for derivative data"
            )


class Matern12(Radial):
    """``φ(r) = exp(−r)``: continuous, nowhere differentiable."""

    __slots__ = ()
    title = "Matérn-1/2"

    @staticmethod
    def radial(r: Tensor) -> Tensor:
        return torch.exp(-r)


class Matern32(Radial):
    """``φ(r) = (1 + √3 r) exp(−√3 r)``: once differentiable."""

    __slots__ = ()
    title = "Matérn-3/2"
    derivatives = 1

    @staticmethod
    def radial(r: Tensor) -> Tensor:
        s = math.sqrt(3) * r
        return (1 + s) * torch.exp(-s)

    @staticmethod
    def radial_first(r: Tensor) -> Tensor:
        return -3 * torch.exp(-math.sqrt(3) * r)

    @staticmethod
    def radial_second(r: Tensor) -> Tensor:
        return 3 * math.sqrt(3) * torch.exp(-math.sqrt(3) * r) / r


class Matern52(Radial):
    """``φ(r) = (1 + √5 r + 5r²/3) exp(−√5 r)``: twice differentiable."""

    __slots__ = ()
    title = "Matérn-5/2"
    derivatives = 1

    @staticmethod
    def radial(r: Tensor) -> Tensor:
        s = math.sqrt(5) * r
        return (1 + s + s**2 / 3) * torch.exp(-s)

    @staticmethod
    def radial_first(r: Tensor) -> Tensor:
        s = math.sqrt(5) * r
        return -(5 / 3) * (1 + s) * torch.exp(-s)

    @staticmethod
    def radial_second(r: Tensor) -> Tensor:
        return (25 / 3) * torch.exp(-math.sqrt(5) * r)


class SquaredExponential(Radial):
    """``φ(r) = exp(−r²/2)``: infinitely differentiable."""

    __slots__ = ()
    title = "squared exponential"
    derivatives = 1

    @staticmethod
    def radial(r: Tensor) -> Tensor:
        return torch.exp(-0.5 * r**2)

    @staticmethod
    def radial_first(r: Tensor) -> Tensor:
        return -torch.exp(-0.5 * r**2)

    @staticmethod
    def radial_second(r: Tensor) -> Tensor:
        return torch.exp(-0.5 * r**2)


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

    def _images(self) -> list[tuple[float, ...]]:
        reach = self.kernel.decay(self.tolerance)
        scales = self.kernel.lengthscale.detach().expand(len(self.periods)).tolist()
        counts = [
            math.ceil(reach * scale / period + 0.5)
            for scale, period in zip(scales, self.periods, strict=True)
        ]
        images = itertools.product(*(range(-n, n + 1) for n in counts))
        shifts = [
            tuple(w * p for w, p in zip(image, self.periods, strict=True))
            for image in images
        ]
        # Displacements are wrapped to half a period, so that this is how near an
        # image can come.
        return [
            shift
            for shift in shifts
            if sum(
                (max(abs(s) - p / 2, 0.0) / scale) ** 2
                for s, p, scale in zip(shift, self.periods, scales, strict=True)
            )
            < reach**2
        ]

    def _wrapped(self, lag: Lags) -> Lags:
        periods = lag.new_tensor(self.periods)
        return lag - periods * torch.round(lag / periods)

    def __call__(self, lag: Lags) -> Values:
        lag = self._wrapped(lag)
        total = torch.zeros_like(lag[..., 0])
        for shift in self._images():
            total = total + self.kernel(lag + lag.new_tensor(shift))
        return total

    def first_derivative(self, lag: Lags, axis: int) -> Values:
        lag = self._wrapped(lag)
        total = torch.zeros_like(lag[..., 0])
        for shift in self._images():
            shifted = lag + lag.new_tensor(shift)
            total = total + self.kernel.first_derivative(shifted, axis)
        return total

    def second_derivative(self, lag: Lags, axis: int, other: int) -> Values:
        lag = self._wrapped(lag)
        total = torch.zeros_like(lag[..., 0])
        for shift in self._images():
            shifted = lag + lag.new_tensor(shift)
            total = total + self.kernel.second_derivative(shifted, axis, other)
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


KERNELS: dict[str, type[Radial]] = {
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "squared-exponential": SquaredExponential,
}
