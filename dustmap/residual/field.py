r"""Residuals of the map that neighbouring stars share, predicted at any place.

A grid predicts :math:`W\rho`; the residuals :math:`r = y - W\rho` of stars are
correlated where sight lines cross the same structure below the grid. At a new place
sample s has

.. math::
   E_s = (W \rho_s)_* + c^\top (C + D)^{-1} (y - W \rho_s), \qquad
   v = C_{**} - c^\top (C + D)^{-1} c ,

over the nearest stars, so that map and residual vary together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.residual.corrections import central_factor, corrected
from dustmap.residual.covariance import (
    CPU,
    RayCovariance,
    Rays,
    SubgridCovariance,
    rays_to,
)
from dustmap.residual.cube import DensityCube
from dustmap.residual.kriging import Kriging, krige_rays, predict_rays
from dustmap.residual.moderation import VarianceLaw
from dustmap.residual.neighbours import RowIndex, nearest, without_self
from dustmap.residual.predictive import PredictiveLaw
from dustmap.tails import OUTLIER_FACTOR, outlier_probability

if TYPE_CHECKING:
    from dustmap.residual.stacking import StackedKriging

# Neighbours of a place among the stars. With 64 for each place, instead of 128 shared
# by the places of a leaf, errors of 1,000,000 stars were 2% larger, of 48,000 stars
# 0.2% smaller.
NEIGHBOURS = 128
# Leaves whose predictions are averaged at a place. With one leaf extinctions 250 pc
# away had steps of 0.4 standard deviations at the edges of leaves, with two 0.07, with
# three 0.04.
BLENDED = 3


@dataclass(frozen=True, kw_only=True)
class ResidualField:
    """Residuals of the fitted stars from every sample, and their covariance.

    Parameters
    ----------
    rays
        Rays of the stars, with the mean map's density.
    residuals
        Measured minus predicted extinctions, for every sample [mag].
    stated, noise
        Variance of each star's extinction as stated, and as raised for outliers [mag²].
    weights, nugget, outliers
        Variances of the relative density at every lengthscale, or α of every grid; the
        variance of independent residuals [mag²]; the fraction of outliers.
    tails
        Degrees of freedom of the Student-T distribution of held-out stars' errors.
    stretch
        Factor on angles relative to logarithms of distance in the neighbour search.
    cube, subgrid
        The mean map's density, and the part of the prior that its grids do not carry.
        ``None`` without a map, for the covariance of a free spectrum.
    score
        Log score of the held-out rows [nats].
    law
        Distribution of measured extinctions about their predictions, if known.
    stack
        Kriging that contributes to the predictions of stars, if it improves them.
    variances
        Law of the samples' variances of ln ρ, if known.
    density_weights
        α of every grid for the variances of densities, where `weights` are for
        extinctions alone.
    device
        Where covariances are evaluated and neighbourhoods solved; all tensors here are
        on the CPU.
    """

    rays: Rays
    residuals: Float[Tensor, "s n"]
    stated: Float[Tensor, " n"]
    noise: Float[Tensor, " n"]
    weights: Float[Tensor, " j"]
    stretch: float
    nugget: float = 0.0
    outliers: float = 0.0
    cube: DensityCube | None = None
    subgrid: SubgridCovariance | None = None
    score: float = math.nan
    tails: float = math.inf
    law: PredictiveLaw | None = None
    stack: StackedKriging | None = None
    variances: VarianceLaw | None = None
    density_weights: Float[Tensor, " j"] | None = None
    device: torch.device = CPU

    @cached_property
    def covariance(self) -> RayCovariance:
        """Covariance along rays or, without a cube, under a free spectrum."""
        return RayCovariance(
            weights=self.weights,
            subgrid=self.subgrid,
            cube=self.cube,
            device=self.device,
        )

    @property
    def has_outliers(self) -> bool:
        """True if any star's noise is raised."""
        return bool((self.noise > self.stated).any())

    @property
    def darkest(self) -> float:
        """Least density of any ray [mag/pc]."""
        return least_density(self.rays.density * self.rays.lengths, self.rays.lengths)

    def select(self, rows: Int[Tensor, " k"]) -> ResidualField:
        """Return the field of some of its stars, without a stack."""
        return replace(
            self,
            stack=None,
            rays=self.rays[rows],
            residuals=self.residuals[:, rows],
            stated=self.stated[rows],
            noise=self.noise[rows],
        )

    def with_outliers_down_weighted(
        self, outliers: float, rounds: int = 1
    ) -> ResidualField:
        r"""Raise the noise of stars that disagree with their neighbours.

        A star's deviation z from its leave-one-out prediction is standard normal or,
        for the fraction ``outliers``, ten times as wide; the star's precision is the
        posterior mean over both cases. An outlier that is not yet down-weighted makes
        its neighbours look like outliers; a second round corrects this for the stars
        with such a neighbour.
        """
        points, residuals = self.rays.coordinates(self.stretch), self.residuals.mean(0)
        # Twelve neighbours of every star.
        near, field = without_self(nearest(points, points, 13)), self
        rows = torch.arange(len(near))
        for _ in range(rounds):
            own = self.stated[rows] + self.nugget
            found = field.krige(field.rays[rows], near[rows])
            variance = found.variance + own
            squared = (residuals[rows] - found.mean(residuals)) ** 2 / variance
            usual = -squared / 2
            wide = usual / OUTLIER_FACTOR**2 - math.log(OUTLIER_FACTOR)
            outlying = outlier_probability(usual, wide, outliers)
            raised = own + (OUTLIER_FACTOR**2 - 1) * variance
            precision = (1 - outlying) / own + outlying / raised
            noise = field.noise.clone()
            noise[rows] = 1 / precision - self.nugget
            # Repeat for stars with a neighbour whose noise has grown by 10%.
            again = (noise > 1.1 * field.noise)[near].any(dim=1)
            rows = torch.nonzero(again)[:, 0]
            field = replace(field, noise=noise)
        return field

    def correct(
        self, ends: Float[Tensor, "m 3"], values: Float[Tensor, "s m"], points: int = 0
    ) -> tuple[Float[Tensor, "s m"], Float[Tensor, "s m"]]:
        r"""Correct every sample's values at places [pc]; also return variances.

        Values are extinctions to the places [mag] or, at the last ``points`` of them,
        densities there [mag/pc]. The residual of a density is
        :math:`\bar\rho(x) \delta(x)` with the density of the ``cube``
        (:mod:`dustmap.residual.covariance` has the covariance of :math:`\delta` with
        extinctions).

        Places whose nearest stars share a leaf of the search tree are predicted from
        the same `NEIGHBOURS` stars around the leaf. Where the correction removes more
        than half of an extinction, its variance shrinks with it.
        """
        split = len(ends) - points
        # One by one, so that the bits do not depend on the number of places.
        extinction = sum(values, torch.zeros(())) / len(values)
        extinction[split:] = 0.0
        places = self.places(ends, extinction)
        mean, variance = self._predict(places, points)
        parts, factor = [], central_factor(self.tails)
        if split or not points:
            shares = torch.empty(len(values), split, dtype=torch.float64)
            given = values[:, :split], mean[:, :split], factor
            found = corrected(*given, shares=shares)
            parts.append((found, factor * variance[:split] * shares))
        if points:
            assert self.cube is not None
            # Densities have no tails of their own. With the covariance's amplitude,
            # their changes integrate to the changes of extinctions.
            given = values[:, split:], mean[:, split:], 1.0
            found = corrected(*given, amplitude=self.cube.at(ends[split:]))
            left = variance[split:]
            if self.density_weights is not None:
                level = self.cube.level_at(places.lengths[split:])
                left = left * (self.density_weights / self.weights)[level]
            # The remaining std is proportional to the corrected density.
            parts.append((found, found**2 * left))
        if len(parts) == 1:
            return parts[0]
        found, left = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        return found, left

    def places(
        self, ends: Float[Tensor, "m 3"], extinction: Float[Tensor, " m"]
    ) -> Rays:
        """Return rays to places [pc] with these extinctions [mag] by the map."""
        return rays_to(ends, extinction, self.darkest)

    def over_cells(self, width: float) -> ResidualField:
        """Return the field for mean densities in cells of this width [pc]."""
        assert self.subgrid is not None
        return replace(self, subgrid=replace(self.subgrid, cell=width))

    def correlation_length(self, points: Float[Tensor, "m 3"]) -> Float[Tensor, " m"]:
        r"""Return the correlation length [pc] of the relative density along a line.

        :math:`\int \mathrm{corr}(x)\,dx = \kappa(0) / (e^{k_{[0, t]}(0)} - 1)` with the
        t of the finest grid that reaches the point's distance in every direction.
        """
        assert self.cube is not None
        assert self.subgrid is not None
        level = self.cube.level_at(torch.linalg.vector_norm(points, dim=1))
        return torch.from_numpy(self.subgrid.lengths)[level]

    def _predict(
        self, places: Rays, points: int
    ) -> tuple[Float[Tensor, "s m"], Float[Tensor, " m"]]:
        r"""Predict places from the neighbours of the three leaves nearest to each.

        A prediction from the neighbours of the i-th nearest leaf has the weight
        :math:`d_4 - d_i`, with the distances :math:`d_i` from the leaves' centres in
        the coordinates of the search. It is zero where another leaf takes over, so that
        predictions have no steps. The average of the variances is at least the variance
        of the averaged prediction.
        """
        centres = self._centres
        around, away = self._leaves(places)
        if away.shape[1] > 1:
            around, away = around[:, :-1], away[:, -1:] - away[:, :-1]
        total = away.sum(dim=1, keepdim=True)
        weights = torch.where(total > 0, away / total, 1 / around.shape[1])
        found, blocks = around.unique(return_inverse=True)
        near = self._index.nearest(centres[found], NEIGHBOURS)
        every = "_columns" in self.__dict__ or near.numel() > len(self.rays)
        # Extinctions from every leaf, then densities from every leaf.
        parts = torch.arange(len(places)).split([len(places) - points, points])
        repeated = [part.repeat(around.shape[1]) for part in parts]
        ordered = torch.cat([blocks[part].T.flatten() for part in parts])
        mean, variance = predict_rays(
            self.covariance,
            self.rays,
            self.noise + self.nugget,
            self.residuals,
            places[torch.cat(repeated)],
            len(repeated[1]),
            near,
            ordered,
            # Some 300 bytes a star.
            self._columns if every and len(self.rays) < 2_000_000 else None,
        )
        blended = []
        for values in (mean, variance[None]):
            split = values.split([len(part) for part in repeated], dim=1)
            shaped = (v.reshape(len(v), around.shape[1], -1) for v in split)
            blended.append((torch.cat(list(shaped), dim=2) * weights.T).sum(dim=1))
        return blended[0], blended[1][0]

    def surroundings(self, points: Float[Tensor, "m 3"]) -> Float[Tensor, "m 3"]:
        """Return what a `VarianceLaw` asks of places [pc].

        Logarithms of the mean map's density [mag/pc], of the distance [pc], and of the
        distance in the search to the fourth leaf, which is large where stars are rare.
        """
        assert self.cube is not None
        places = self.places(points, torch.zeros(len(points)))
        away = self._leaves(places)[1][:, -1]
        return torch.stack([self.cube.at(points), places.lengths, away], dim=1).log()

    def resolved(self, points: Float[Tensor, "m 3"]) -> Float[Tensor, " m"]:
        """Return the prior's variance of ln ρ that the grids carry at places [pc]."""
        assert self.cube is not None
        assert self.subgrid is not None
        levels = self.cube.level_at(torch.linalg.vector_norm(points, dim=1))
        below = np.log1p(replace(self.subgrid, cell=0.0).variances)
        return self.subgrid.variance - torch.from_numpy(below)[levels]

    def _leaves(self, places: Rays) -> tuple[Int[Tensor, "m k"], Float[Tensor, "m k"]]:
        """Return the leaves nearest to places, and their distances in the search."""
        wanted, centres = places.coordinates(self.stretch), self._centres
        near = nearest(centres, wanted, BLENDED + 1)
        return near, torch.linalg.vector_norm(wanted[:, None] - centres[near], dim=2)

    @cached_property
    def _columns(self) -> Any:
        """Columns of all stars' rays, kept for calls of many places."""
        return self.covariance.columns(self.rays)

    @cached_property
    def _index(self) -> RowIndex:
        """Index of the stars, shared by all queries."""
        stars = self.rays.coordinates(self.stretch)
        return RowIndex.of(stars, stars.new_ones(1))

    def unresolved(self, ends: Float[Tensor, "m 3"]) -> Float[Tensor, " m"]:
        """Return the variance C_nn of extinctions to places [pc] below the grids."""
        nothing = torch.empty(len(ends), 0, dtype=torch.int64)
        return self.krige(self.places(ends, torch.ones(len(ends))), nothing).prior

    @cached_property
    def _centres(self) -> Float[Tensor, "l 4"]:
        """Centres of the leaves: parts of space whose places share neighbours."""
        return self._index.leaves()[1]

    def krige(self, places: Rays, neighbours: Int[Tensor, "m k"]) -> Kriging:
        """Krige places from their neighbours among the stars."""
        noise = self.noise + self.nugget
        return krige_rays(self.covariance, self.rays, noise, places, neighbours)


def least_density(
    extinction: Float[Tensor, " n"], lengths: Float[Tensor, " n"]
) -> float:
    """Return 2% of the mean density [mag/pc], to which rays' densities are raised."""
    return 0.02 * float(extinction.clamp_min(0.0).sum() / lengths.sum())
