"""A map store opened for questions: axes and attributes now, the rest as needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import healpy
import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.formats.zarr import open_cube
from pipelines.query.chunks import ChunkReader
from pipelines.storage.atomic import MARKER


@dataclass(frozen=True, slots=True, kw_only=True)
class Sky:
    """The grid of the integrated extinction: ``nside``, ``distance`` [pc] ``(n,)``."""

    nside: int
    distance: np.ndarray
    arrays: tuple[str, ...]

    @property
    def limit(self) -> float:
        """How far its curves may be continued: one more step [pc]."""
        return float(2 * self.distance[-1] - np.append(0.0, self.distance)[-2])


@dataclass(frozen=True, slots=True, kw_only=True)
class MapStore:
    """A map of ``dustmap export --zarr``; nothing large is read before it is asked.

    ``axes`` are the coordinates of the cell centres ``x, y, z`` [pc], ``arrays`` the
    names of the density's arrays, ``sky`` the grid of the integrated extinction, None
    of a map that was exported without it.
    """

    path: Path
    reader: ChunkReader
    axes: tuple[np.ndarray, np.ndarray, np.ndarray]
    arrays: tuple[str, ...]
    sky: Sky | None
    attributes: dict[str, Any]

    @property
    def box(self) -> Box:
        """Where the density is known."""
        return Box(
            lower=tuple(float(axis[0]) for axis in self.axes),
            upper=tuple(float(axis[-1]) for axis in self.axes),
        )

    def require_sky(self) -> Sky:
        """The integrated products.

        Raises
        ------
        InputError
            If the map has none.
        """
        if self.sky is None:
            raise InputError(
                f"{self.path} holds the density only, not the integrated extinction: "
                "write it again with `dustmap export RUN --zarr`, or ask the run folder"
            )
        return self.sky


def open_store(path: Path) -> MapStore:
    """Open a map store without reading its arrays or hashes.

    Raises
    ------
    InputError
        If it is none of this program's, or of another version.
    """
    if not (path / MARKER).is_file():
        raise InputError(
            f"{path} is incomplete: it has no {MARKER}, so its writer did not finish. "
            "Export it again"
        )
    group, attributes = open_cube(path)
    reader = ChunkReader(path, group)
    try:
        axes = tuple(np.asarray(reader.array(axis)[...]) for axis in "xyz")
        return MapStore(
            path=path,
            reader=reader,
            axes=cast(Any, axes),
            arrays=tuple(cast(list[str], attributes["arrays"])),
            sky=_sky_of(reader, attributes),
            attributes=attributes,
        )
    except KeyError as error:
        raise InputError(f"{path} is no map of this program: {error}") from error


def _sky_of(reader: ChunkReader, attributes: dict[str, Any]) -> Sky | None:
    described = cast(dict[str, Any] | None, attributes.get("integrated"))
    if described is None:
        return None
    nside = int(described["nside"])
    order, frame = described["ordering"], described["frame"]
    if (order, frame) != ("NESTED", "galactic") or not healpy.isnsideok(nside, True):
        raise InputError(
            f"integrated extinction in {frame} {order} of nside {nside}: expected "
            "galactic, NESTED and a power of two"
        )
    distance = np.asarray(reader.array("distance")[...], dtype=np.float64)
    arrays = tuple(
        str(name).removeprefix("extinction_") for name in described["arrays"]
    )
    return Sky(nside=nside, distance=distance, arrays=arrays)
