"""Random numbers by seed and purpose: streams, and noise that belongs to places.

No two streams share a draw: seed, number and purpose have bits of their own. With their
sum as the key, pair 1 of seed 0 would be pair 0 of seed 1.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

if TYPE_CHECKING:
    import torch

Keys = Int[np.ndarray, "n k"]
Draws = Float[np.ndarray, "s n"]
# The increment of SplitMix64 (Steele, Lea & Flood 2014, OOPSLA '14).
_STEP = 0x9E3779B97F4A7C15


# Purposes of a seed's random numbers. FIT is for numbers that a fit draws in sequence,
# as for split and sketches; DATA, LATENT, SHARED perturb the data, ε and shared errors.
Purpose = IntEnum(
    "Purpose",
    "FIT DATA LATENT SHARED PROBES VARIANCE UNRESOLVED SAMPLES NODES SURVEYS "
    "VALIDATION CONDITIONING BASELINE WATCHED REGRESSION BEYOND SPECTRUM",
)


def stream(seed: int, purpose: Purpose, number: int = 0) -> np.random.Generator:
    """Return the stream of a seed (64 bits), a purpose and a number.

    Philox (Salmon et al. 2011, SC '11) has the seed and the number as its key, and the
    purpose in the highest word of its counter.
    """
    key = np.array([seed, number], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=int(purpose) << 192))


def torch_stream(seed: int, purpose: Purpose, number: int = 0) -> torch.Generator:
    """Return a generator of torch (CPU) whose whole state is drawn from a `stream`.

    Its own ``manual_seed`` keeps 32 bits of a seed.
    """
    import torch

    generator = torch.Generator()
    state = generator.get_state()
    words = stream(seed, purpose, number).integers(2**32, size=624)
    # The words of the Mersenne Twister, of 32 bits each, take 8 bytes from 24 on.
    state[24 : 24 + 8 * 624] = torch.from_numpy(words).view(torch.uint8)
    return generator.set_state(state)


def keyed_uniforms(keys: Keys, count: int, seed: int, purpose: Purpose) -> Draws:
    """Draw ``count`` numbers, uniform between 0 and 1, for each key, reproducibly.

    A key is a row of integers; equal keys get equal numbers, others independent ones,
    whatever else is drawn. Each key starts its own stream of SplitMix64.
    """
    first = _mixed(np.array([seed], dtype=np.uint64)) ^ np.uint64(purpose)
    state = np.repeat(_mixed(first), len(keys))
    for column in keys.astype(np.int64).T:
        state = _mixed(state ^ column.view(np.uint64))
    draws = np.empty((count, len(keys)))
    for row in range(count):
        bits = _mixed(state + np.uint64(row * _STEP % 2**64))
        draws[row] = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return draws


def keyed_normals(keys: Keys, count: int, seed: int, purpose: Purpose) -> Draws:
    """Draw standard normals, the deviates of `keyed_uniforms`."""
    return ndtri(keyed_uniforms(keys, count, seed, purpose))


def _mixed(words: np.ndarray) -> np.ndarray:
    """Add the increment and mix: a bijection of uint64; each bit affects all bits."""
    words = words + np.uint64(_STEP)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words
