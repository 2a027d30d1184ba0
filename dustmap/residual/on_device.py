r"""Covariances of rays and points by torch, on any device.

They are those of the compiled functions of :mod:`dustmap.residual.covariance`, where
the equations are. All pairs of many neighbourhoods are evaluated together, one shell or
scale at a time.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.residual.covariance import (
    CHORD_NODES,
    CHORDS,
    DECAY_NODES,
    DENSITY,
    FALLS,
    LARGEST_DIFFERENCE,
    LENGTH,
    LEVEL,
    LOGARITHM,
    OCTAVE,
)


def ray_covariances(
    one: Float[Tensor, "m p c"], other: Float[Tensor, "m k c"], tables: Any
) -> Float[Tensor, "m p k"]:
    """Return the covariances of the extinctions along all pairs of rays."""
    square = _squares(one, other).clamp_min(CHORDS[0] ** 2)
    own = _along if tables[5].shape[1] else _free
    return own(one, other, square, tables)


def point_covariances(
    points: Float[Tensor, "m p c"], rays: Float[Tensor, "m k c"], tables: Any
) -> Float[Tensor, "m p k"]:
    """Return the covariances of relative densities at points with extinctions."""
    (nodes, halves, levels), (starts, steps) = tables[3], tables[5]
    level = points[..., LEVEL, None].long()
    cell, distance = levels[0][level], points[..., LENGTH, None]
    square, lengths = _squares(points, rays), rays[..., None, :, LENGTH]
    foot = distance * (1 - square / 2)
    apart = distance * (square * (1 - square / 4)).clamp_min(0.0).sqrt() / cell
    reach = nodes[-2]
    i, a = _between(apart.clamp(nodes[0], reach), nodes[0], DECAY_NODES)

    def decay(along: Tensor) -> Tensor:
        j, b = _between(along.abs().clamp(nodes[0], reach), nodes[0], DECAY_NODES)
        near, far = (
            torch.lerp(halves[level, i + p, j], halves[level, i + p, j + 1], b)
            for p in (0, 1)
        )
        # From zero to the least argument it is linear.
        value = torch.lerp(near, far, a) * (along.abs() / nodes[0]).clamp_max(1.0)
        return torch.where(along > 0, value, -value)

    total, before = torch.zeros_like(square), decay(-foot / cell)
    for b, end in enumerate(starts + steps):
        after = decay((torch.minimum(end, lengths) - foot) / cell)
        total += rays[..., None, :, FALLS + b] * (after - before)
        before = after
    return cell * total.masked_fill(apart > reach, 0.0)


def _squares(one: Tensor, other: Tensor) -> Tensor:
    """Return squared chords, of differences: products of vectors lose digits."""
    apart = (one[..., :, None, axis] - other[..., None, :, axis] for axis in range(3))
    return sum((part**2 for part in apart), torch.zeros(()))


def _along(one: Tensor, other: Tensor, square: Tensor, tables: Any) -> Tensor:
    by_chord, (starts, steps) = tables[4], tables[5]
    i, after = _between(square, square.new_tensor(CHORDS[0] ** 2), CHORD_NODES)
    following, total = i + 1, torch.zeros_like(square)
    ends = [
        torch.minimum((rays[..., LENGTH, None] - starts).clamp_min(0.0), steps)
        for rays in (one, other)
    ]
    for b in range(len(steps)):
        shell = by_chord[:, b].double()
        value = torch.lerp(shell[i], shell[following], after)
        value *= one[..., :, None, FALLS + b]
        value *= other[..., None, :, FALLS + b]
        within = torch.minimum(ends[0][..., :, None, b], ends[1][..., None, :, b])
        total.addcmul_(value, within)
    return total


def _free(one: Tensor, other: Tensor, square: Tensor, tables: Any) -> Tensor:
    scales, weights, (ratio, axes, logarithms) = tables[:3]

    def position(logarithm: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        x = (logarithm - axes[0, axis]) / axes[1, axis]
        x = x.clamp(0.0, ratio.shape[axis] - 1 - 1e-9)
        return x.long(), x - x.long()

    lengths = one[..., :, None, LENGTH], other[..., None, :, LENGTH]
    pair = one[..., :, None, LOGARITHM], other[..., None, :, LOGARITHM]
    shorter, logarithm = torch.minimum(*lengths), torch.minimum(*pair)
    apart, total = (lengths[0] - lengths[1]).abs(), torch.zeros_like(square)
    i, a = position(square.log() / 2, 0)
    for j, scale in enumerate(scales):
        u, difference = shorter / scale, apart / scale
        m, b = position(logarithm - logarithms[j], 1)
        k, c = position(difference.clamp_max(LARGEST_DIFFERENCE).log1p(), 2)
        value = torch.zeros_like(square)
        for p, q in product((0, 1), repeat=2):
            first, second = (ratio[i + p, m + q, k + r] for r in (0, 1))
            part = (a if p else 1 - a) * (b if q else 1 - b)
            value += part * torch.lerp(first, second, c)
        # I(0, u, u + difference), by a series where terms would cancel.
        longer = u + difference
        falls = one[..., :, None, FALLS + j] + other[..., None, :, FALLS + j]
        series = u * longer - (longer**3 - difference**3 + u**3) / 6
        parallel = 2 * u + falls - torch.expm1(-difference)
        parallel = torch.where(longer < 1e-3, series, parallel)
        total += weights[j] * scale**2 * value * parallel
    return one[..., :, None, DENSITY] * other[..., None, :, DENSITY] * total


def _between(x: Tensor, start: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return index and fraction of numbers from ``start`` on among even bits."""
    bits = x.view(torch.int64) - start.view(torch.int64)
    place = bits.double() * (count / OCTAVE)
    return place.long(), place - place.long()
