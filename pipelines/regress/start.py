"""Kernel and scales by the exact evidence of rows, and the exact posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from dustmap.gp.fitting import LBFGS, EvidenceFit, maximise
from dustmap.gp.inducing import clustered_subset
from dustmap.kernels import KERNELS, Radial
from dustmap.likelihoods import Likelihood
from pipelines.regress.fitted import FittedField, field_of

# Rows of the subset, and how many near neighbours form a group of it.
_ROWS, _GROUP = 1000, 4
# Rows on which the first places are compared, and these: lengthscales in the root of
# the dimension, as which distances of random points grow, and variances of the noise.
_FEW = 300
_SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
_NOISES = (1e-3, 0.03, 0.3, 0.9)
# Rows of the second search.
_MORE_ROWS = 2_000
_CANDIDATES = ("matern52", "matern32")
_SETTINGS = LBFGS(max_steps=60, gradient_tolerance=0.1, relative_tolerance=1e-7)
# Longest lengthscale in extents of the inputs, and shortest in the distance of
# neighbouring values: beyond, a field along this axis cannot be told from one that does
# not vary, and from noise.
_LONGEST, _SHORTEST = 10.0, 0.1
# Least variance of the noise: less makes covariances singular in double precision.
_QUIET = 1e-8

Ranges = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The better kernel and its hyperparameters, in standardised units.

    ``why`` is the reason for the kernel, for people; ``ranges`` are those of the
    search.
    """

    kernel: Radial
    noise: float
    mean: float
    why: str
    converged: bool
    ranges: Ranges

    @classmethod
    def of(cls, fitted: EvidenceFit[Any], why: str, ranges: Ranges) -> Start:
        """What was learnt, as a start for other models."""
        kernel, values = fitted.model.kernel, fitted.model.parameters()
        assert isinstance(kernel, Radial)
        return cls(
            kernel=kernel,
            noise=float(values["noise"]),
            mean=float(values["mean"]),
            why=why,
            # A search whose variance or mean goes to its limit runs away.
            converged=fitted.converged and set(fitted.at_bounds) <= set(ranges),
            ranges=ranges,
        )

    def exact(self, x: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> ExactGP:
        """The exact posterior of these rows."""
        return ExactGP(self.kernel, PointValues(x), y, noise=self.noise, mean=self.mean)


def ranges_of(x: Float[Tensor, "n d"]) -> Ranges:
    """Return what inputs can resolve of lengthscales, and double precision of noise."""
    ends = []
    for column in x.T:
        values = torch.unique(column)
        # A column that is constant among these rows varies by its unit among others.
        values = values if len(values) > 1 else torch.tensor([0.0, 1.0]).to(x)
        longest = _LONGEST * (values[-1] - values[0])
        ends.append(torch.stack([_SHORTEST * values.diff().median(), longest]))
    low, high = torch.stack(ends, dim=1)
    quiet = torch.tensor([_QUIET, math.inf], dtype=torch.float64)
    return {"lengthscale": (low, high), "noise": (quiet[0], quiet[1])}


def find_start(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], generator: torch.Generator
) -> Start:
    """Maximise the evidence of at most 1,000 rows for every kernel.

    The first is searched from five lengthscales, equal along all axes, each with the
    best noise for 300 of the rows; the others from where it ended.
    """
    ranges = ranges_of(x)
    settings = replace(_SETTINGS, ranges=ranges)
    chosen = clustered_subset(x, _ROWS, _GROUP, generator)
    x, y = x[chosen], y[chosen]
    few = torch.randperm(len(x), generator=generator)[:_FEW]
    axes, searched = x.shape[1], []
    for scale in _SCALES:
        scales = torch.full((axes,), scale * math.sqrt(axes)).to(x)
        scales = scales.clamp(*ranges["lengthscale"])
        places = [
            ExactGP(
                KERNELS[_CANDIDATES[0]](
                    lengthscale=scales, variance=max(1 - noise, 0.1)
                ),
                PointValues(x[few]),
                y[few],
                noise=noise,
                mean=float(y[few].mean()),
            )
            for noise in _NOISES
        ]
        best = max(places, key=lambda model: model.log_marginal())
        searched.append(Start.of(maximise(best, settings), "", ranges).exact(x, y))
    model = max(searched, key=lambda model: model.log_marginal())
    found = {}
    for name in _CANDIDATES:
        model = replace(model, kernel=KERNELS[name](**model.kernel.parameters()))
        found[name] = maximise(model, settings)
        model = found[name].model
    best, *others = sorted(found, key=lambda name: -found[name].log_marginal)
    beaten = [f"{KERNELS[n].title} {found[n].log_marginal:.1f}" for n in others]
    why = (
        f"{KERNELS[best].title} (log evidence of {len(x)} rows "
        f"{found[best].log_marginal:.1f}; {', '.join(beaten)})"
    )
    return Start.of(found[best], why, ranges)


def fit_exact(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    kind: type[Likelihood],
    generator: torch.Generator,
) -> FittedField:
    """The exact posterior of all rows, with the scales of largest evidence of these.

    Of more rows than the first search had, up to 2,000 are searched again; a second
    search that lowers the evidence of all is not taken.
    """
    tame = kind.tamed(y)
    starts = [find_start(x, tame, generator)]
    if len(x) > _ROWS:
        first = starts[0]
        more = torch.randperm(len(x), generator=generator)[:_MORE_ROWS]
        more = torch.arange(len(x)) if len(x) <= _MORE_ROWS else more
        settings = replace(_SETTINGS, ranges=first.ranges)
        again = maximise(first.exact(x[more], tame[more]), settings)
        starts.append(Start.of(again, first.why, first.ranges))
    models = [start.exact(x, tame) for start in starts]
    evidence, last = max((m.log_marginal(), n) for n, m in enumerate(models))
    return field_of(
        models[last],
        y,
        kind,
        why=starts[last].why,
        converged=starts[last].converged,
        facts={"log_evidence": evidence},
    )
