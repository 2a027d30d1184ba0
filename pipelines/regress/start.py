"""Kernel and first hyperparameters by the exact evidence of some of the rows."""

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
from dustmap.gp.neighbours import NeighbourGP
from dustmap.kernels import KERNELS, Radial

# Rows of the subset, those that the first places are tried on, and how many near
# neighbours form a group.
ROWS, _FEW, _NEIGHBOURS = 1000, 300, 4
# Up to so many rows the exact evidence refines them; of more rows 10,000 do, each given
# so many of those before it.
_EXACT, MORE_ROWS, _GIVEN = 2_000, 10_000, 20
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
NOISES = (1e-3, 0.03, 0.3, 0.9)
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

    ``why`` is the choice of the kernel, for people; ``ranges`` are those of the search.
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

    def refined(
        self,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, " n"],
        generator: torch.Generator,
    ) -> Start:
        """The same kernel's hyperparameters by the evidence of up to 10,000 rows.

        Of more than 2,000 it is Vecchia's (1988, J. R. Stat. Soc. B 50, 297): every row
        given its nearest among those before it, in random order, so that pairs of every
        separation count. Given the nearest of all rows only short separations would,
        and scales could grow without end.
        """
        order = torch.randperm(len(x), generator=generator)[:MORE_ROWS]
        if len(x) <= _EXACT:
            model = self.exact(x, y)
        else:
            x, y = x[order], y[order]
            model = NeighbourGP(
                self.kernel,
                PointValues(x),
                y,
                noise=self.noise,
                mean=self.mean,
                count=_GIVEN,
                scored=torch.arange(_GIVEN, len(x)),
                near=earlier_neighbours(x / self.kernel.lengthscale, _GIVEN),
            )
        fitted = maximise(model, replace(_SETTINGS, ranges=self.ranges))
        return Start.of(fitted, self.why, self.ranges)


def earlier_neighbours(x: Float[Tensor, "n d"], count: int) -> Tensor:
    """Nearest rows of each from row ``count`` on, among those before it (n − k, k)."""
    parts = []
    for rows in torch.arange(count, len(x)).split(1_000):
        distances = torch.cdist(x[rows], x[: int(rows[-1])])
        later = torch.arange(distances.shape[1]) >= rows[:, None]
        distances[later] = math.inf
        parts.append(distances.topk(count, largest=False).indices)
    return torch.cat(parts)


def ranges_of(x: Float[Tensor, "n d"]) -> Ranges:
    """What inputs can tell of lengthscales, by axis, and double precision of noise."""
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

    The first is searched from some lengthscales, each with the best noise for few of
    the rows, the others from where it ended.
    """
    ranges = ranges_of(x)
    settings = replace(_SETTINGS, ranges=ranges)
    chosen = clustered_subset(x, ROWS, _NEIGHBOURS, generator)
    x, y = x[chosen], y[chosen]
    few = torch.randperm(len(x), generator=generator)[:_FEW]
    starts = _first(x[few], y[few], ranges)
    searched = [Start.of(maximise(each, settings), "", ranges) for each in starts]
    models = [each.exact(x, y) for each in searched]
    model = max(models, key=lambda model: model.log_marginal())
    found = {}
    for name in _CANDIDATES:
        values = model.kernel.parameters()
        model = replace(model, kernel=KERNELS[name](**values))
        found[name] = maximise(model, settings)
        model = found[name].model
    best, *others = sorted(found, key=lambda name: -found[name].log_marginal)
    beaten = [f"{KERNELS[n].title} {found[n].log_marginal:.1f}" for n in others]
    why = (
        f"{KERNELS[best].title} (log evidence of {len(x)} rows "
        f"{found[best].log_marginal:.1f}; {', '.join(beaten)})"
    )
    return Start.of(found[best], why, ranges)


def _first(x: Tensor, y: Tensor, ranges: Ranges) -> list[ExactGP]:
    """The best noises for some lengthscales, equal along all axes."""
    axes, found = x.shape[1], []
    for scale in SCALES:
        # Distances of random points grow as the root of the dimension.
        wanted = torch.full((axes,), scale * math.sqrt(axes)).to(x)
        lengthscale = wanted.clamp(*ranges["lengthscale"])
        models = [
            ExactGP(
                KERNELS[_CANDIDATES[0]](
                    lengthscale=lengthscale, variance=max(1 - noise, 0.1)
                ),
                PointValues(x),
                y,
                noise=noise,
                mean=float(y.mean()),
            )
            for noise in NOISES
        ]
        found.append(max(models, key=lambda model: model.log_marginal()))
    return found
