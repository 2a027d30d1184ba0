"""Whether white noise drawn here is that of where a file was written."""

from __future__ import annotations

import numpy as np
import torch

from dustmap.inference.white_noise import WhiteNoise

_PLACES = 16
# Of another version of a generator's transform in double precision.
_ROUNDING = 1e-6


def probe(noise: WhiteNoise, shape: tuple[int, ...]) -> list[float]:
    """A few numbers of the first sample's white noise, from its first to its last."""
    return _picked(noise.draw(0, shape))


def is_same(white: torch.Tensor, expected: list[float]) -> bool:
    """Whether the first sample's white noise has the numbers of a probe."""
    return bool(np.allclose(_picked(white), expected, rtol=0, atol=_ROUNDING))


def _picked(white: torch.Tensor) -> list[float]:
    places = np.linspace(0, len(white) - 1, _PLACES).astype(np.int64)
    return [float(white[int(place)]) for place in places]
