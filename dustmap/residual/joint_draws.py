r"""Joint draws of the residual at many places, one place after another.

In a random order every place is kriged from its nearest stars, with their residuals
from one posterior sample, and from the nearest places before it, with their drawn
values :math:`f` (Vecchia 1988, JRSS B 50, 297):

.. math:: f_m = B_m (r, f_{\text{before}}) + \sqrt{v_m}\, z_m .

So neighbouring places share what no star tells of either.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.residual.compiled_kriging import krige_rays
from dustmap.residual.corrections import corrected, spread
from dustmap.residual.earlier_rows import nearest_earlier
from dustmap.residual.field import ResidualField
from dustmap.residual.neighbours import nearest
from dustmap.residual.rays import Rays
from dustmap.residual.vecchia import walk

# Neighbours of a place among the stars, and among the places before it.
_STARS, _PLACES = 40, 24
# Noise of a drawn place [mag²]: at the observer its extinction does not vary.
_EXACT = 1e-12
# Seed of the order, which draws hardly depend on.
_ORDER = 0


def draw_extinctions(
    field: ResidualField,
    ends: Float[Tensor, "m 3"],
    extinctions: Float[Tensor, "s m"],
    white: Float[Tensor, "s m"],
) -> Float[Tensor, "s m"]:
    """Every sample's extinctions to places [pc] with a residual of their own.

    ``white`` are independent standard normals.
    """
    places = field.places(ends, extinctions.mean(dim=0))
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(_ORDER))
    residual = torch.empty(white.shape, dtype=torch.float64)
    residual[:, order] = _drawn(field, places[order], white[:, order])
    scale = field.scale_at(places.lengths)
    return corrected(extinctions, residual, scale, drawn=True)


def _drawn(field: ResidualField, places: Rays, white: Tensor) -> Tensor:
    """The residuals of places in this order, shape ``(s, m)``."""
    stars, asked = (x.coordinates(field.stretch) for x in (field.rays, places))
    near, first = nearest(stars, asked, _STARS), len(stars)
    # The first have all before them for neighbours.
    blocks = [
        torch.cat([near[m : m + 1], first + torch.arange(m)[None]], dim=1)
        for m in range(min(_PLACES, len(places)))
    ]
    if len(places) > _PLACES:
        before = first + nearest_earlier(asked, _PLACES)
        blocks.append(torch.cat([near[_PLACES:], before], dim=1))
    given = spread(field.residuals, field.scale_at(field.rays.lengths))
    values = torch.cat([given, torch.zeros_like(white)], dim=1).numpy()
    known = field.noise + field.nugget
    noise = torch.cat([known, known.new_full((len(places),), _EXACT)])
    rays = field.rays.followed_by(places)
    for neighbours in blocks:
        rows = slice(first, first + len(neighbours))
        found = krige_rays(
            field.form, field.weights, rays, noise, rays[rows], neighbours
        )
        scale = field.scale_at(rays.lengths[rows])
        std = (scale * found.variance).sqrt()
        own = slice(first - len(stars), first - len(stars) + len(neighbours))
        innovations = (std * white[:, own]).numpy()
        walk(values, first, neighbours.numpy(), found.weights.numpy(), innovations)
        first += len(neighbours)
    return torch.from_numpy(values[:, len(stars) :])
