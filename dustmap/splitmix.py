"""SplitMix64 (Steele, Lea & Flood 2014, OOPSLA '14): well mixed 64-bit words."""

from __future__ import annotations

import numpy as np

STEP = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def mixed(words: np.ndarray) -> np.ndarray:
    """Add the increment and mix: a bijection of uint64, every bit reaches every one."""
    words = words + np.uint64(STEP)
    for shift, factor in _MIX:
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words
