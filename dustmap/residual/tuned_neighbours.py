r"""A star's extinction from its nearest stars: the baseline without a model.

The ``k`` stars nearest in :math:`(a\,e, \ln d)` predict

.. math::
   \hat y = d \, \frac{\sum_n y_n / d_n}{k} \quad\text{or}\quad
   \hat y = \frac{\sum_n y_n}{k} .

The stretch ``a``, ``k`` and the form are those with the least error on the stars
themselves, each predicted from the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.residual.free_spectrum import Rays
from dustmap.residual.neighbours import nearest, without_self

_STRETCHES = (2.0, 5.0, 10.0, 20.0, 40.0)
_COUNTS = (1, 2, 3, 5, 8, 12, 20, 35, 60, 100)
# Stars on which stretch and count are tried.
_TRIED = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedNeighbours:
    """Stars with what was tuned.

    Parameters
    ----------
    rays
        Of the stars; ``density`` is the observed extinction over the distance.
    stretch, count
        ``a`` and ``k``.
    proportional
        Whether neighbours' extinctions are scaled to the distance of the place.
    rmse
        Root mean square error [mag] on the stars themselves, noise included.
    """

    rays: Rays
    stretch: float
    count: int
    proportional: bool
    rmse: float

    def predict(self, places: Rays) -> Float[Tensor, " m"]:
        """Extinction of places [mag]; their densities count for nothing."""
        near = nearest(
            self.rays.coordinates(self.stretch),
            places.coordinates(self.stretch),
            self.count,
        )
        forms = _forms(self.rays, near, places.lengths)
        return forms[int(self.proportional)][:, -1]

    def separation(self, places: Rays) -> Float[Tensor, " m"]:
        """Distance [pc] from each place to the sight line of its nearest star."""
        near = nearest(
            self.rays.coordinates(self.stretch), places.coordinates(self.stretch), 1
        )
        chord = (places.directions - self.rays.directions[near[:, 0]]).norm(dim=1)
        return places.lengths * chord


def tune_neighbours(rays: Rays, generator: torch.Generator) -> TunedNeighbours:
    """Choose stretch, count and form by leave-one-out errors on at most 3,000 stars."""
    chosen = torch.randperm(len(rays), generator=generator)[:_TRIED]
    observed, lengths = (rays.density * rays.lengths)[chosen], rays.lengths[chosen]
    found = []
    for stretch in _STRETCHES:
        points = rays.coordinates(stretch)
        most = min(max(_COUNTS), len(rays) - 1)
        near = nearest(points, points[chosen], most + 1)
        near = without_self(near, chosen)
        for form, guesses in enumerate(_forms(rays, near, lengths)):
            errors = (guesses - observed[:, None]).square().mean(dim=0).sqrt()
            found += [
                (float(errors[k - 1]), stretch, k, bool(form))
                for k in _COUNTS
                if k <= most
            ]
    rmse, stretch, count, proportional = min(found)
    return TunedNeighbours(
        rays=rays, stretch=stretch, count=count, proportional=proportional, rmse=rmse
    )


def _forms(
    rays: Rays, near: Tensor, lengths: Tensor
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k"]]:
    """Both forms of the mean, of the first 1 … k neighbours."""
    counts = torch.arange(1, near.shape[1] + 1, dtype=lengths.dtype)
    extinctions = (rays.density * rays.lengths)[near].cumsum(1) / counts
    densities = rays.density[near].cumsum(1) / counts
    return extinctions, densities * lengths[:, None]
