"""Kernel and first hyperparameters by the exact evidence of some of the rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from dustmap.gp.fitting import LBFGS, EvidenceFit, maximise
from dustmap.gp.neighbours import NeighbourGP
from dustmap.inference.scales.search import clustered_subset
from dustmap.kernels import KERNELS, Radial

# Rows of the subset, those that the first places are tried on, and how many near
# neighbours form a group.
ROWS, _FEW, _NEIGHBOURS = 1000, 300, 4
# Rows that refine them, and neighbours that predict each of these.
MORE_ROWS, _GIVEN = 10_000, 20
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
NOISES = (1e-3, 0.03, 0.3, 0.9)
_CANDIDATES = ("matern52", "matern32")
_SETTINGS = LBFGS(max_steps=60, gradient_tolerance=0.1, relative_tolerance=1e-7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The better kernel and its hyperparameters, in standardised units.

    ``why`` is the choice of the kernel, for people.
    """

    kernel: Radial
    noise: float
    mean: float
    why: str
    converged: bool

    @classmethod
    def of(cls, fitted: EvidenceFit[Any], why: str) -> Start:
        """What was learnt, as a start for other models."""
        kernel, values = fitted.model.kernel, fitted.model.parameters()
        assert isinstance(kernel, Radial)
        return cls(
            kernel=kernel,
            noise=float(values["noise"]),
            mean=float(values["mean"]),
            why=why,
            converged=fitted.converged,
        )

    def exact(self, x: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> ExactGP:
        """The exact posterior of these rows."""
        return ExactGP(self.kernel, PointValues(x), y, noise=self.noise, mean=self.mean)

    def refined(
        self,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, " n"],
        generator: torch.Generator,
    ) -> Start:
        """The same kernel's hyperparameters by up to 10,000 of these rows."""
        more = torch.randperm(len(x), generator=generator)[:MORE_ROWS]
        if len(more) <= _GIVEN:
            return self
        model = NeighbourGP(
            self.kernel,
            PointValues(x[more]),
            y[more],
            noise=self.noise,
            mean=self.mean,
            count=_GIVEN,
            scored=torch.arange(len(more)),
        )
        return Start.of(maximise(model, _SETTINGS), self.why)


def find_start(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], generator: torch.Generator
) -> Start:
    """Maximise the evidence of at most 1,000 rows for every kernel.

    The search begins at the best of a few lengthscales and noises.
    """
    chosen = clustered_subset(x, ROWS, _NEIGHBOURS, generator)
    x, y = x[chosen], y[chosen]
    few = torch.randperm(len(x), generator=generator)[:_FEW]
    found = {}
    for name in _CANDIDATES:
        first = _first(KERNELS[name], x[few], y[few])
        model = ExactGP(
            first.kernel, PointValues(x), y, noise=first.noise, mean=first.mean
        )
        found[name] = maximise(model, _SETTINGS)
    best, *others = sorted(found, key=lambda name: -found[name].log_marginal)
    beaten = [f"{KERNELS[n].title} {found[n].log_marginal:.1f}" for n in others]
    why = (
        f"{KERNELS[best].title} (log evidence of {len(x)} rows "
        f"{found[best].log_marginal:.1f}; {', '.join(beaten)})"
    )
    return Start.of(found[best], why)


def _first(kernel: type[Radial], x: Tensor, y: Tensor) -> ExactGP:
    """The best of some lengthscales, equal along all axes, and noises."""
    axes = x.shape[1]
    # Distances of random points grow as the root of the dimension.
    stretch = math.sqrt(axes)
    models = [
        ExactGP(
            kernel(lengthscale=[scale * stretch] * axes, variance=max(1 - noise, 0.1)),
            PointValues(x),
            y,
            noise=noise,
            mean=float(y.mean()),
        )
        for scale, noise in itertools.product(SCALES, NOISES)
    ]
    return max(models, key=lambda model: model.log_marginal())
