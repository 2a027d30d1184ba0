"""Hyperparameters of mean functions: names, values, and gradients of ``L_n μ``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.models.means import ConstantMean, ExponentialDisc, Mean

AMPLITUDE = "mean"
SCALE_HEIGHT = "scale_height"


def mean_parameters(mean: Mean) -> dict[str, Tensor]:
    """The learnable parameters of a mean: none if it is not positive."""
    if not isinstance(mean, ConstantMean | ExponentialDisc) or not mean.value > 0:
        return {}
    values = {AMPLITUDE: torch.tensor(mean.value, dtype=torch.float64)}
    if isinstance(mean, ExponentialDisc):
        values[SCALE_HEIGHT] = torch.tensor(mean.scale_height, dtype=torch.float64)
    return values


def mean_with(mean: Mean, values: dict[str, Tensor]) -> Mean:
    """The mean with other values of :func:`mean_parameters`.

    Raises
    ------
    ValueError
        If a value is not positive and finite.
    """
    fields = {"value": values.get(AMPLITUDE), SCALE_HEIGHT: values.get(SCALE_HEIGHT)}
    changes = {n: float(v) for n, v in fields.items() if v is not None}
    for name, value in changes.items():
        if not 0 < value < float("inf"):
            raise ValueError(
                f"the mean's {name} must be positive and finite, got {value}"
            )
    assert not changes or isinstance(mean, ConstantMean | ExponentialDisc)
    return replace(mean, **changes) if changes else mean  # pyright: ignore[reportArgumentType]


def mean_gradient(
    mean: Mean,
    functionals: Functionals,
    offset: Float[Tensor, " n"],
    of_prediction: Float[Tensor, " n"],
) -> dict[str, Tensor]:
    """``Σ_n a_n ∂(L_n μ)/∂θ`` for every parameter of the mean.

    ``offset`` is ``L μ``, linear in the amplitude. Its derivative with respect to the
    scale height is ``L`` of another mean function.
    """
    values = mean_parameters(mean)
    pull = of_prediction.detach().cpu().to(torch.float64)
    gradient = {}
    if AMPLITUDE in values:
        gradient[AMPLITUDE] = pull @ offset.cpu().to(torch.float64) / values[AMPLITUDE]
    if SCALE_HEIGHT in values:
        assert isinstance(mean, ExponentialDisc)
        gradient[SCALE_HEIGHT] = pull @ _HeightDerivative(disc=mean).observed(
            functionals
        )
    return gradient


def log_mean_gradient(
    mean: Mean, points: Float[Tensor, "f d"], of_logarithm: Float[Tensor, " f"]
) -> dict[str, Tensor]:
    """``Σ_i a_i ∂ ln μ(x_i)/∂θ`` for every parameter of the mean."""
    values = mean_parameters(mean)
    gradient = {}
    if AMPLITUDE in values:
        gradient[AMPLITUDE] = of_logarithm.sum() / values[AMPLITUDE]
    if SCALE_HEIGHT in values:
        assert isinstance(mean, ExponentialDisc)
        height = (points[:, 2] - mean.midplane).abs()
        gradient[SCALE_HEIGHT] = of_logarithm @ height / values[SCALE_HEIGHT] ** 2
    return gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeightDerivative(Mean):
    """``∂μ/∂h_z = μ |z − z_0| / h_z²`` of a disc."""

    disc: ExponentialDisc

    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        height = (x[:, 2] - self.disc.midplane).abs()
        return self.disc(x) * height / self.disc.scale_height**2
