"""The density between the cell centres of a map, and what stars see of its cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from pipelines.base.geometry import Box
from pipelines.query.chunks import ChunkReader
from pipelines.query.places import Places

# Places handled at once.
_ROWS = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class DensityGrid:
    """A cube of a map store: ``axes`` are the cell centres ``x, y, z`` [pc].

    ``prefix`` begins the names of its arrays; ``finer`` cubes lie inside it, and the
    finest answers.
    """

    reader: ChunkReader
    axes: tuple[np.ndarray, ...]
    arrays: tuple[str, ...]
    prefix: str = ""
    finer: tuple[DensityGrid, ...] = ()

    @property
    def box(self) -> Box:
        """Where the density is known."""
        lower, upper = zip(*((float(axis[0]), float(axis[-1])) for axis in self.axes))
        return Box(lower=lower, upper=upper)

    @property
    def spacing(self) -> list[float]:
        """Cell sizes along x, y, z [pc]."""
        return [float(axis[1] - axis[0]) for axis in self.axes]

    def at(self, names: Iterable[str], places: Places) -> dict[str, np.ndarray]:
        """Arrays by name, trilinear at places in the box, shape ``(n,)``.

        The mean is what the fit itself has between the centres; std and quantiles are
        those of the centres, interpolated. Not their logarithms: draws from a fit have
        0.49 below the interpolated median and 0.15 and 0.84 below p16 and p84; by
        logarithms 0.47, 0.14 and 0.83 (a log-normal fit on a 94 pc grid).
        """
        found = {name: np.zeros(len(places)) for name in names}
        last = np.array([len(axis) - 2 for axis in self.axes])
        for rows, index in self._blocks(places):
            base = np.clip(np.floor(index).astype(np.int64), 0, last)
            share = index - base
            for corner in product((0, 1), repeat=3):
                weight = np.where(corner, share, 1.0 - share).prod(axis=1)
                x, y, z = (base + corner).T
                for name, values in found.items():
                    corner_values = self.reader.take(self.prefix + name, z, y, x)
                    values[rows] += weight * corner_values
        for grid in self.finer:
            rows = np.flatnonzero(grid.box.contains(places.positions()))
            for name, values in grid.at(found, places.select(rows)).items():
                found[name][rows] = values
        return found

    def support(self, places: Places) -> np.ndarray:
        """Sight-line length [cells] in the cell of each place in the box."""
        found = np.zeros(len(places))
        for rows, index in self._blocks(places):
            x, y, z = np.rint(index).astype(np.int64).T
            found[rows] = self.reader.take(f"{self.prefix}support", z, y, x)
        for grid in self.finer:
            rows = np.flatnonzero(grid.box.contains(places.positions()))
            found[rows] = grid.support(places.select(rows))
        return found

    def _blocks(self, places: Places) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows that are near each other, and their places in units of the spacing."""
        last = np.array([len(axis) - 1 for axis in self.axes])
        lower, upper = np.array(self.box.lower), np.array(self.box.upper)
        index = (places.positions() - lower) / ((upper - lower) / last)
        index = np.clip(index, 0.0, last)
        chunks = self.reader.array(self.prefix + self.arrays[0]).chunks[::-1]
        counts = tuple(int(n) // c + 1 for n, c in zip(last, chunks))
        cell = np.ravel_multi_index((index // chunks).astype(np.int64).T, counts)
        order = np.argsort(cell, kind="stable")
        for start in range(0, len(order), _ROWS):
            rows = order[start : start + _ROWS]
            yield rows, index[rows]
