"""What a map can show: a run, an exported cube, maps of the sky."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.bands import Conversion, wanted_conversion
from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns, LineOfSight, SkyMaps, usual_ends
from pipelines.figures.rays import informed_rays, maps_at, ray_of
from pipelines.figures.style import band_of
from pipelines.formats.fits import read_fits
from pipelines.formats.hdus import open_checked
from pipelines.formats.healpix import SHELLS, read_healpix
from pipelines.formats.zarr import (
    holds_integrated,
    is_zarr,
    read_columns,
    read_integrated,
    read_zarr,
)
from pipelines.products.provenance import convert, provenance
from pipelines.run.folder import Run, read_run
from pipelines.saving.workspace import unfinished

Directions = Sequence[tuple[float, float]]


class MissingError(InputError):
    """A file that lacks what a figure is made of."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A map by its path; methods raise `MissingError` where it lacks what they need.

    Parameters
    ----------
    run
        A run suffices for everything; products that it has not exported are computed.
    density
        An exported cube.
    maps
        Extinctions that were integrated beforehand: exported maps of the sky, or those
        along the rays of a cube's store.
    change
        To the band of all that is drawn; ``density`` and ``maps`` are converted.
    """

    path: Path
    run: Run | None = None
    density: Cube | None = None
    maps: SkyMaps | None = None
    change: Conversion | None = None

    def in_band(
        self, band: str | None, declared: str | None = None, **by: Any
    ) -> Source:
        """The same map in another band (`pipelines.bands.wanted_conversion`)."""
        meta = {"extinction_band": self.band}
        change = wanted_conversion(meta, band, declared, **by)
        density = None if self.density is None else convert(self.density, change)
        maps = None if self.maps is None else convert(self.maps, change)
        return replace(self, change=change, density=density, maps=maps)

    def beside(self, first: Source, factor: float | None) -> tuple[Source, float]:
        """This map for a comparison, and what its values are multiplied by.

        ``factor`` leads to the first one's own band; if ``None``, this map is converted
        where both bands are known, and is otherwise taken to be of one band with it.
        """
        if factor is None and self.band and first.band:
            return self.in_band(first.band), 1.0
        return self, first.factor * (1.0 if factor is None else factor)

    @property
    def factor(self) -> float:
        """From the band of the run to that of what is drawn."""
        return 1.0 if self.change is None else self.change.factor

    @cached_property
    def _stored(self) -> Cube | None:
        """The density: exported, in the run folder, or computed."""
        if self.run is None:
            return self.density
        return convert(self._in_folder or self._computed[0], self.change)

    @cached_property
    def _in_folder(self) -> Cube | None:
        """The density that the run's folder holds, unless in another band."""
        stored = self.path / "map.zarr"
        cube = read_zarr(stored) if stored.exists() else None
        return cube if cube is not None and self._is_own(cube.meta) else None

    def _is_own(self, meta: dict[str, Any]) -> bool:
        """Whether a product in the run's folder is in the run's own band."""
        assert self.run is not None
        return band_of(meta) in ("", band_of(provenance(self.run)))

    @cached_property
    def _computed(self) -> tuple[Cube, dict[str, Columns]]:
        """The run's cube and the columns that figures show, from one pass."""
        from pipelines.products import map_and_columns

        assert self.run is not None
        y = self.run.plan.grid.axis(1).numpy()
        return map_and_columns(self.run, usual_ends(y))

    @cached_property
    def _exported_columns(self) -> dict[str, Columns]:
        """Those in the store of the map: this one, or that in the run's folder."""
        if self.run is not None and self._in_folder is None:
            return {}
        store = self.path if self.run is None else self.path / "map.zarr"
        return read_columns(store) if is_zarr(store) else {}

    @property
    def band(self) -> str:
        """Name of the extinction, empty if it is not known."""
        if self.change is not None:
            return self.change.target
        known = self.density or self.maps
        if known is not None:
            return band_of(known.meta)
        return "" if self.run is None else band_of(provenance(self.run))

    @property
    def verdict(self) -> str:
        """Whether the map can be used; empty if it is not stated."""
        if self.run is not None:
            return str(self.run.verdict)
        known = self.density or self.maps
        return "" if known is None else str(known.meta.get("verdict", ""))

    @property
    def unit(self) -> str:
        """Of its densities."""
        return "mag pc-1" if self.density is None else self.density.unit

    def cube(self) -> Cube:
        """The density."""
        if self._stored is None:
            raise self._lacks("density cube", "a cube or a run (map.zarr or map.fits)")
        return self._stored

    def columns(
        self, along: str, between: tuple[float, float] | None = None, *, level: int = 0
    ) -> Columns | None:
        """The integral through a level's box with its std; ``None`` without samples."""
        found = self._columns(along, between, level)
        return None if found is None else convert(found, self.change)

    def _columns(
        self, along: str, between: tuple[float, float] | None, level: int
    ) -> Columns | None:
        from pipelines.products import columns

        if level:
            run = self.run
            return None if run is None else columns(run, along, between, level=level)
        centres = getattr(self.cube(), along)
        stored = self._exported_columns.get(along)
        ends = between or (float(centres[0]), float(centres[-1]))
        if stored is not None and (stored.low, stored.high) == ends:
            return stored
        # The published engine would pay a solve for every column.
        if self.run is None or not self.run.plan.is_full_batch:
            return None
        usual = usual_ends(self.cube().y)
        if along in usual and usual[along] == between:
            return self._computed[1][along]
        return columns(self.run, along, between)

    def skymaps(self, distances: Sequence[float] | None, nside: int | None) -> SkyMaps:
        """Cumulative extinction over the sky."""
        if self.run is not None:
            from pipelines.products import sky_maps

            stored = self.path / "map.healpix.fits"
            maps = None
            if stored.exists() and nside is None and distances is None:
                maps = read_healpix(stored)
            if maps is None or not self._is_own(maps.meta):
                wanted = None if distances is None else np.array(distances)
                maps = sky_maps(self.run, distances=wanted, nside=nside)
            return convert(maps, self.change)
        if self.maps is None:
            where = "a run, map.healpix.fits or a newer map.zarr"
            raise self._lacks("integrated extinctions", where)
        if self.density is None:
            return self.maps
        if nside not in (None, own := int(np.sqrt(self.maps.mean.shape[1] / 12))):
            raise InputError(f"{self.path} has sky maps of nside {own} only")
        return maps_at(self.maps, distances)

    def lines(self, directions: Directions | None) -> list[LineOfSight]:
        """Extinction along lines of sight."""
        if self.run is not None:
            from pipelines.products import lines_of_sight

            found = lines_of_sight(self.run, directions)
            return [line.scaled(self.factor) for line in found]
        if self.density is None or self.maps is None:
            raise self._lacks("extinctions along rays", "a run or a newer map.zarr")
        maps = self.maps
        return [ray_of(maps, *one) for one in directions or informed_rays(maps)]

    def _lacks(self, what: str, where: str) -> MissingError:
        return MissingError(f"{self.path} has no {what}: name {where}")


def open_source(path: Path) -> Source:
    """Open a run, or an export of any format.

    Raises
    ------
    InputError
        If it is none, or is incomplete or altered.
    """
    begun = unfinished(path) is not None and not path.exists()
    if not begun and not path.exists():
        raise InputError(
            f"{path} does not exist: name a run, or what `dustmap export` wrote of it"
        )
    if begun or (path.is_dir() and not is_zarr(path)):
        return Source(path=path, run=read_run(path))
    if path.is_dir():
        cube = read_zarr(path)
        rays = read_integrated(path) if holds_integrated(path) else None
        maps = None if rays is None else SkyMaps.of(rays, cube.meta)
        return Source(path=path, density=cube, maps=maps)
    with path.open("rb") as stream:
        if stream.read(4) == b"PAR1" or path.suffix in (".csv", ".ecsv", ".vot"):
            raise InputError(
                f"{path} is a table of stars, not a map: fit a map to it with `dustmap "
                "fit` (after `dustmap ingest`), and plot that"
            )
    with open_checked(path) as hdus:
        is_table = any(hdu.header.get("PIXTYPE") == "HEALPIX" for hdu in hdus)
        is_shells = any(hdu.name == SHELLS for hdu in hdus)
    if is_shells:
        raise InputError(
            f"{path} holds densities in HEALPix shells, which are not drawn: name the "
            "run, or its map.zarr, map.fits or map.healpix.fits"
        )
    if is_table:
        return Source(path=path, maps=read_healpix(path))
    return Source(path=path, density=read_fits(path))
