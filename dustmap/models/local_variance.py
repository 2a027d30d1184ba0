"""Conditional variances of a density's functionals from the local residual of f.

``v_n = κ_n (W ρ²)_n + (e^{c_n} − 1) (W ρ)_n²``: the first factor is that of line
integrals, the second that of point values (:mod:`dustmap.models.subgrid`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dustmap.functionals import (
    DistanceMarginalizedIntegrals,
    Functionals,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.kernels import Radial
from dustmap.models.subgrid import LocalResidual, local_residual
from dustmap.projection import Interpolation
from dustmap.whitening import TorusWhitening

# Step in ln θ of the central differences of κ and c.
_LOG_STEP = 0.05


class LocalResiduals:
    """The local residuals of any kernel on one grid, measured once per lengthscale.

    Parameters
    ----------
    whitening, interpolation
        The grid, its refinement, and the weights of W.
    seed
        Of the white noise with which residuals are measured.
    """

    def __init__(
        self, whitening: TorusWhitening, interpolation: Interpolation, seed: int
    ) -> None:
        self._spacing = whitening.torus.grid.spacing
        self._refinement = whitening.refinement
        self._interpolation: Interpolation = interpolation
        self._seed = seed
        # At unit variance, by lengthscale.
        self._measured: dict[tuple[float, ...], LocalResidual] = {}

    def of(self, kernel: Radial) -> LocalResidual:
        """The residual of this kernel, proportional to its variance."""
        scales = tuple(kernel.lengthscale.detach().reshape(-1).tolist())
        if scales not in self._measured:
            one = {"variance": torch.ones_like(kernel.variance)}
            self._measured[scales] = local_residual(
                kernel.with_parameters(one),
                self._spacing,
                refinement=self._refinement,
                interpolation=self._interpolation,
                seed=self._seed,
            )
        return self._measured[scales].times(float(kernel.variance))


def runs_by_kind(
    functionals: Functionals, start: int = 0
) -> list[tuple[slice, Functionals]]:
    """Consecutive rows of one kind.

    Raises
    ------
    ValueError
        If functionals are neither point values nor line integrals.
    """
    if isinstance(functionals, Stack):
        runs = []
        for part in functionals.parts:
            runs += runs_by_kind(part, start)
            start += len(part)
        return runs
    known = PointValues | LineIntegrals | DistanceMarginalizedIntegrals
    if not isinstance(functionals, known):
        raise ValueError(
            "a log-normal density is observed by point values and line integrals, got "
            f"{type(functionals).__name__}: use a Gaussian density for others"
        )
    return [(slice(start, start + len(functionals)), functionals)]


def kernel_differences(
    kernel: Radial, value: Callable[[Radial], float]
) -> dict[str, Tensor]:
    """``∂/∂θ`` of a function of the kernel, by central differences in ``ln θ``."""
    gradient = {}
    for name, parameter in kernel.parameters().items():
        start = parameter.detach()
        derivatives = torch.zeros(start.numel(), dtype=torch.float64)
        for entry in range(start.numel()):
            ends = []
            for sign in (-1.0, 1.0):
                shifted = start.clone().reshape(-1)
                shifted[entry] *= math.exp(sign * _LOG_STEP)
                ends.append(
                    value(kernel.with_parameters({name: shifted.view_as(start)}))
                )
            size = float(start.reshape(-1)[entry])
            derivatives[entry] = (ends[1] - ends[0]) / (2 * _LOG_STEP * size)
        gradient[name] = derivatives.view_as(start)
    return gradient
