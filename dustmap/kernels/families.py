"""The radial covariance functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dustmap.kernels.radial import Radial


class Matern12(Radial):
    """``φ(r) = exp(−r)``: continuous, nowhere differentiable."""

    __slots__ = ()
    title = "Matérn-1/2"
    smoothness = 0.5

    @staticmethod
    def radial(r: Tensor) -> Tensor:
        return torch.exp(-r)


class Matern32(Radial):
    """``φ(r) = (1 + √3 r) exp(−√3 r)``: once differentiable."""

    __slots__ = ()
    title = "Matérn-3/2"
    smoothness = 1.5
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
    smoothness = 2.5
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


# The radial kernels by their names in configurations.
KERNELS: dict[str, type[Radial]] = {
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "squared-exponential": SquaredExponential,
}
