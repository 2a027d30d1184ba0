r"""Extinctions kriged from neighbouring stars: the baseline without a grid.

The local mean density :math:`g = \langle y_n / d_n \rangle` of a place's nearest stars
times its distance is the map, what neighbours share beyond it a `ResidualField`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from dustmap.residual.field import ResidualField, learn_residual, least_density
from dustmap.residual.free_spectrum import Rays
from dustmap.residual.neighbours import nearest, without_self

# Stars whose mean is the local density, and the stretch of angles where they are found.
_COUNT, _STRETCH = 40, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFree:
    """Kriging about a local mean density.

    Parameters
    ----------
    observed
        Rays of the stars with extinction over distance for density [mag/pc].
    field
        The residual about the local mean.
    """

    observed: Rays
    field: ResidualField

    def predict(
        self, directions: Float[Tensor, "m 3"], lengths: Float[Tensor, " m"]
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Extinction of places [mag] and its variance [mag²], without noise."""
        places = Rays(directions=directions, lengths=lengths, density=lengths)
        near = nearest(
            self.observed.coordinates(_STRETCH), places.coordinates(_STRETCH), _COUNT
        )
        local = self.observed.density[near].mean(1).clamp_min(self.field.darkest)
        mean, variance = self.field.correct(
            directions * lengths[:, None], (local * lengths)[None]
        )
        return mean[0], variance


def learn_grid_free(
    observed: Rays, noise: Float[Tensor, " n"], held: Int[Tensor, " m"]
) -> GridFree:
    """The kriging whose covariance predicts the rows ``held`` best.

    ``observed`` holds extinction over distance; ``noise`` are variances [mag²].
    """
    points = observed.coordinates(_STRETCH)
    near = without_self(nearest(points, points, _COUNT + 1))
    extinction = observed.density * observed.lengths
    least = least_density(extinction, observed.lengths)
    local = observed.density[near].mean(1).clamp_min(least)
    rays = replace(observed, density=local)
    residuals = extinction - local * observed.lengths
    return GridFree(
        observed=observed, field=learn_residual(rays, residuals[None], noise, held)
    )
