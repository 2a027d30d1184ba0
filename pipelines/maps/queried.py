"""Maps of the package dustmaps, and other objects with ``query``.

What an object returns is in ``catalogs/maps/published.toml`` for some classes of that
package, and stated by the user for all others.
"""

from __future__ import annotations

import importlib
import importlib.resources
import inspect
import math
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dustmap.memory import row_blocks
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box, unit_vectors
from pipelines.base.table import Facts
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import LineOfSight, SkyMaps, check_distances
from pipelines.maps.answers import (
    Answers,
    Directions,
    Distances,
    Found,
    Kinds,
    MissingError,
    extinctions_along,
)
from pipelines.maps.places import Places
from pipelines.maps.stored import Once

PACKAGE = "dustmaps:"
# Spacing [pc] of differences of extinctions and integrals of densities.
STEP = 20.0
# Maps return NaN at smaller distances [pc].
_NOTHING = 1e-3
# Figures of maps that go on beyond this distance [pc] end there.
_SHOWN = 3000.0
_EVERYWHERE = Box(lower=(-math.inf,) * 3, upper=(math.inf,) * 3)


@dataclass(frozen=True, kw_only=True, repr=False)
class QueriedMap(Answers):
    """An object with ``.query(coordinates)``, such as those of the package dustmaps.

    Its values times ``scale`` are extinctions from the observer [mag] if
    ``integrated``, else densities [mag/pc]. ``options`` are keywords of ``query``, such
    as ``mode="median"``; ``step`` [pc] is the spacing of integrals of densities and
    differences of extinctions. ``extinctions`` returns an object of extinctions, if
    there is one beside densities. ``end`` is the largest distance [pc], infinite if
    unknown; title and reference are those of a published map.
    """

    source: Any
    integrated: bool
    scale: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    step: float = STEP
    extinctions: Callable[[], Any] | None = None
    end: float = math.inf
    title: str = ""
    reference: str = ""

    @property
    def box(self) -> Box:
        # Unknown: the object itself returns NaN outside.
        return _EVERYWHERE

    @property
    def extent(self) -> float:
        return min(self.end, _SHOWN) if math.isfinite(self.end) else math.inf

    @property
    def facts(self) -> Facts:
        returns = "extinctions from the Sun" if self.integrated else "densities"
        return {"returns": returns, "factor": f"{self.scale:g}"}

    def origins(self) -> list[dict[str, Any]]:
        return [
            {
                "map": self.title or self.path.name,
                "reference": self.reference,
                "quantity": "extinction" if self.integrated else "density",
                "band": self.band or "unknown",
                "factor": self.scale,
            }
        ]

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        return ("mean",)

    def reach(self, places: Places) -> np.ndarray:
        return np.full(len(places), self._known_end())

    def last_star(self, places: Places) -> np.ndarray:
        """Return infinity: the map does not say where its last stars are."""
        return np.full(len(places), np.inf)

    def cube(self) -> Cube:
        """Return the density at 97³ points of a grid around the Sun."""
        end = min(self._known_end(), self.extent)
        axis = np.linspace(-end, end, 97)
        cube = Cube(x=axis, y=axis, z=axis, arrays={}, meta=self._about())
        places = Places.of_points(cube.points)
        values = self.moments(places, ("mean",), integrated=False)["mean"]
        return replace(cube, arrays={"mean": places.restore(values).astype("f4")})

    def sky_maps(
        self, distances: Distances = None, nside: int | None = None
    ) -> SkyMaps:
        """Return extinctions at pixels' centres, by default at six distances.

        The default nside is 64.
        """
        if distances is None:
            far = np.linspace(0.0, min(self._known_end(), self.extent), 7)[1:]
        else:
            far = np.asarray(sorted(distances), dtype=np.float64)
        check_distances(far)
        import healpy  # here, for its import takes longer than a query

        nside = nside or 64
        pixels = np.arange(12 * nside**2)
        directions = np.stack(healpy.pix2vec(nside, pixels, nest=True), -1)
        curves = extinctions_along(self, directions, far)
        arrays = {name: values.astype("f4") for name, values in curves.items()}
        return SkyMaps(distances=far, arrays=arrays, meta=self._about())

    def lines(self, directions: Directions | None = None) -> list[LineOfSight]:
        """Return curves towards directions, by default six in the Galactic plane."""
        far = np.linspace(0.0, min(self._known_end(), self.extent), 201)[1:]
        lines = []
        for lon, lat in directions or [(60.0 * i, 0.0) for i in range(6)]:
            towards = unit_vectors(np.array([lon]), np.array([lat]))
            curves = extinctions_along(self, towards, far)
            arrays = {name: values[:, 0] for name, values in curves.items()}
            lines.append(LineOfSight(l=lon, b=lat, distance=far, arrays=arrays))
        return lines

    def _about(self) -> dict[str, Any]:
        """Return the provenance of products: the band, and the origin."""
        band = {"extinction_band": self.band} if self.band else {}
        return {**band, "maps": self.origins()}

    def _known_end(self) -> float:
        if not math.isfinite(self.end):
            raise MissingError(
                f"{self.path} does not say where it ends: name finite distances"
            )
        return self.end

    def _answers(self, places: Places, kinds: Kinds, integrated: bool) -> Found:
        if integrated == self.integrated:
            values = self._query(places)
        elif self.integrated:
            values = self._differenced(places)
        elif self.extinctions is not None:
            values = replace(self, source=self.extinctions())._query(places)
        else:
            values = self._summed(places)
        return dict.fromkeys(kinds, values)

    def _query(self, places: Places) -> np.ndarray:
        if not len(places):
            return np.zeros(0)
        values = self.source.query(places.coords, **self.options)
        plain = np.asarray(getattr(values, "value", values), dtype=np.float64)
        if plain.shape != (len(places),):
            raise InputError(
                f"{type(self.source).__name__}.query returned shape {plain.shape} for "
                f"{len(places)} coordinates, expected one value each: choose a mode "
                "(--query mode=mean, query={'mode': 'mean'})"
            )
        return self.scale * plain

    def _differenced(self, places: Places) -> np.ndarray:
        """Return the density from extinctions half a step before and behind."""
        half = self.step / 2
        near, far = np.maximum(places.distance - half, 0.0), places.distance + half
        # The extinction at the observer is zero, where maps return NaN.
        start = self._query(places.at(np.maximum(near, _NOTHING)))
        start = np.where(near > 0, start, 0.0)
        return (self._query(places.at(far)) - start) / (far - near)

    def _summed(self, places: Places) -> np.ndarray:
        """Integrate by the midpoint rule, with at most ``step`` between nodes."""
        count = math.ceil(float(places.distance.max(initial=self.step)) / self.step)
        share = (np.arange(count) + 0.5) / count
        sums = np.empty(len(places))
        # Coordinates and value of every node.
        for part in row_blocks(len(places), 128 * count):
            some = places.select(part)
            nodes = Places.along(some.directions, some.distance[:, None] * share)
            values = self._query(nodes).reshape(-1, count)
            sums[part] = values.mean(axis=1) * some.distance
        return sums


def open_queried(
    reference: Any,
    *,
    integrated: bool | None = None,
    factor: float | None = None,
    query: dict[str, Any] | None = None,
    step: float | None = None,
) -> QueriedMap:
    """Open an object with ``.query``, or ``dustmaps:NAME`` for one of that package.

    NAME is a module of ``published.toml``, or MODULE.CLASS. The ``factor`` leads from
    the object's values to mag, or if not ``integrated`` mag/pc; the band is then
    unknown. By default both are those in the table, and ``query`` adds to its keywords.

    Raises `InputError` if the object has no ``query``, or is not in the table and
    ``integrated`` or ``factor`` is missing, or it contradicts ``integrated``.
    """
    source, name = reference, type(reference).__name__
    by_name = isinstance(reference, str)
    if by_name:
        source, name = _of_package(reference.removeprefix(PACKAGE)), reference
    elif not hasattr(source, "query"):
        raise InputError(f"{name} is no map: expected an object with .query")
    facts = _facts(source)
    of_class = facts.get("integrated")
    if of_class is None and (integrated is None or factor is None):
        raise InputError(
            f"what {name} returns is not known: give both, whether its values are "
            "extinctions from the Sun (--integrated, integrated=True) or densities "
            "(--differential, integrated=False), and the factor that converts them to "
            "mag, or mag/pc (--factor, factor=)"
        )
    if None not in (of_class, integrated) and of_class != integrated:
        what = "extinctions from the Sun" if of_class else "densities"
        raise InputError(
            f"{name} returns {what}: leave --integrated and --differential "
            "(integrated=) out"
        )
    if factor is not None and not factor > 0:
        raise InputError(f"a factor is above 0, got {factor:g}")
    sums = None
    if by_name and not of_class and "extinctions" in facts:
        sums = Once(partial(type(source), **facts["extinctions"]))
    return QueriedMap(
        extinctions=sums,
        path=Path(name),
        band=facts.get("band", "") if factor is None else "",
        source=source,
        integrated=bool(integrated if of_class is None else of_class),
        scale=facts["factor"] if factor is None else factor,
        options={**facts.get("query", {}), **(query or {})},
        step=STEP if step is None else step,
        end=facts.get("reach", math.inf),
        title=facts.get("title", ""),
        reference=facts.get("reference", ""),
    )


def _published() -> dict[str, dict[str, Any]]:
    table = importlib.resources.files("catalogs") / "maps" / "published.toml"
    return tomllib.loads(table.read_text(encoding="utf-8"))


def _facts(source: Any) -> dict[str, Any]:
    """Return what is known of an object's class, and said by the object itself."""
    kind = type(source)
    package, _, module = kind.__module__.rpartition(".")
    facts = _published().get(module, {})
    if package != "dustmaps" or kind.__name__ != facts.get("class"):
        return {}
    if len(getattr(source, "distances", ())) == facts.get("distances_of_others"):
        return {"query": facts["query"]}
    return {**facts, "integrated": getattr(source, "integrated", facts["integrated"])}


def _of_package(name: str) -> Any:
    """Open a map object of the package dustmaps.

    Raises `InputError` if the package, the map or its data are missing.
    """
    module_name, _, class_name = name.partition(".")
    with warnings.catch_warnings():
        # Without a configuration file the defaults apply.
        warnings.filterwarnings("ignore", "(?s).*Configuration file not found")
        try:
            base = importlib.import_module("dustmaps.map_base").DustMap
            module = importlib.import_module(f"dustmaps.{module_name}")
        except ImportError as error:
            raise InputError(
                f"no map {module_name!r} of the package dustmaps ({error}): is it "
                "installed (pip install 'dustmap[dustmaps]')? Known are "
                f"{', '.join(PACKAGE + name for name in _published())}"
            ) from error
    classes = {
        name: each
        for name, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, base) and each.__module__ == module.__name__
    }
    class_name = class_name or _published().get(module_name, {}).get("class", "")
    if class_name not in classes:
        raise InputError(
            f"name one of the maps of dustmaps.{module_name} as {PACKAGE}{module_name}"
            f".CLASS: {', '.join(classes) or 'there is none'}"
        )
    try:
        return classes[class_name]()
    except (OSError, TypeError, ValueError) as error:
        raise InputError(
            f"dustmaps.{module_name}.{class_name} cannot be opened "
            f"({type(error).__name__}: {error}): fetch its data first, as described in "
            "its documentation"
        ) from error
