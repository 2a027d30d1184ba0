"""Stars on disk by parts of the sky, of which one at a time is in memory.

Of hundreds of millions of stars only the bins fit into memory
(`pipelines.catalog.merging`). Stars in any order are appended to the files of their
parts, each a run of HEALPix pixels with about as many stars as another.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from dustmap.memory import rows_within
from pipelines.catalog.merging import BYTES
from pipelines.catalog.schema import Stars

# Pixels of 0.9 deg: a part is a run of whole ones.
_NSIDE = 64
# Bytes of a star on disk: seven columns, and what a file system adds.
DISK = 64


class SkyParts:
    """Stars in the order of parts of the sky, and there in that of their addition.

    ``folder`` is an empty one on a disk with `DISK` bytes for a star, ``counts`` are
    the numbers of stars in every pixel, by `count`. ``surveys`` are names of the
    surveys; in the stars, numbers stand for them.
    """

    def __init__(self, folder: Path, counts: Int[np.ndarray, " p"]) -> None:
        self.surveys: list[str] = []
        self._folder = folder
        self._part = (np.cumsum(counts) - counts) // rows_within(BYTES)

    @staticmethod
    def count(stars: Stars) -> Int[np.ndarray, " p"]:
        """Return the number of stars in every pixel of 0.9 deg."""
        return np.bincount(stars.pixels(_NSIDE), minlength=12 * _NSIDE**2)

    def numbered(self, stars: Stars) -> Stars:
        """Return stars without provenance, their surveys as numbers."""
        stars = replace(stars, meta={})
        if stars.survey is None:
            return stars
        encoded = pa.array(stars.survey).dictionary_encode()
        names = encoded.dictionary.to_pylist()
        self.surveys += [name for name in names if name not in self.surveys]
        numbers = np.array([self.surveys.index(name) for name in names], np.int16)
        return replace(stars, survey=numbers[encoded.indices.to_numpy()])

    def add(self, stars: Stars) -> None:
        """Append stars to their parts."""
        part = self._part[stars.pixels(_NSIDE)]
        order = part.argsort(kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(part[order])) + 1):
            _append(self._folder / f"{part[rows[0]]:06}", stars.select(rows))

    def __iter__(self) -> Iterator[Stars]:
        for path in sorted(self._folder.iterdir()):
            yield _read(path)

    def change(self, function: Callable[[Stars], Stars]) -> None:
        """Replace the stars of every part by those that a function returns."""
        for path in sorted(self._folder.iterdir()):
            stars = function(_read(path))
            path.unlink()
            if len(stars):
                _append(path, stars)


def _append(path: Path, stars: Stars) -> None:
    with path.open("ab") as stream:
        pickle.dump(stars, stream)


def _read(path: Path) -> Stars:
    found = []
    with path.open("rb") as stream:
        while stream.peek(1):
            found.append(pickle.load(stream))
    return Stars.joined(found)
