r"""What neighbouring stars share beyond the map, at any place.

A grid predicts :math:`W\rho`; the residuals :math:`r = y - W\rho` of stars are
correlated where sight lines pass the same structure below the grid. At a new place the
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

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.residual.along_ray import AlongRay
from dustmap.residual.compiled_kriging import krige_rays, predict_rays
from dustmap.residual.corrections import calibrated, corrected
from dustmap.residual.free_spectrum import FreeSpectrum
from dustmap.residual.kriging import Kriging
from dustmap.residual.learning import OUTLYING
from dustmap.residual.neighbours import RowIndex, nearest, without_self
from dustmap.residual.rays import DensityCube, Rays

# Neighbours of a place.
COUNT = 64
# Neighbours of every star when outliers are weighed.
_FEW = 20
# The power of the factor on variances that densities have. No star tells theirs: in
# three simulated skies 68% intervals held 72%, 74% and 68% of densities with this,
# 66%, 69% and 63% with one.
_OF_DENSITIES = 0.5
# Densities of rays are raised to at least this fraction of the mean.
_DARKEST = 0.02


@dataclass(frozen=True, kw_only=True)
class ResidualField:
    """Residuals of the fitted stars from every sample, and their covariance.

    Parameters
    ----------
    rays
        Of the stars, with the mean map's density.
    residuals
        From every sample's prediction [mag].
    stated, noise
        Variance of each star's extinction, and the same with that of outliers raised
        [mag²].
    weights, nugget, outliers
        Of the covariance; see `Learnt`.
    scales
        The factors on predicted variances, those of samples included, with which 68% of
        the stars that the map had not seen lie within one standard deviation: one for
        the places of each grid, the coarsest first. Variances of densities have their
        square root.
    tails
        Degrees of freedom of the Student-T that errors of these stars' extinctions
        follow.
    stretch
        Of angles against logarithms of distance, where neighbours are sought.
    cube
        The mean map's density, which the rays have profiles of; the covariance is that
        along rays. ``None`` without a map: the covariance is that of a free spectrum.
    gain
        Of the log score of the rows that teach, over that of the map alone [nats].
    """

    rays: Rays
    residuals: Float[Tensor, "s n"]
    stated: Float[Tensor, " n"]
    noise: Float[Tensor, " n"]
    weights: Float[Tensor, " j"]
    nugget: float
    scales: Float[Tensor, " g"]
    outliers: float
    stretch: float
    cube: DensityCube | None = None
    gain: float = math.nan
    tails: float = math.inf

    @property
    def form(self) -> FreeSpectrum | AlongRay:
        """That of the covariance."""
        if self.cube is None:
            return FreeSpectrum()
        cube = self.cube
        return AlongRay(
            edges=cube.edges(), cells=cube.cells(), lengthscales=cube.scales
        )

    @property
    def darkest(self) -> float:
        """The least density of a ray [mag/pc]; the same whatever places are asked."""
        return least_density(self.rays.density * self.rays.lengths, self.rays.lengths)

    def with_outliers_weighed(self, outliers: float) -> ResidualField:
        r"""The noise of outliers raised, by what their neighbours predict.

        A star's deviation z from the prediction without itself is a standard normal or,
        in this part of the stars, ten times as wide. Its precision is the mean over
        these two. Neighbours count with their present noise: outliers among them that
        are not weighed yet make outliers of others, which a second call mends.
        """
        points, residuals = self.rays.coordinates(self.stretch), self.residuals.mean(0)
        near = without_self(nearest(points, points, _FEW + 1))
        found = self.krige(self.rays, near)
        variance = found.variance + self.nugget + self.stated
        squared = (residuals - found.mean(residuals)) ** 2 / variance
        odds = (squared / 2 * (1 - OUTLYING**-2)).clamp_max(50).exp()
        odds = odds * outliers / (1 - outliers) / OUTLYING
        outlying = odds / (1 + odds)
        own = self.stated + self.nugget
        wide = own + (OUTLYING**2 - 1) * variance
        precision = (1 - outlying) / own + outlying / wide
        return replace(self, noise=1 / precision - self.nugget)

    def correct(
        self,
        ends: Float[Tensor, "m 3"],
        extinctions: Float[Tensor, "s m"],
        count: int = COUNT,
    ) -> tuple[Float[Tensor, "s m"], Float[Tensor, " m"]]:
        """Every sample's extinctions to places [pc], corrected, and ``v`` [mag²].

        From the ``count`` stars nearest to the star nearest to each place.
        """
        places = self.places(ends, extinctions.mean(dim=0))
        mean, variance = self._predict(places, count)
        scale = self.scale_at(places.lengths)
        return corrected(extinctions, mean, scale), scale * variance

    def scale_at(self, distance: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        """The factor of the finest grid that reaches so far [pc]."""
        if self.cube is None or len(self.scales) == 1:
            return self.scales[0].expand(len(distance))
        return self.scales[self.cube.level_at(distance)]

    def places(
        self, ends: Float[Tensor, "m 3"], extinction: Float[Tensor, " m"]
    ) -> Rays:
        """Rays to places [pc] as the covariance needs them."""
        rays = rays_to(ends, extinction, self.darkest)
        return rays if self.cube is None else self.cube.along(rays)

    def correct_density(
        self, points: Float[Tensor, "m 3"], densities: Float[Tensor, "s m"]
    ) -> tuple[Float[Tensor, "s m"], Float[Tensor, "s m"]]:
        r"""Every sample's densities at points [pc], corrected, and their variances.

        The residual of the density is :math:`\rho_s(x) (a / \bar\rho)(x) \delta(x)`
        with the amplitude a of `DensityCube` over the mean map's density. The relative
        density :math:`\delta` has the variance :math:`\sum_j w_j`; its covariance with
        the extinction of a star is that of
        :mod:`dustmap.residual.compiled_covariance`.
        """
        assert self.cube is not None
        nowhere = torch.zeros(len(points), dtype=torch.float64)
        places = rays_to(points, nowhere, self.darkest)
        mean, variance = self._predict(places, COUNT, points=True)
        scale = self.scale_at(places.lengths) ** _OF_DENSITIES
        relative = self.cube.relative_amplitude(places)
        found = corrected(densities, mean, scale, relative=relative)
        # What is left is in proportion to the amplitude of the corrected density.
        power, before = self.cube.power, calibrated(densities, scale)
        left = relative * before ** (1 - power) * found**power
        return found, scale * left**2 * variance

    def correlation_length(self, points: Float[Tensor, "m 3"]) -> Float[Tensor, " m"]:
        r"""The length [pc] over which the relative density adds up along any line.

        :math:`\int \mathrm{corr}(t)\,dt = 2 \sum_j w_j \ell_j / \sum_j w_j` with the
        scales :math:`\ell_j` at these points.
        """
        assert isinstance(self.form, AlongRay)
        form, distance = self.form, torch.linalg.vector_norm(points, dim=1)
        scales = self.weights.new_tensor(form.lengthscales)
        length = 2 * (self.weights @ scales) / self.weights.sum()
        shells = torch.bucketize(distance, form.edges[1:-1], right=True)
        return length * form.cells[shells]

    def _predict(
        self, places: Rays, count: int, *, points: bool = False
    ) -> tuple[Float[Tensor, "s m"], Float[Tensor, " m"]]:
        """Places from the neighbours of the star nearest to each, by every sample.

        Cubes and maps of the sky have many places of one star.
        """
        index = self._index
        own = index.nearest(places.coordinates(self.stretch), 1)[:, 0]
        found, blocks = own.unique(return_inverse=True)
        near = index.nearest(self.rays[found].coordinates(self.stretch), count)
        return predict_rays(
            *(self.form, self.weights, self.rays, self.noise + self.nugget),
            *(self.residuals, places, near, blocks),
            points=points,
        )

    @cached_property
    def _index(self) -> RowIndex:
        """The stars' places; queries ask for them again and again."""
        stars = self.rays.coordinates(self.stretch)
        return RowIndex.of(stars, stars.new_ones(1))

    def krige(self, places: Rays, neighbours: Int[Tensor, "m k"]) -> Kriging:
        """Places from their neighbours among the stars."""
        noise = self.noise + self.nugget
        return krige_rays(self.form, self.weights, self.rays, noise, places, neighbours)


def least_density(
    extinction: Float[Tensor, " n"], lengths: Float[Tensor, " n"]
) -> float:
    """The density [mag/pc] below which rays count as no darker, of the stars' rays."""
    return _DARKEST * float(extinction.clamp_min(0.0).sum() / lengths.sum())


def rays_to(
    ends: Float[Tensor, "n 3"], extinction: Float[Tensor, " n"], least: float
) -> Rays:
    """Rays from the observer to places [pc] where the map has these extinctions."""
    lengths = torch.linalg.vector_norm(ends, dim=-1)
    safe = lengths.clamp_min(1e-9)
    return Rays(
        directions=ends / safe[:, None],
        lengths=lengths,
        density=(extinction / safe).clamp_min(least),
    )
