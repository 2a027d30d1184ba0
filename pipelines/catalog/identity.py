"""Which identifiers have been seen, in eight bytes each."""

from __future__ import annotations

import numpy as np

from dustmap.splitmix import STEP, mixed


class SeenIdentifiers:
    """A growing set of identifiers: integers as they are, strings by a 64-bit hash.

    Sorted runs of doubling length keep both memory (8 bytes per identifier) and time
    (n log² n) bounded. Two different strings share a hash with a probability of
    n² / 2⁶⁵: 3e-6 for ten million.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def first_seen(self, identifiers: np.ndarray) -> np.ndarray:
        """Return which of ``(n,)`` identifiers are new, and remember them all.

        Of equal ones among the ``n`` the first is new.
        """
        keys = _keys(identifiers)
        unique, first = np.unique(keys, return_index=True)
        known = np.zeros(len(unique), dtype=bool)
        for run in self._runs:
            place = np.searchsorted(run, unique)
            place[place == len(run)] = 0
            known |= run[place] == unique
        new = np.zeros(len(keys), dtype=bool)
        new[first[~known]] = True
        self._remember(unique[~known])
        return new

    def _remember(self, run: np.ndarray) -> None:
        while self._runs and len(self._runs[-1]) <= len(run):
            # A stable sort merges two sorted halves in linear time.
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        if len(run):
            self._runs.append(run)


def hash_identifiers(identifiers: np.ndarray) -> np.ndarray:
    """Return evenly spread 64-bit hashes, shape ``(n,)``: unique ones for integers."""
    return mixed(_keys(identifiers).view(np.uint64))


def _keys(identifiers: np.ndarray) -> np.ndarray:
    keys = hash_strings(identifiers) if identifiers.dtype == object else identifiers
    return keys.astype(np.int64, copy=False)


def hash_strings(strings: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each string, shape ``(n,)``, equal in every run."""
    encoded = np.array([text.encode() for text in strings], dtype=np.bytes_)
    words = -(-max(encoded.dtype.itemsize, 1) // 8)
    padded = encoded.astype(f"S{8 * words}").view("<u8").reshape(len(strings), words)
    hashed = np.full(len(strings), STEP, dtype=np.uint64)
    for word in padded.T:
        # Padding is all zeros: skipping it makes the hash independent of the width.
        hashed = np.where(word == 0, hashed, mixed(hashed ^ mixed(word)))
    return hashed.view(np.int64)
