"""Densities by cell: grids and shells, read as a whole or chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Protocol, cast

import healpy
import numpy as np
import zarr

from dustmap.nested_grids import NestedGrids
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.cubes.sky import ShellMaps
from pipelines.maps.places import Places

# Decoded chunks that are kept, of a megabyte each.
_KEPT = 256
# Places handled at once.
_ROWS = 1 << 17


class Reader(Protocol):
    """Arrays by name, read at scattered places."""

    def take(self, name: str, /, *index: np.ndarray) -> np.ndarray:
        """Return values at index arrays ``(...)`` of the first axes, others whole."""
        ...

    def chunks(self, name: str) -> tuple[int, ...]:
        """Sizes of the blocks that are read together."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemory:
    """Arrays in memory."""

    arrays: dict[str, np.ndarray]

    def take(self, name: str, /, *index: np.ndarray) -> np.ndarray:
        """Return values at index arrays."""
        return self.arrays[name][index]

    def chunks(self, name: str) -> tuple[int, ...]:
        """The whole array."""
        return self.arrays[name].shape


class ChunkReader:
    """Arrays of a zarr group; reads a chunk once, and keeps the latest chunks."""

    def __init__(self, path: Path, group: zarr.Group) -> None:
        self._path, self._group = path, group
        self._chunk = lru_cache(maxsize=_KEPT)(self._read)

    def array(self, name: str) -> zarr.Array:
        """The array itself, unread."""
        return cast(zarr.Array, self._group[name])

    def chunks(self, name: str) -> tuple[int, ...]:
        """Sizes of the chunks."""
        return self.array(name).chunks

    def take(self, name: str, /, *index: np.ndarray) -> np.ndarray:
        """Return values at index arrays, from the chunks that hold them."""
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
        """Return a chunk; axes that ``place`` does not name are whole."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCells:
    """Densities on nested grids of cell centres [pc]; the finest answers.

    Parameters
    ----------
    reader
        Arrays ``(z, y, x)``; ``prefixes`` begin their names, one for each grid.
    arrays
        Names of what the density has; ``support`` may be there beside these.
    """

    reader: Reader
    grids: NestedGrids
    arrays: tuple[str, ...]
    prefixes: tuple[str, ...]
    has_support: bool

    @property
    def box(self) -> Box:
        """Where the density is known."""
        return Box(lower=self.grids.box.lower, upper=self.grids.box.upper)

    @property
    def spacing(self) -> list[float]:
        """Cell sizes along x, y, z [pc]."""
        return list(self.grids.box.spacing)

    def at(self, names: Iterable[str], places: Places) -> dict[str, np.ndarray]:
        """Arrays by name, trilinear at places in the box, shape ``(n,)``.

        The mean is that of the fit between the centres; std and quantiles are
        interpolated linearly, which is nearer to draws of a log-normal fit than their
        logarithms: 0.15, 0.49 and 0.84 of draws lie below p16, p50 and p84, by
        logarithms 0.14, 0.47 and 0.83 (on a 94 pc grid).
        """
        found = {name: np.zeros(len(places)) for name in names}
        for rows, positions in self._blocks(places):
            for level, here, index, weight in self.grids.corners(positions):
                for corner, share in zip(index, weight, strict=True):
                    x, y, z = corner.T
                    for name, values in found.items():
                        full = self.prefixes[level] + name
                        values[rows[here]] += share * self.reader.take(full, z, y, x)
        return found

    def support(self, places: Places) -> np.ndarray:
        """Sight-line length [cells] in the cell of each place; 1 where not known."""
        found = np.ones(len(places))
        if self.has_support:
            for rows, positions in self._blocks(places):
                for level, here, index in self.grids.nearest(positions):
                    x, y, z = index.T
                    name = f"{self.prefixes[level]}support"
                    found[rows[here]] = self.reader.take(name, z, y, x)
        return found

    def _blocks(self, places: Places) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows in the same chunks of the coarsest grid, and their positions."""
        positions, grid = places.positions(), self.grids.box
        chunks = self.reader.chunks(self.prefixes[0] + self.arrays[0])[::-1]
        step = np.array(grid.spacing) * chunks
        counts = tuple(-(-n // c) + 1 for n, c in zip(grid.shape, chunks, strict=True))
        number = np.floor((positions - np.array(grid.lower)) / step).astype(np.int64)
        chunk = np.ravel_multi_index(number.T, counts, mode="clip")
        order = np.argsort(chunk, kind="stable")
        for start in range(0, len(order), _ROWS):
            rows = order[start : start + _ROWS]
            yield rows, positions[rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCells:
    """The density of shells: one value for each pixel between two distances."""

    shells: ShellMaps

    @property
    def box(self) -> Box:
        """A cube around the outermost shell."""
        return cube_around(self.shells.edges[-1])

    @property
    def spacing(self) -> list[float]:
        """Thickness of the thinnest shell [pc]."""
        return [float(np.diff(self.shells.edges).min())]

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of what the density has."""
        return tuple(self.shells.arrays)

    def at(self, names: Iterable[str], places: Places) -> dict[str, np.ndarray]:
        """Arrays by name, shape ``(n,)``; NaN outside the shells."""
        edges = self.shells.edges
        shell = np.searchsorted(edges, places.distance, side="right") - 1
        shell = np.where(places.distance == edges[-1], len(edges) - 2, shell)
        within = (shell >= 0) & (shell < len(edges) - 1)
        shell = np.clip(shell, 0, len(edges) - 2)
        pixel = healpy.ang2pix(
            self.shells.nside, places.l, places.b, nest=True, lonlat=True
        )
        found = {name: self.shells.arrays[name][shell, pixel] for name in names}
        return {name: np.where(within, part, np.nan) for name, part in found.items()}

    def support(self, places: Places) -> np.ndarray:
        """Return ones: the support is not known."""
        return np.ones(len(places))


def cube_around(radius: float) -> Box:
    """Return a box so wide that no sight line leaves it before the radius [pc]."""
    return Box(lower=(-3 * radius,) * 3, upper=(3 * radius,) * 3)
