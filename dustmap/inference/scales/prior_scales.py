"""The scales of a prior density, and their coordinates while they are learnt."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.models.means import AMPLITUDE, SCALE_HEIGHT, ConstantMean, ExponentialDisc

LEARNABLE = ("lengthscale", "variance", AMPLITUDE, SCALE_HEIGHT, "common_noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorScales:
    """Prior of a density.

    Parameters
    ----------
    lengthscale
        Lengthscale of the field per axis [pc].
    std
        Standard deviation of the logarithm of a lognormal density, else of the density
        [mag/pc].
    mean
        Mean density [mag/pc], for a lognormal density, too.
    common_noise
        Variance that is added to every star's noise [mag²].
    bend
        Bend of the field's covariance (:class:`dustmap.kernels.Radial`).
    spread
        A root of the covariance of the errors of lengthscale, std and bend
        (`dustmap.inference.scales.band_power.FittedKernel`), if it is known.
    """

    lengthscale: Float[Tensor, " d"]
    std: float
    mean: ConstantMean | ExponentialDisc
    common_noise: float = 0.0
    bend: tuple[float, ...] = ()
    spread: tuple[tuple[float, ...], ...] = ()

    def values(self) -> dict[str, Tensor]:
        """Return the positive parameters by name."""
        return {
            "lengthscale": self.lengthscale,
            "variance": torch.tensor(self.std**2, dtype=torch.float64),
            "common_noise": torch.tensor(self.common_noise, dtype=torch.float64),
            **self.mean.parameters(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Logarithms of the learnt parameters, relative to a start.

    Parameters
    ----------
    start
        Scales at which all coordinates are zero.
    names
        Learnt parameters, from `LEARNABLE`; of the lengthscales a common factor.

    Raises
    ------
    ValueError
        If a name is unknown, or its parameter does not start above zero.
    """

    start: PriorScales
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        values = self.start.values()
        for name in self.names:
            if name not in values or not bool((values[name] > 0).all()):
                raise ValueError(
                    f"{name!r} cannot be learnt: expected one of {LEARNABLE} with a "
                    f"positive start, got {values.get(name)}"
                )

    def at(self, place: Float[Tensor, " p"]) -> PriorScales:
        """Return the scales at some coordinates."""
        values = self.start.values()
        for name, step in zip(self.names, place, strict=True):
            values[name] = values[name] * step.exp()
        mean = self.start.mean.with_parameters({n: values[n] for n in self.names})
        return replace(
            self.start,
            lengthscale=values["lengthscale"],
            std=math.sqrt(float(values["variance"])),
            mean=mean,
            common_noise=float(values["common_noise"]),
        )
