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
        Learnt parameters, from `LEARNABLE`.
    anisotropic
        Learn a lengthscale for each axis instead of a common factor.

    Raises
    ------
    ValueError
        If a name is unknown, or its parameter does not start above zero.
    """

    start: PriorScales
    names: tuple[str, ...]
    anisotropic: bool = False

    def __post_init__(self) -> None:
        values = self.start.values()
        for name in self.names:
            if name not in values or not bool((values[name] > 0).all()):
                raise ValueError(
                    f"{name!r} cannot be learnt: expected one of {LEARNABLE} with a "
                    f"positive start, got {values.get(name)}"
                )

    @property
    def labels(self) -> tuple[str, ...]:
        """Name of the parameter of every coordinate."""
        axes = len(self.start.lengthscale) if self.anisotropic else 1
        counts = [axes if name == "lengthscale" else 1 for name in self.names]
        return tuple(n for n, count in zip(self.names, counts) for _ in range(count))

    def at(self, place: Float[Tensor, " p"]) -> PriorScales:
        """Return the scales at some coordinates."""
        labels = self.labels
        values = self.start.values()
        for name in self.names:
            own = torch.tensor([label == name for label in labels])
            # One coordinate broadcasts over the axes.
            values[name] = values[name] * place[own].exp().squeeze(0)
        mean = self.start.mean.with_parameters({n: values[n] for n in self.names})
        return replace(
            self.start,
            lengthscale=values["lengthscale"],
            std=math.sqrt(float(values["variance"])),
            mean=mean,
            common_noise=float(values["common_noise"]),
        )
