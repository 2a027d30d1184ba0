r"""Extinctions kriged from neighbouring stars alone: the baseline without a grid.

The map is the local mean density of a place's nearest stars,
:math:`g = \sum_n y_n / \sum_n d_n`, times the distance; what neighbours share beyond it
is a `ResidualField`. How many stars make the mean, and the stretch of angles in which
neighbours are sought, are those with the best log score of some held-out rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.residual.field import ResidualField, least_density
from dustmap.residual.field_learning import learn_residual
from dustmap.residual.free_spectrum import FreeSpectrum
from dustmap.residual.learning import Learnt, learn_weights
from dustmap.residual.neighbourhoods import Neighbourhoods
from dustmap.residual.neighbours import nearest, without_self
from dustmap.residual.rays import Rays

# Stars of a local mean that are tried, and the stretch in which they are found.
_MEANS, _STRETCH = (100, 300), 10.0
# Further stretches that are tried for kriging, on so many rows and neighbours.
_STRETCHES, _TRIED, _TRIED_NEIGHBOURS = (5.0, 20.0, 40.0), 300, 20
# Neighbours of a place.
_NEIGHBOURS = 100
# Places whose means are computed at once.
_ROWS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFree:
    """Kriging about a local mean density.

    Parameters
    ----------
    observed
        Rays of the stars with extinction over distance for density [mag/pc].
    field
        The residual about the local mean.
    count
        Stars of a local mean.
    floored
        Stars whose local mean was raised to `least_density`.
    """

    observed: Rays
    field: ResidualField
    count: int
    floored: int

    def predict(self, places: Rays) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Noise-free extinction of places [mag] and its variance [mag²].

        The places' densities count for nothing.
        """
        mean = local_means(self.observed, places, (self.count,))[:, 0]
        extinction = mean.clamp_min(self.field.darkest) * places.lengths
        ends = places.directions * places.lengths[:, None]
        found, variance = self.field.correct(ends, extinction[None], _NEIGHBOURS)
        return found[0], variance


def learn_grid_free(
    observed: Rays,
    noise: Float[Tensor, " n"],
    placing: Float[Tensor, " n"],
    held: Int[Tensor, " m"],
) -> GridFree:
    """The kriging whose covariance predicts the rows ``held`` best.

    Parameters
    ----------
    observed
        Rays with extinction over distance for density [mag/pc].
    noise
        Variances of the extinctions [mag²].
    placing
        Standard deviations of the distances [pc]; local mean densities make noise of
        them.
    """
    extinction = observed.density * observed.lengths
    least = least_density(extinction, observed.lengths)
    means = local_means(observed, None, _MEANS)
    trials = [_Trial.of(observed, mean, least, placing) for mean in means.T]
    tried = held[:_TRIED]
    first = trials[0].learnt(noise, tried, _STRETCH)
    others = [trial.learnt(noise, tried, _STRETCH, first) for trial in trials[1:]]
    scores = [learnt.score for learnt in (first, *others)]
    best = scores.index(max(scores))
    trial, known = trials[best], {_STRETCH: scores[best]}
    for stretch in _STRETCHES:
        known[stretch] = trial.learnt(noise, tried, stretch, first).score
    stretch = max(known, key=lambda stretch: known[stretch])
    field = learn_residual(
        trial.rays,
        trial.residuals[None],
        noise,
        held,
        placing=trial.placing,
        stretches=(stretch,),
    )
    floored = int((means[:, best] < least).sum())
    return GridFree(observed=observed, field=field, count=_MEANS[best], floored=floored)


def local_means(
    observed: Rays, places: Rays | None, counts: tuple[int, ...]
) -> Float[Tensor, "m c"]:
    """Mean densities [mag/pc] of the nearest stars, of so many; all if there are fewer.

    Of the stars themselves where no places are given, each without its own.
    """
    points = observed.coordinates(_STRETCH)
    extinction = observed.density * observed.lengths
    asked = points if places is None else places.coordinates(_STRETCH)
    most = max(counts) + (places is None)
    found = []
    for rows in torch.arange(len(asked)).split(_ROWS):
        near = nearest(points, asked[rows], most)
        if places is None:
            near = without_self(near, rows)
        sums = [part[near].cumsum(1) for part in (extinction, observed.lengths)]
        last = [min(count, near.shape[1]) - 1 for count in counts]
        found.append(sums[0][:, last] / sums[1][:, last])
    return torch.cat(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """Stars about one choice of local means.

    Rays with these for density, residuals [mag], and variances by errors of distances.
    """

    rays: Rays
    residuals: Float[Tensor, " n"]
    placing: Float[Tensor, " n"]

    @classmethod
    def of(cls, observed: Rays, mean: Tensor, least: float, placing: Tensor) -> _Trial:
        mean = mean.clamp_min(least)
        return cls(
            rays=replace(observed, density=mean),
            residuals=(observed.density - mean) * observed.lengths,
            placing=(mean * placing) ** 2,
        )

    def learnt(
        self, noise: Tensor, held: Tensor, stretch: float, first: Learnt | None = None
    ) -> Learnt:
        """The weights that predict held-out rows best, sought from those of another."""
        noise = noise + self.placing
        seen = torch.ones(len(self.rays), dtype=torch.bool)
        seen[held] = False
        known = torch.nonzero(seen)[:, 0]
        points = self.rays.coordinates(stretch)
        near = known[nearest(points[known], points[held], _TRIED_NEIGHBOURS)]
        places = self.rays[held]
        hoods = Neighbourhoods.of(FreeSpectrum(), self.rays, places, near)
        return learn_weights(
            *(hoods, self.residuals, noise, self.residuals[held], noise[held]),
            known=None if first is None else first.weights,
        )
