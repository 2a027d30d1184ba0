"""Values of a chunked array at scattered places: only the chunks that hold them."""

from __future__ import annotations

from collections import OrderedDict
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr

from pipelines.base.errors import InputError


class ChunkReader:
    """Reads chunks of a group's arrays once, and keeps the latest of them.

    Parameters
    ----------
    path, group
        A zarr group in a folder, opened for reading.
    budget
        Decoded chunks that are kept [bytes].
    """

    def __init__(self, path: Path, group: zarr.Group, budget: int = 1 << 28) -> None:
        self._path, self._group = path, group
        self._budget = budget
        self._kept: OrderedDict[tuple[Any, ...], np.ndarray] = OrderedDict()
        self._arrays: dict[str, zarr.Array] = {}

    def array(self, name: str) -> zarr.Array:
        """The array itself, unread."""
        if name not in self._arrays:
            self._arrays[name] = cast(zarr.Array, self._group[name])
        return self._arrays[name]

    def take(self, name: str, index: tuple[np.ndarray, ...]) -> np.ndarray:
        """Values at an index array ``(m,)`` per axis, each within its axis."""
        array = self.array(name)
        chunks = array.chunks
        counts = [-(-size // chunk) for size, chunk in zip(array.shape, chunks)]
        parts = tuple(i // chunk for i, chunk in zip(index, chunks))
        number = np.ravel_multi_index(parts, counts)
        # Sorting short integers costs a pass or two over them.
        kind = np.uint16 if np.prod(counts) < 1 << 16 else np.int64
        order = np.argsort(number.astype(kind), kind="stable")
        present, starts = np.unique(number[order], return_index=True)
        values = np.empty(len(number), dtype=array.dtype)
        for which, rows in zip(present, np.split(order, starts[1:])):
            place = np.unravel_index(which, counts)
            inside = tuple(
                i[rows] - int(p) * chunk for i, p, chunk in zip(index, place, chunks)
            )
            values[rows] = self._chunk(name, tuple(int(p) for p in place))[inside]
        return values

    def rows(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """Whole rows of an array ``(rows, n)`` at increasing ``numbers``."""
        array = self.array(name)
        size = array.chunks[0]
        values = np.empty((len(numbers), *array.shape[1:]), dtype=array.dtype)
        present, starts = np.unique(numbers // size, return_index=True)
        ends = [*starts[1:], len(numbers)]
        for which, start, end in zip(present, starts, ends):
            slab = self._chunk(name, (int(which),))
            values[start:end] = slab[numbers[start:end] - int(which) * size]
        return values

    def _chunk(self, name: str, place: tuple[int, ...]) -> np.ndarray:
        """A chunk; axes that ``place`` does not name are whole."""
        key = (name, *place)
        if key not in self._kept:
            array = self.array(name)
            window = tuple(
                slice(p * size, (p + 1) * size) for p, size in zip(place, array.chunks)
            )
            self._require_files(name, place)
            self._kept[key] = _read(array, window)
            while len(self._kept) > 1 and self._held() > self._budget:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _require_files(self, name: str, place: tuple[int, ...]) -> None:
        # zarr takes a chunk that is not there for an empty one.
        array = self.array(name)
        counts = [-(-size // chunk) for size, chunk in zip(array.shape, array.chunks)]
        whole = product(*(range(count) for count in counts[len(place) :]))
        for rest in whole:
            key = array.metadata.encode_chunk_key((*place, *rest))
            if not (self._path / name / key).is_file():
                raise InputError(
                    f"{self._path} lacks {name}/{key}: it is not what was written. "
                    "Restore it from a copy or export it again"
                )

    def _held(self) -> int:
        return sum(chunk.nbytes for chunk in self._kept.values())


def _read(array: zarr.Array, window: tuple[slice, ...]) -> np.ndarray:
    try:
        return np.asarray(array[window])
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{array.store_path}: a chunk of {array.basename!r} cannot be read "
            f"({error}): check the map with `dustmap verify`"
        ) from error
