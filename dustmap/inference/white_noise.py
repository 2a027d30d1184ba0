"""The white noise that posterior samples began with, drawn again from its seed.

A sample ``ε_s = ξ_s + …`` is white noise that the data have moved: where they say
nothing it still is that noise, which a seed holds in a few bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.distributed.slabs import Slabs, SlabSpace
from dustmap.linalg.space import WHOLE, VectorSpace

Sampler = Literal["pairs", "independent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class White:
    """Where the white noise of the samples comes from: the same whenever asked."""

    seed: int

    def pair(
        self, number: int, n: int, p: int, space: VectorSpace = WHOLE
    ) -> tuple[Tensor, Tensor]:
        """η and ξ of one pair of samples (float64)."""
        generator = torch.Generator().manual_seed(self.seed + number)
        eta = torch.randn(n, generator=generator, dtype=torch.float64)
        return eta, space.normal(1, p, generator)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhiteNoise:
    """What is to be known of a fit to draw the white noise of its samples again.

    Parameters
    ----------
    seed
        Of :class:`White`.
    sampler
        ``pairs``: samples 2k and 2k + 1 have ``±ξ_k``. ``independent``: sample k has
        ``ξ_k``.
    observations
        N, whose noise is drawn before ξ; 0 if none is.
    slabs
        Whether noise was drawn plane by plane, as ranks that share out a grid do.
    """

    seed: int
    sampler: Sampler
    observations: int
    slabs: bool = False

    def draw(self, number: int, shape: tuple[int, ...]) -> Float[Tensor, " p"]:
        """ξ of sample ``number`` on a torus of this shape (float64).

        Cost: the draws of N + P numbers.
        """
        size = math.prod(shape)
        space = _slab_space(shape) if self.slabs else WHOLE
        white = White(seed=self.seed)
        if self.sampler == "independent":
            return white.pair(number, self.observations, size, space)[1]
        sign = 1.0 if number % 2 == 0 else -1.0
        return sign * white.pair(number // 2, self.observations, size, space)[1]


def _slab_space(shape: tuple[int, ...]) -> VectorSpace:
    """All planes in one process: their noise is keyed by the plane."""
    return SlabSpace(Slabs(shape=shape, cuts=(0, shape[0]), group=Group()))
