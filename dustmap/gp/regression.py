r"""A Gaussian process observed through functionals with normal noise.

``y_n = L_n (μ + f) + η_n`` with ``f ~ GP(0, k)``, a constant μ, and
``η_n ~ N(0, τ² + σ_n²)``: a learnt common variance τ², and known variances σ_n².
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Kernel
from dustmap.memory import rows_within
from dustmap.models.means import ConstantMean

MEAN = "mean"
NOISE = "noise"


@dataclass(eq=False)
class Regression(ABC):
    """Data and hyperparameters of a regression, solved by a subclass.

    Parameters
    ----------
    kernel, functionals, observations
        k, ``L_n`` and ``y_n``.
    noise, known_noise
        τ², above zero, and ``σ_n²`` of every observation, 0 by default, in the squared
        unit of the observations.
    mean
        μ, of any sign.

    Raises
    ------
    ValueError
        If shapes disagree or a number is out of range.
    """

    kernel: Kernel
    functionals: Functionals
    observations: Float[Tensor, " n"]
    _: KW_ONLY
    noise: float | Tensor
    mean: float | Tensor = 0.0
    known_noise: Float[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        self.observations = self.observations.to(torch.float64)
        shape = (len(self.functionals),)
        for name in ("observations", "known_noise"):
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise ValueError(
                    f"{name} must have shape {shape}, got {tuple(value.shape)}"
                )
        if not len(self):
            raise ValueError("expected at least one observation, got none")
        if bad := int((~torch.isfinite(self.observations)).sum()):
            raise ValueError(
                f"every observation must be finite, {bad} of {len(self)} are not"
            )
        noise, mean = (torch.as_tensor(v).detach() for v in (self.noise, self.mean))
        if not 0 < float(noise) < math.inf:
            raise ValueError(f"noise variance must be positive and finite, got {noise}")
        known = self.known_noise
        if known is not None and not bool(((known >= 0) & known.isfinite()).all()):
            raise ValueError("known_noise must be finite variances, none negative")
        if not math.isfinite(mean):
            raise ValueError(f"mean must be finite, got {mean}")

    def __len__(self) -> int:
        return len(self.observations)

    @cached_property
    def ones(self) -> Float[Tensor, " n"]:
        """``L_n 1``: the functionals of a constant field of one (0 for derivatives)."""
        return ConstantMean(value=1.0).observed(self.functionals)

    @cached_property
    def noise_variance(self) -> Float[Tensor, " n"]:
        """``τ² + σ_n²``."""
        known = 0.0 if self.known_noise is None else self.known_noise.to(torch.float64)
        return self.noise + torch.zeros(len(self), dtype=torch.float64) + known

    @cached_property
    def residual(self) -> Float[Tensor, " n"]:
        """``y_n − L_n μ``."""
        return self.observations - self.mean * self.ones

    def parameters(self) -> dict[str, Tensor]:
        """Return the kernel's hyperparameters, ``noise`` (τ²) and ``mean`` (μ)."""
        values = {**self.kernel.parameters(), NOISE: self.noise, MEAN: self.mean}
        return {
            name: torch.as_tensor(value, dtype=torch.float64).detach()
            for name, value in values.items()
        }

    def with_parameters(self, values: Mapping[str, Tensor]) -> Self:
        """Change hyperparameters, keeping their gradients.

        Raises `ValueError` if a name is unknown or a value is out of its range.
        """
        known = self.parameters()
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(
                f"there is no hyperparameter {', '.join(unknown)}: there are "
                f"{', '.join(known)}"
            )
        merged = {**known, **values}
        noise, mean = merged.pop(NOISE), merged.pop(MEAN)
        kernel = self.kernel.with_parameters(merged)
        return replace(self, kernel=kernel, noise=noise, mean=mean)

    @abstractmethod
    def predict(self, functionals: Functionals) -> LatentMoments:
        """Return posterior moments of ``L_* (μ + f)``."""


class ScoredRegression(Regression):
    """A regression with a score, by which its hyperparameters are learnt.

    Predictions are made in blocks. Parameters as in :class:`Regression`.
    """

    def predict(self, functionals: Functionals) -> LatentMoments:
        offset = self.mean * ConstantMean(value=1.0).observed(functionals)
        rows = block_rows(self._width)
        with torch.no_grad():
            parts = [self._moments(part) for _, part in functionals.chunks(rows)]
        means, variances = (torch.cat(column) for column in zip(*parts, strict=True))
        return LatentMoments(mean=offset + means, variance=variances)

    @abstractmethod
    def log_marginal(self) -> float:
        """Return ``log p(y)``, or a lower bound of it [nats]."""

    @abstractmethod
    def value_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        """Return ``log_marginal`` and its derivatives by ``parameters()``."""

    @property
    def _width(self) -> int:
        """Return the kernel evaluations per predicted functional."""
        return len(self)

    @abstractmethod
    def _moments(self, part: Functionals) -> tuple[Tensor, Tensor]:
        """Return posterior mean and variance of ``L_* f``."""


def block_rows(width: int) -> int:
    """Return the number of rows of ``width`` kernel values to evaluate at once.

    Autograd keeps a few copies of each value.
    """
    return rows_within(8 * width, 2**21)


def leaves_of(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy values to leaves that collect gradients, initially zero."""
    leaves = {n: v.detach().clone().requires_grad_(True) for n, v in values.items()}
    for leaf in leaves.values():
        leaf.grad = torch.zeros_like(leaf)
    return leaves


def gradients_of(leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients that the leaves collected."""
    return {n: v.grad for n, v in leaves.items() if v.grad is not None}
