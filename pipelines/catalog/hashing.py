"""64-bit hashes of identifiers, equal in every process and run."""

from __future__ import annotations

import numpy as np

from dustmap.splitmix import STEP, mixed


def hash_identifiers(identifiers: np.ndarray) -> np.ndarray:
    """Return evenly spread 64-bit hashes, shape ``(n,)``: unique ones for integers.

    Two different strings share one with a probability of n² / 2⁶⁵: 3e-6 for ten
    million.
    """
    if identifiers.dtype == object:
        identifiers = hash_strings(identifiers)
    return mixed(identifiers.astype(np.int64, copy=False).view(np.uint64))


def hash_strings(strings: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each string, shape ``(n,)``."""
    encoded = np.array([text.encode() for text in strings], dtype=np.bytes_)
    words = -(-max(encoded.dtype.itemsize, 1) // 8)
    padded = encoded.astype(f"S{8 * words}").view("<u8").reshape(len(strings), words)
    hashed = np.full(len(strings), STEP, dtype=np.uint64)
    for word in padded.T:
        # Padding is all zeros: skipping it makes the hash independent of the width.
        hashed = np.where(word == 0, hashed, mixed(hashed ^ mixed(word)))
    return hashed.view(np.int64)
