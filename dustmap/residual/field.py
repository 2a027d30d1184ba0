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

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.residual.compiled_kriging import krige_rays
from dustmap.residual.free_spectrum import FreeSpectrum, Rays
from dustmap.residual.kriging import Neighbourhoods
from dustmap.residual.learning import OUTLYING, Learnt, learn_weights
from dustmap.residual.neighbours import nearest, without_self

# Neighbours of a place, and of a star while the covariance is learnt.
_COUNT, _LEARNING_COUNT = 50, 30
# Stretches of angles that are tried.
_STRETCHES = (5.0, 10.0, 20.0)
# Rays darker than this part of the mean density have the residual of this part.
_DARKEST = 0.02
# Rounds of weighing outliers and learning, and the part of rows that calls for them.
_ROUNDS, _FEW_OUTLIERS = 2, 2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
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
    weights, nugget, scale, outliers
        Of the covariance; see `Learnt`.
    stretch
        Of angles against logarithms of distance, where neighbours are sought.
    """

    rays: Rays
    residuals: Float[Tensor, "s n"]
    stated: Float[Tensor, " n"]
    noise: Float[Tensor, " n"]
    weights: Float[Tensor, " j"]
    nugget: float
    scale: float
    outliers: float
    stretch: float

    @property
    def darkest(self) -> float:
        """The least density of a ray [mag/pc]; the same whatever places are asked."""
        return least_density(self.rays.density * self.rays.lengths, self.rays.lengths)

    def with_outliers_weighed(self, outliers: float) -> ResidualField:
        r"""The noise of outliers raised, by what their neighbours predict.

        A star's deviation z from the prediction without itself is a standard normal or,
        in this part of the stars, ten times as wide. Its precision is the mean over
        these two.
        """
        points, residuals = self.rays.coordinates(self.stretch), self.residuals.mean(0)
        found = krige_rays(
            FreeSpectrum(),
            self.weights,
            self.rays,
            self.noise + self.nugget,
            self.rays,
            without_self(nearest(points, points, _LEARNING_COUNT + 1)),
        )
        variance = found.variance + self.nugget + self.stated
        squared = (residuals - found.mean(residuals)) ** 2 / variance
        odds = (squared / 2 * (1 - OUTLYING**-2)).clamp_max(50).exp()
        odds = odds * outliers / (1 - outliers) / OUTLYING
        outlying = odds / (1 + odds)
        wide = self.stated + (OUTLYING**2 - 1) * variance
        precision = (1 - outlying) / self.stated + outlying / wide
        return replace(self, noise=1 / precision)

    def correct(
        self,
        ends: Float[Tensor, "m 3"],
        extinctions: Float[Tensor, "s m"],
        count: int = _COUNT,
    ) -> tuple[Float[Tensor, "s m"], Float[Tensor, " m"]]:
        """Every sample's extinctions to places [pc], corrected, and ``v`` [mag²].

        From the ``count`` nearest stars.
        """
        places = rays_to(ends, extinctions.mean(dim=0), self.darkest)
        near = nearest(
            self.rays.coordinates(self.stretch),
            places.coordinates(self.stretch),
            count,
        )
        found = krige_rays(
            FreeSpectrum(),
            self.weights,
            self.rays,
            self.noise + self.nugget,
            places,
            near,
        )
        variance = found.variance.clamp_min(0.0) + self.nugget
        corrected = _added(extinctions.to(torch.float64), found.mean(self.residuals))
        return corrected, self.scale * variance


def _added(
    extinction: Float[Tensor, "s m"], change: Float[Tensor, "s m"]
) -> Float[Tensor, "s m"]:
    """The sum, kept positive: changes that take more than half act exponentially.

    ``E + c`` where ``c ≥ −E/2``, else ``E/2 · exp(1 + 2c/E)``.
    """
    half = extinction / 2
    bounded = half * (1 + change / half.clamp_min(1e-300)).clamp_max(0.0).exp()
    return torch.where(change >= -half, extinction + change, bounded)


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


def learn_residual(
    rays: Rays,
    residuals: Float[Tensor, "s n"],
    noise: Float[Tensor, " n"],
    held: Int[Tensor, " m"],
    stretches: tuple[float, ...] = _STRETCHES,
) -> ResidualField:
    """The residual whose covariance predicts held-out rows best.

    ``held`` are the rows that the map has not seen; the others are their neighbours
    while the covariance is learnt. Where more than two rows in a thousand are outliers,
    these count less and the covariance is learnt anew; fewer cannot be told from rays
    through compact clouds.
    """
    field = _learnt(rays, residuals, noise, noise, held, stretches)
    for _ in range(_ROUNDS):
        if field.outliers < _FEW_OUTLIERS:
            break
        weighed = field.with_outliers_weighed(field.outliers)
        stretches = (field.stretch,)
        field = _learnt(rays, residuals, noise, weighed.noise, held, stretches)
    else:
        field = field.with_outliers_weighed(field.outliers)
    return field


def _learnt(
    rays: Rays,
    residuals: Tensor,
    stated: Tensor,
    noise: Tensor,
    held: Tensor,
    stretches: tuple[float, ...],
) -> ResidualField:
    """The best of some stretches, with the neighbours' noise as it is given."""
    seen = torch.ones(len(rays), dtype=torch.bool)
    seen[held] = False
    known, mean = torch.nonzero(seen)[:, 0], residuals.mean(dim=0)
    best: tuple[Learnt, float] | None = None
    for stretch in stretches:
        points = rays.coordinates(stretch)
        near = known[nearest(points[known], points[held], _LEARNING_COUNT)]
        hoods = Neighbourhoods.of(FreeSpectrum(), rays, rays[held], near)
        found = learn_weights(hoods, mean, noise, mean[held], stated[held])
        if best is None or found.score > best[0].score:
            best = found, stretch
    assert best is not None
    learnt, stretch = best
    return ResidualField(
        rays=rays,
        residuals=residuals,
        stated=stated,
        noise=noise,
        weights=learnt.weights,
        nugget=learnt.nugget,
        scale=learnt.scale,
        stretch=stretch,
        outliers=learnt.outliers,
    )
