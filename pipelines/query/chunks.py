"""Values of a chunked array at scattered places: only the chunks that hold them."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import zarr

from pipelines.base.errors import InputError

# Decoded chunks that are kept, of a megabyte each.
_KEPT = 256


class ChunkReader:
    """Reads chunks of the arrays of a zarr group once, and keeps the latest of them."""

    def __init__(self, path: Path, group: zarr.Group) -> None:
        self._path, self._group = path, group
        self._chunk = lru_cache(maxsize=_KEPT)(self._read)

    def array(self, name: str) -> zarr.Array:
        """The array itself, unread."""
        return cast(zarr.Array, self._group[name])

    def take(self, name: str, *index: np.ndarray) -> np.ndarray:
        """Values at an index array ``(...)`` for each of the first axes, within it.

        Axes without indices are whole, and the last of the result.
        """
        array = self.array(name)
        flat = [i.reshape(-1) for i in index]
        chunks, rest = array.chunks[: len(flat)], array.shape[len(flat) :]
        counts = [-(-size // chunk) for size, chunk in zip(array.shape, chunks)]
        parts = tuple(i // chunk for i, chunk in zip(flat, chunks))
        number = np.ravel_multi_index(parts, counts)
        # Sorting short integers costs a pass or two over them.
        kind = np.uint16 if np.prod(counts) < 1 << 16 else np.int64
        order = np.argsort(number.astype(kind), kind="stable")
        present, starts = np.unique(number[order], return_index=True)
        values = np.empty((len(number), *rest), dtype=array.dtype)
        for which, rows in zip(present, np.split(order, starts[1:])):
            place = tuple(int(p) for p in np.unravel_index(which, counts))
            steps = zip(flat, place, chunks)
            inside = tuple(i[rows] - p * chunk for i, p, chunk in steps)
            values[rows] = self._chunk(name, place)[inside]
        return values.reshape(*index[0].shape, *rest)

    def _read(self, name: str, place: tuple[int, ...]) -> np.ndarray:
        """A chunk; axes that ``place`` does not name are whole."""
        array = self.array(name)
        counts = [-(-size // chunk) for size, chunk in zip(array.shape, array.chunks)]
        # zarr takes a chunk that is not there for an empty one.
        for rest in product(*(range(count) for count in counts[len(place) :])):
            key = array.metadata.encode_chunk_key((*place, *rest))
            if not (self._path / name / key).is_file():
                raise InputError(
                    f"{self._path} lacks {name}/{key}: restore it from a copy or "
                    "export it again"
                )
        sizes = zip(place, array.chunks)
        window = tuple(slice(p * size, (p + 1) * size) for p, size in sizes)
        try:
            return np.asarray(array[window])
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{self._path}: a chunk of {name!r} cannot be read ({error}): check "
                "the map with `dustmap verify`"
            ) from error
