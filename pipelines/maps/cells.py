"""Densities by cell, read whole or chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import zarr

from dustmap.memory import row_blocks
from dustmap.nested_grids import NestedGrids
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.maps.places import Places
from pipelines.storage.atomic import AnyPath, require_same

Take = Callable[..., np.ndarray]
"""Reader of a named array at index arrays of its first axes; other axes stay whole."""


def in_memory(arrays: dict[str, np.ndarray]) -> Take:
    """Return a reader of arrays in memory."""
    return partial(_taken, arrays)


def _taken(arrays: dict[str, np.ndarray], name: str, *index: np.ndarray) -> np.ndarray:
    return arrays[name][index]


class ChunkReader:
    """Arrays of a zarr group, with a cache of the latest chunks.

    Threads may share a reader; a pickled one has an empty cache. ``marker`` is that of
    the folder as it was opened; a store at a URL has none.
    """

    def __init__(self, path: AnyPath, group: zarr.Group, marker: str | None) -> None:
        self._path, self._group, self._marker = path, group, marker
        # Decoded chunks have a megabyte each.
        self._chunk = lru_cache(maxsize=256)(self._read)

    def __reduce__(self) -> Any:
        return ChunkReader, (self._path, self._group, self._marker)

    def array(self, name: str) -> zarr.Array:
        """Return the array itself, unread."""
        return cast(zarr.Array, self._group[name])

    def take(self, name: str, *index: np.ndarray) -> np.ndarray:
        """Return values at index arrays ``(...)``."""
        array = self.array(name)
        flat = [i.reshape(-1) for i in index]
        chunks, rest = array.chunks[: len(flat)], array.shape[len(flat) :]
        counts = [-(-size // chunk) for size, chunk in zip(array.shape, chunks)]
        parts = tuple(i // chunk for i, chunk in zip(flat, chunks))
        number = np.ravel_multi_index(parts, counts)
        # Short integers are sorted in one or two passes.
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
        """Return a chunk; axes that ``place`` does not name are whole."""
        try:
            chunk = np.asarray(self.array(name).blocks[place])
        except InputError:
            raise
        except Exception as error:  # servers' clients have no common base
            self._require_same()
            raise InputError(
                f"{self._path}: a chunk of {name!r} cannot be read ({error}): check "
                "the map with `dustmap status`"
            ) from error
        self._require_same()
        return chunk

    def _require_same(self) -> None:
        if self._marker is not None:
            require_same(self._path, self._marker)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCells:
    """Densities on nested grids of cell centres [pc]; the finest grid takes precedence.

    ``take`` reads arrays ``(z, y, x)``, whose names begin with the grid's ``prefixes``;
    ``arrays`` are the names of the density's moments.
    """

    take: Take
    grids: NestedGrids
    arrays: tuple[str, ...]
    prefixes: tuple[str, ...]
    has_support: bool

    @property
    def box(self) -> Box:
        """The volume of the density."""
        return Box.of(self.grids.box)

    def at(self, names: Iterable[str], places: Places) -> dict[str, np.ndarray]:
        """Interpolate arrays trilinearly at places in the box, shape ``(n,)``.

        The interpolated mean equals the fit's. For std and quantiles, linear
        interpolation is closer to draws of a log-normal fit than logarithmic: 0.15,
        0.49 and 0.84 of draws lie below p16, p50 and p84, against 0.14, 0.47 and 0.83
        with logarithms (on a 94 pc grid).
        """
        found = {name: np.zeros(len(places)) for name in names}
        for rows, positions in self._blocks(places):
            for level, here, index, weight in self.grids.corners(positions):
                for corner, share in zip(index, weight, strict=True):
                    x, y, z = corner.T
                    for name, values in found.items():
                        full = self.prefixes[level] + name
                        values[rows[here]] += share * self.take(full, z, y, x)
        return found

    def support(self, places: Places) -> np.ndarray:
        """Return the sight-line length [cells] in each place's cell; 1 if unknown."""
        found = np.ones(len(places))
        if self.has_support:
            for rows, positions in self._blocks(places):
                for level, here, index in self.grids.nearest(positions):
                    x, y, z = index.T
                    name = f"{self.prefixes[level]}support"
                    found[rows[here]] = self.take(name, z, y, x)
        return found

    def _blocks(self, places: Places) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield rows of neighbouring places in the coarsest grid, with positions."""
        positions, grid = places.positions(), self.grids.box
        # Blocks of 64 cells along each side, as wide as a chunk.
        step = 64 * np.array(grid.spacing)
        counts = tuple(n // 64 + 2 for n in grid.shape)
        number = np.floor((positions - np.array(grid.lower)) / step).astype(np.int64)
        block = np.ravel_multi_index(number.T, counts, mode="clip")
        order = np.argsort(block, kind="stable")
        # Indices and weights of eight corners, and the values there.
        for part in row_blocks(len(order), 1024):
            rows = order[part]
            yield rows, positions[rows]
