r"""What neighbouring stars share beyond the map, at any place.

A grid predicts :math:`W\rho`; the stars' residuals :math:`r = y - W\rho` are correlated
where sight lines pass the same structure below the grid. At a new place the sample s has

.. math::
   E_s = (W \rho_s)_* + c^\top (C + D)^{-1} (y - W \rho_s), \qquad
   v = C_{**} - c^\top (C + D)^{-1} c ,

over the nearest stars, so that map and residual vary together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.residual.free_spectrum import FreeSpectrum, Rays
from dustmap.residual.kriging import Neighbourhoods, krige
from dustmap.residual.learning import Learnt, learn_weights
from dustmap.residual.neighbours import nearest

# Neighbours of a place, and the stretches of angles that are tried.
_COUNT, _STRETCHES = 30, (5.0, 10.0, 20.0)
# Where the map is darker than this part of its mean, the residual is as there.
_DARKEST = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualField:
    """The fitted stars' residuals from every sample, and their covariance.

    Parameters
    ----------
    rays
        Of the stars, ``density`` from the mean map.
    residuals
        From the mean map, then from every sample [mag].
    noise
        Variance of each star, common noise and outliers' weights included [mag²].
    weights
        Of the components of ``spectrum``.
    stretch
        Of angles against logarithms of distance, where neighbours are sought.
    floor
        Least mean density of a ray [mag/pc].
    """

    rays: Rays
    residuals: Float[Tensor, "s n"]
    noise: Float[Tensor, " n"]
    weights: Float[Tensor, " j"]
    stretch: float
    floor: float
    spectrum: FreeSpectrum = FreeSpectrum()

    def places(
        self, directions: Float[Tensor, "m 3"], extinction: Float[Tensor, " m"], lengths
    ) -> Rays:
        """Rays to places where the mean map has these extinctions [mag]."""
        density = (extinction / lengths.clamp_min(1e-9)).clamp_min(self.floor)
        return Rays(directions=directions, lengths=lengths, density=density)

    def corrections(
        self, places: Rays
    ) -> Iterator[tuple[slice, Float[Tensor, "s m"], Float[Tensor, " m"]]]:
        """What to add to the mean map's and every sample's extinctions, and ``v``."""
        near = nearest(
            self.rays.coordinates(self.stretch),
            places.coordinates(self.stretch),
            _COUNT,
        )
        parts = krige(
            self.spectrum, self.weights, self.rays, self.noise, places, near
        )
        for part, found in parts:
            yield part, found.mean(self.residuals), found.variance.clamp_min(0.0)


def learn_residual(
    rays: Rays,
    residuals: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    held: Float[Tensor, " m"],
) -> tuple[Learnt, float]:
    """The covariance's weights and the stretch that predict held-out rows best.

    ``held`` are the rows (indices) that the map has not seen; the others are their
    neighbours.
    """
    seen = torch.ones(len(rays), dtype=torch.bool)
    seen[held] = False
    known = torch.nonzero(seen)[:, 0]
    best: tuple[Learnt, float] | None = None
    for stretch in _STRETCHES:
        points = rays.coordinates(stretch)
        near = known[nearest(points[known], points[held], _COUNT)]
        hoods = Neighbourhoods.of(FreeSpectrum(), rays, rays[held], near)
        found = learn_weights(hoods, residuals, noise, residuals[held], noise[held])
        if best is None or found.score > best[0].score:
            best = found, stretch
    assert best is not None
    return best
