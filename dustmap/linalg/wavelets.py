r"""A biorthogonal wavelet transform of fields of any size, by lifting.

The 9/7 wavelets of Cohen, Daubechies & Feauveau (1992), in four lifting steps per axis
and level (Daubechies & Sweldens 1998, table 7.1), mirrored at the ends. They are nearly
orthonormal: an error of the coefficients is one of as many units of the field. Where a
field is smooth nearly all of them are small, whatever it does elsewhere.
"""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float
from torch import Tensor

_PREDICT, _UPDATE = (
    (-1.586134342059924, 0.882911075530934),
    (
        -0.052980118572961,
        0.443506852043971,
    ),
)
_SCALE = 1.149604398860241
# An axis this short is not halved again.
_SHORTEST = 8


def halvings(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes of the coarse part, from the whole field to the coarsest."""
    shapes = [tuple(shape)]
    while max(shapes[-1]) >= _SHORTEST:
        shapes.append(tuple((n + 1) // 2 if n >= _SHORTEST else n for n in shapes[-1]))
    return shapes


def bands(shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Where the coefficients of each scale and direction are, coarse to fine."""
    shapes = halvings(shape)
    found = [tuple(slice(0, n) for n in shapes[-1])]
    for coarse, fine in itertools.pairwise(reversed(shapes)):
        halves = [
            [slice(0, c), slice(c, n)] if c < n else [slice(0, n)]
            for c, n in zip(coarse, fine, strict=True)
        ]
        found += list(itertools.product(*halves))[1:]
    return found


def analyse(field: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Coefficients of a field: the coarse part first along every axis."""
    out = field.clone()
    for fine, coarse in itertools.pairwise(halvings(tuple(field.shape))):
        part = out[tuple(slice(0, n) for n in fine)]
        for axis, (c, n) in enumerate(zip(coarse, fine, strict=True)):
            if c < n:
                part.copy_(_split(part, axis))
    return out


def synthesise(coefficients: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The field of these coefficients: the inverse of :func:`analyse`."""
    out = coefficients.clone()
    shapes = halvings(tuple(coefficients.shape))
    for fine, coarse in reversed(list(itertools.pairwise(shapes))):
        part = out[tuple(slice(0, n) for n in fine)]
        for axis in reversed(range(part.ndim)):
            if coarse[axis] < fine[axis]:
                part.copy_(_join(part, axis))
    return out


def _split(x: Tensor, axis: int) -> Tensor:
    even = x.movedim(axis, 0)[0::2].clone()
    odd = x.movedim(axis, 0)[1::2].clone()
    for predict, update in zip(_PREDICT, _UPDATE, strict=True):
        _add_to_odd(odd, even, predict)
        _add_to_even(even, odd, update)
    return torch.cat([even * _SCALE, odd / _SCALE]).movedim(0, axis)


def _join(x: Tensor, axis: int) -> Tensor:
    moved = x.movedim(axis, 0)
    size = (len(moved) + 1) // 2
    even, odd = moved[:size] / _SCALE, moved[size:] * _SCALE
    for predict, update in zip(reversed(_PREDICT), reversed(_UPDATE), strict=True):
        _add_to_even(even, odd, -update)
        _add_to_odd(odd, even, -predict)
    out = torch.empty_like(moved)
    out[0::2], out[1::2] = even, odd
    return out.movedim(0, axis)


def _add_to_odd(odd: Tensor, even: Tensor, factor: float) -> None:
    """``o_i += c (e_i + e_{i+1})``, mirrored at the end."""
    odd.add_(even[: len(odd)], alpha=factor)
    odd[: len(even) - 1].add_(even[1:], alpha=factor)
    if len(even) == len(odd):
        odd[-1].add_(even[-1], alpha=factor)


def _add_to_even(even: Tensor, odd: Tensor, factor: float) -> None:
    """``e_i += c (o_{i-1} + o_i)``, mirrored at both ends."""
    even[: len(odd)].add_(odd, alpha=factor)
    even[1:].add_(odd[: len(even) - 1], alpha=factor)
    even[0].add_(odd[0], alpha=factor)
    if len(even) > len(odd):
        even[-1].add_(odd[-1], alpha=factor)
