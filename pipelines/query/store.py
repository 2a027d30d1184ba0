"""A map store opened for questions: axes and attributes now, the rest as needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.quantiles import NAMES, QUANTILES, between, normal
from pipelines.formats.zarr import level_prefixes, open_cube
from pipelines.query.chunks import ChunkReader
from pipelines.query.density import DensityGrid
from pipelines.query.places import Places
from pipelines.query.question import Kind, probability
from pipelines.query.sky import Sky
from pipelines.run.facts import Facts, box_facts
from pipelines.storage.atomic import MARKER

if TYPE_CHECKING:
    from pipelines.query.exports import CubeDensity, CubeSky, ShellDensity


@dataclass(frozen=True, slots=True, kw_only=True)
class MapStore:
    """A map that ``dustmap export`` wrote, interpolated; it holds no samples.

    ``sky`` is None for a map that was exported without integrated extinction,
    ``density`` for maps of the sky; one of them is there.
    """

    path: Path
    band: str
    density: DensityGrid | CubeDensity | ShellDensity | None
    sky: Sky | CubeSky | None
    verdict: str = ""

    @property
    def box(self) -> Box:
        """Where the map is."""
        return self.require_sky().box if self.density is None else self.density.box

    @property
    def facts(self) -> Facts:
        """Box, spacing and arrays of the store, and the verdict on the map."""
        reach, judged = "none", {"verdict": self.verdict} if self.verdict else {}
        if self.sky is not None:
            known = ", ".join(self.sky.arrays)
            reach = f"to {self.sky.distance[-1]:.5g} pc: {known}"
        if self.density is None:
            return {"density": "none", "integrated extinction": reach, **judged}
        return {
            **box_facts(self.box, self.density.spacing),
            "density": ", ".join(self.density.arrays),
            "integrated extinction": reach,
            **judged,
        }

    def require_sky(self) -> Sky | CubeSky:
        """The integrated extinction.

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

    def reach(self, places: Places) -> np.ndarray:
        """How far each sight line can be followed [pc]."""
        return self.require_sky().reach(places)

    def answers(
        self, kinds: Sequence[Kind], integrated: bool, places: Places
    ) -> list[np.ndarray]:
        """Each of the kinds at places in the box, shape ``(n,)``."""
        part = self.require_sky() if integrated else self._require_density()
        positive = "p50" in part.arrays
        made_of = [_made_of(kind, part.arrays, integrated) for kind in kinds]
        names = list(dict.fromkeys(name for parts in made_of for name in parts))
        known = (*part.arrays, *(name for name in names if positive and name[0] == "p"))
        missing = [name for name in names if name not in known]
        if missing:
            raise InputError(
                f"{self.path} has no {', '.join(missing)} of the "
                f"{'extinction' if integrated else 'density'}, only "
                f"{', '.join(part.arrays)}: ask for one of these (--mode, mode=), or "
                "name the run or its map.zarr"
            )
        read = part.at(names, places)
        found = []
        for kind, parts in zip(kinds, made_of):
            if len(parts) == 1:
                found.append(read[parts[0]])
            elif positive:
                arrays = {name: read[name] for name in parts}
                found.append(between(arrays, probability(kind)))
            else:
                found.append(normal(read["mean"], read["std"], probability(kind)))
        return found

    def unseen(self, places: Places) -> np.ndarray:
        """Whether no sight line crosses the cell of a place in the box.

        Of maps of the sky, whether none goes so far.
        """
        if self.density is None:
            return places.distance > self.last_star(places)
        return self.density.support(places) <= 0

    def last_star(self, places: Places) -> np.ndarray:
        """Where the last seen stretch of each sight line ends [pc]."""
        return self.require_sky().last_star(places)

    def _require_density(self) -> DensityGrid | CubeDensity | ShellDensity:
        if self.density is None:
            raise InputError(
                f"{self.path} holds integrated extinctions only, not the density: ask "
                "for --integrated (integrated=True), or name a map.zarr or map.fits"
            )
        return self.density


def _made_of(kind: Kind, arrays: Sequence[str], integrated: bool) -> tuple[str, ...]:
    """The arrays that a kind is read from, or that `Sky` extrapolates."""
    if kind in ("mean", "std") or kind in arrays:
        return (str(kind),)
    if "p50" not in arrays:
        return "mean", "std"
    names = tuple(name for name in NAMES if name in arrays)
    low, high = QUANTILES[names[0]], QUANTILES[names[-1]]
    if integrated and not low <= probability(kind) <= high:
        return (f"p{100 * probability(kind):.12g}",)
    return names


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
        density, *finer = (
            DensityGrid(
                reader=reader,
                axes=tuple(np.asarray(reader.array(place + a)[...]) for a in "xyz"),
                arrays=tuple(attributes["arrays"]),
                prefix=place,
            )
            for place in level_prefixes(attributes)
        )
        density = replace(density, finer=tuple(finer))
        described, sky = attributes.get("integrated"), None
        if described is not None:
            names = (str(name) for name in described["arrays"])
            sky = Sky(
                reader=reader,
                box=density.box,
                nside=int(described["nside"]),
                distance=np.asarray(reader.array("distance")[...], dtype=np.float64),
                arrays=tuple(name.removeprefix("extinction_") for name in names),
            )
    except KeyError as error:
        raise InputError(f"{path} is no map of this program: {error}") from error
    band = str(attributes.get("band", ""))
    verdict = str(attributes["provenance"].get("verdict", ""))
    return MapStore(path=path, band=band, density=density, sky=sky, verdict=verdict)
