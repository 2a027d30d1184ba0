"""Kernel and first hyperparameters by the exact evidence of some of the rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from dustmap.gp.fitting import LBFGS, EvidenceFit, maximise
from dustmap.inference.scales.search import clustered_subset
from dustmap.kernels import KERNELS, Radial

# Rows of the subset, those that the first places are tried on, and how many near
# neighbours form a group.
ROWS, _FEW, NEIGHBOURS = 1000, 300, 4
# Rows that refine them where nothing else does.
MORE_ROWS = 2000
_SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
_NOISES = (1e-3, 0.03, 0.3, 0.9)
_CANDIDATES = ("matern52", "matern32")
_SETTINGS = LBFGS(max_steps=60, gradient_tolerance=0.1, relative_tolerance=1e-7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The better kernel and its hyperparameters, in standardised units.

    ``evidence`` has the largest ``log p(y)`` of every kernel tried on ``rows`` rows.
    """

    kernel: Radial
    name: str
    noise: float
    mean: float
    evidence: dict[str, float]
    rows: int
    converged: bool

    @property
    def why(self) -> str:
        """The choice of the kernel, for people."""
        best, *others = sorted(self.evidence, key=lambda n: -self.evidence[n])
        beaten = ", ".join(f"{KERNELS[n].title} {self.evidence[n]:.1f}" for n in others)
        return (
            f"{KERNELS[best].title} (log evidence of {self.rows} rows "
            f"{self.evidence[best]:.1f}; {beaten})"
        )


def find_start(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], generator: torch.Generator
) -> Start:
    """Maximise the evidence of at most 1,000 rows for every kernel.

    The search begins at the best of a few lengthscales and noises.
    """
    chosen = clustered_subset(x, ROWS, NEIGHBOURS, generator)
    x, y = x[chosen], y[chosen]
    few = torch.randperm(len(x), generator=generator)[:_FEW]
    found = {}
    for name in _CANDIDATES:
        kernel = KERNELS[name]
        first = _first(kernel, x[few], y[few])
        values = first.parameters()
        model = ExactGP(
            kernel(lengthscale=values["lengthscale"], variance=values["variance"]),
            PointValues(x),
            y,
            noise=values["noise"],
            mean=values["mean"],
        )
        found[name] = maximise(model, _SETTINGS)
    best = max(found, key=lambda n: found[n].log_marginal)
    evidence = {name: fitted.log_marginal for name, fitted in found.items()}
    return start_of(found[best], best, evidence)


def start_of(
    fitted: EvidenceFit[ExactGP], name: str, evidence: dict[str, float]
) -> Start:
    """What was learnt, as a start for other models."""
    values = fitted.model.parameters()
    return Start(
        kernel=KERNELS[name](
            lengthscale=values["lengthscale"], variance=values["variance"]
        ),
        name=name,
        noise=float(values["noise"]),
        mean=float(values["mean"]),
        evidence=evidence,
        rows=len(fitted.model),
        converged=fitted.converged,
    )


def refined(start: Start, x: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> Start:
    """The same kernel's hyperparameters by the evidence of all these rows."""
    model = ExactGP(start.kernel, PointValues(x), y, noise=start.noise, mean=start.mean)
    fitted = maximise(model, _SETTINGS)
    found = start_of(fitted, start.name, {start.name: fitted.log_marginal})
    return replace(found, evidence=start.evidence, rows=start.rows)


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
        for scale, noise in itertools.product(_SCALES, _NOISES)
    ]
    return max(models, key=lambda model: model.log_marginal())
