"""Inputs and target in units of their own scatter among the rows to fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pipelines.regress.columns import SplitData


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """``(value − shift) / scale`` for inputs (D,) and target."""

    x_shift: np.ndarray
    x_scale: np.ndarray
    y_shift: float
    y_scale: float

    @classmethod
    def of(cls, data: SplitData) -> Scaling:
        """By mean and standard deviation of the rows to fit; classes stay 0 and 1."""
        train = ~data.test
        x, y = data.x[train], data.y[train]
        classes = data.classes is not None
        return cls(
            x_shift=x.mean(axis=0),
            x_scale=x.std(axis=0),
            y_shift=0.0 if classes else float(y.mean()),
            y_scale=1.0 if classes else float(y.std()),
        )

    def inputs(self, x: np.ndarray) -> Float[Tensor, "n d"]:
        """Standardised inputs."""
        return torch.as_tensor((x - self.x_shift) / self.x_scale)

    def target(self, y: np.ndarray) -> Float[Tensor, " n"]:
        """Standardised target."""
        return torch.as_tensor((y - self.y_shift) / self.y_scale)

    def back(self, values: Float[Tensor, " n"]) -> np.ndarray:
        """Standardised values of the target in its own unit."""
        return values.numpy() * self.y_scale + self.y_shift

    @property
    def log_jacobian(self) -> float:
        """What the negative logarithm of a density gains in the target's unit."""
        return math.log(self.y_scale)
