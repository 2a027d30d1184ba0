"""What a map can show: a run, an exported cube, maps of the sky."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from pipelines.base.errors import InputError
from pipelines.figures.labels import band_of
from pipelines.figures.stored_rays import Rays, informed_rays, ray_of
from pipelines.formats.fits import read_fits
from pipelines.formats.hdus import open_checked
from pipelines.formats.healpix import SHELLS, read_healpix
from pipelines.formats.zarr import holds_integrated, is_zarr, read_integrated, read_zarr
from pipelines.maps.columns import Columns
from pipelines.maps.cube import Cube, LineOfSight, SkyMaps
from pipelines.maps.integrated import Integrated
from pipelines.run.folder import Run, read_run
from pipelines.saving.workspace import unfinished

Directions = Sequence[tuple[float, float]]
_SKY_DISTANCES = 6


class MissingError(InputError):
    """A file that lacks what a figure is made of."""


class Source:
    """A map by its path; each method raises `MissingError` where it cannot know."""

    path: Path

    @property
    def band(self) -> str:
        """Name of the extinction, empty if it is not known."""
        return ""

    @property
    def unit(self) -> str:
        """Of its densities."""
        return "mag pc-1"

    @property
    def has_std(self) -> bool:
        """Whether it may know its error."""
        return True

    @property
    def rays(self) -> Rays | None:
        """Extinctions that were integrated beforehand; ``None`` without them."""
        return None

    def cube(self) -> Cube:
        """The density."""
        raise self._lacks("density cube", "a cube or a run (map.zarr or map.fits)")

    def columns(
        self, along: str, between: tuple[float, float] | None = None
    ) -> Columns | None:
        """The integral through the box with its std; ``None`` without samples."""
        return None

    def skymaps(self, distances: Sequence[float] | None, nside: int | None) -> SkyMaps:
        """Cumulative extinction over the sky."""
        raise self._lacks(
            "integrated extinctions", "a run, map.healpix.fits or a newer map.zarr"
        )

    def lines(self, directions: Directions | None) -> list[LineOfSight]:
        """Extinction along lines of sight."""
        raise self._lacks("extinctions along rays", "a run or a newer map.zarr")

    def records(self) -> list[dict]:
        """How the fit went."""
        raise self._lacks("records of its fit", "a run")

    def _lacks(self, what: str, where: str) -> MissingError:
        return MissingError(f"{self.path} has no {what}: name {where}")


@dataclass(frozen=True)
class RunSource(Source):
    """A run: everything; what is not exported within it is computed."""

    path: Path
    run: Run

    @property
    def band(self) -> str:
        return band_of(self._cube.meta)

    @property
    def has_std(self) -> bool:
        return len(self.run.posterior.samples) > 0

    @cached_property
    def _cube(self) -> Cube:
        from pipelines.products import map_cube

        stored = self.path / "map.zarr"
        return read_zarr(stored) if stored.exists() else map_cube(self.run)

    def cube(self) -> Cube:
        return self._cube

    def columns(
        self, along: str, between: tuple[float, float] | None = None
    ) -> Columns | None:
        from pipelines.products import columns

        # The published engine would pay a solve for every column.
        if self.run.plan.engine == "svi":
            return None
        return columns(self.run, along, between)

    def skymaps(self, distances: Sequence[float] | None, nside: int | None) -> SkyMaps:
        from pipelines.products import sky_maps

        stored = self.path / "map.healpix.fits"
        if stored.exists() and nside is None and distances is None:
            return read_healpix(stored)
        wanted = None if distances is None else np.array(distances)
        return sky_maps(self.run, distances=wanted, nside=nside)

    def lines(self, directions: Directions | None) -> list[LineOfSight]:
        from pipelines.products import lines_of_sight

        return lines_of_sight(self.run, directions)

    def records(self) -> list[dict]:
        lines = (self.path / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        if not any("seconds" in record for record in records):
            raise self._lacks("times in the records of its fit", "another run")
        return records


@dataclass(frozen=True)
class CubeSource(Source):
    """An exported cube, with extinctions integrated beforehand where it has them."""

    path: Path
    density: Cube
    integrated: Integrated | None

    @property
    def band(self) -> str:
        return band_of(self.density.meta)

    @property
    def unit(self) -> str:
        return self.density.unit

    @property
    def rays(self) -> Rays | None:
        stored = self.integrated
        return None if stored is None else Rays(stored.distance, stored.arrays)

    def cube(self) -> Cube:
        return self.density

    def skymaps(self, distances: Sequence[float] | None, nside: int | None) -> SkyMaps:
        stored = self._integrated("integrated extinctions")
        if nside not in (None, stored.nside):
            raise InputError(f"{self.path} has sky maps of nside {stored.nside} only")
        if distances is None:
            far = len(stored.distance)
            chosen = np.unique(np.linspace(0, far, _SKY_DISTANCES + 1)[1:].astype(int))
            wanted = stored.distance[chosen - 1]
        else:
            wanted = np.array(sorted(distances))
        if wanted[-1] > stored.distance[-1] or wanted[0] <= 0:
            raise InputError(
                f"{self.path} knows extinctions out to {stored.distance[-1]:g} pc: "
                f"choose distances up to that, got {wanted.tolist()}"
            )
        known = Rays(stored.distance, stored.arrays)
        arrays = {name: known.at(name, wanted).T for name in stored.arrays}
        chosen = replace(stored, distance=wanted, arrays=arrays)
        return SkyMaps.of(chosen, self.density.meta)

    def lines(self, directions: Directions | None) -> list[LineOfSight]:
        stored = self._integrated("extinctions along rays")
        return [ray_of(stored, *one) for one in directions or informed_rays(stored)]

    def _integrated(self, what: str) -> Integrated:
        if self.integrated is None:
            raise self._lacks(what, "a run or a newer map.zarr")
        return self.integrated


@dataclass(frozen=True)
class SkySource(Source):
    """Maps of the sky: nothing but the sky."""

    path: Path
    maps: SkyMaps

    @property
    def band(self) -> str:
        return band_of(self.maps.meta)

    @property
    def rays(self) -> Rays:
        arrays = {name: array.T for name, array in self.maps.arrays.items()}
        return Rays(self.maps.distances, arrays)

    def skymaps(self, distances: Sequence[float] | None, nside: int | None) -> SkyMaps:
        return self.maps


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
            f"{path} is not a run folder and no map: it does not exist. Name a run, or "
            "what `dustmap export` wrote of it"
        )
    if begun or (path.is_dir() and not is_zarr(path)):
        return RunSource(path, read_run(path))
    if path.is_dir():
        return CubeSource(path, read_zarr(path), _integrated(path))
    exported = read_map(path)
    if isinstance(exported, SkyMaps):
        return SkySource(path, exported)
    return CubeSource(path, exported, None)


def read_map(path: Path) -> Cube | SkyMaps:
    """Read an export of any format."""
    if path.is_dir():
        return read_zarr(path)
    with open_checked(path) as hdus:
        is_table = any(hdu.header.get("PIXTYPE") == "HEALPIX" for hdu in hdus)
        is_shells = any(hdu.name == SHELLS for hdu in hdus)
    if is_shells:
        raise InputError(
            f"{path} holds densities in HEALPix shells, which are not drawn: name the "
            "run, or its map.zarr, map.fits or map.healpix.fits. (healpy reads the "
            "shells: one column each)"
        )
    return read_healpix(path) if is_table else read_fits(path)


def _integrated(path: Path) -> Integrated | None:
    return read_integrated(path) if holds_integrated(path) else None
