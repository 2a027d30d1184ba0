"""Products with the covariance of the observations' noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.operator import LinearOperator


class NoiseCovariance(Protocol):
    """Σ of all observations, with a root R: ``Σ⁻¹ = Rᵀ R``."""

    def whitened(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """``R x``."""
        ...

    def weighed(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """``Σ⁻¹ x``."""
        ...

    def coloured(self, white: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """``R⁻¹ z``, of covariance Σ for standard normals z."""
        ...

    def gram(
        self, features: LinearOperator, x: Float[Tensor, "*b p"]
    ) -> Float[Tensor, "*b p"]:
        """``Φᵀ Σ⁻¹ Φ x``."""
        ...


@dataclass(frozen=True, slots=True)
class Independent:
    """Noise of these variances."""

    variance: Float[Tensor, " n"]

    def whitened(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        return x / self.variance.sqrt()

    def weighed(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        return x / self.variance

    def coloured(self, white: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return self.variance.sqrt() * white.to(self.variance)

    def gram(
        self, features: LinearOperator, x: Float[Tensor, "*b p"]
    ) -> Float[Tensor, "*b p"]:
        # One product instead of two where features are sparse.
        return features.gram(x, (1.0 / self.variance).to(features.dtype))
