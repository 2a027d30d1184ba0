"""Maps of others: objects with a query, and cubes in archives of NumPy."""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.cubes.cube import Cube
from pipelines.maps.answers import Answers, Found, Kind
from pipelines.maps.places import Places

PACKAGE = "dustmaps:"
# Nearer than this [pc] there is no dust, and maps do not answer.
NOTHING = 1e-3
EVERYWHERE = Box(lower=(-math.inf,) * 3, upper=(math.inf,) * 3)
# Spacing [pc] over which extinctions are differenced and densities integrated.
STEP = 20.0
# Nodes at once along rays of a map that only knows densities.
_NODES = 1_000_000


@dataclass(frozen=True, kw_only=True, repr=False)
class QueriedMap(Answers):
    """An object with ``.query(coordinates)``, as the package dustmaps has them.

    Parameters
    ----------
    source
        The object.
    integrated
        Whether its values are extinctions from the observer, or else densities.
    options
        Keywords of ``query``, such as ``mode="median"``.
    step
        Spacing [pc] over which densities are integrated and extinctions differenced.
    """

    source: Any
    integrated: bool
    options: dict[str, Any] = field(default_factory=dict)
    step: float = STEP

    @property
    def box(self) -> Box:
        """Not known: it says itself where it knows nothing."""
        return EVERYWHERE

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        """One value, whatever it is."""
        return ("mean",)

    def _answers(
        self, places: Places, kinds: Sequence[Kind], integrated: bool
    ) -> Found:
        if integrated == self.integrated:
            values = self._query(places)
        elif self.integrated:
            values = self._differenced(places)
        else:
            values = self._summed(places)
        return dict.fromkeys(kinds, values)

    def _query(self, places: Places) -> np.ndarray:
        values = self.source.query(places.coords, **self.options)
        plain = np.asarray(getattr(values, "value", values), dtype=np.float64)
        if plain.shape != (len(places),):
            raise InputError(
                f"{type(self.source).__name__}.query gave {plain.shape} for "
                f"{len(places)} coordinates: ask it for one value each (--query "
                "mode=mean or median)"
            )
        return plain

    def _differenced(self, places: Places) -> np.ndarray:
        """Density from the extinctions half a step before and behind."""
        half = self.step / 2
        near, far = np.maximum(places.distance - half, 0.0), places.distance + half
        # At the observer itself there is no extinction, and maps do not answer.
        start = self._query(places.at(np.maximum(near, NOTHING)))
        start = np.where(near > 0, start, 0.0)
        return (self._query(places.at(far)) - start) / (far - near)

    def _summed(self, places: Places) -> np.ndarray:
        """Extinction by the midpoint rule, with at most ``step`` between nodes."""
        distance = places.distance
        count = math.ceil(float(distance.max(initial=self.step)) / self.step)
        share = (np.arange(count) + 0.5) / count
        found = np.empty(len(places))
        rows = max(_NODES // count, 1)
        for start in range(0, len(places), rows):
            part = np.arange(start, min(start + rows, len(places)))
            some = places.select(part)
            nodes = Places.along(some.directions, some.distance[:, None] * share)
            values = self._query(nodes).reshape(-1, count)
            found[part] = values.mean(axis=1) * some.distance
        return found


def open_package(name: str) -> Any:
    """Open a map object of the package dustmaps: ``MODULE`` or ``MODULE.CLASS``.

    Raises
    ------
    InputError
        If the package, the map or its data are not there.
    """
    module_name, _, class_name = name.partition(".")
    found = _maps_of(module_name)
    local = [n for n in found if n.endswith("Query") and "Web" not in n]
    wanted = class_name or (local[0] if len(local) == 1 else "")
    if wanted not in found:
        raise InputError(
            f"name one of the maps of dustmaps.{module_name} as {PACKAGE}{module_name}"
            f".CLASS: {', '.join(found) or 'there is none'}"
        )
    try:
        return found[wanted]()
    except (OSError, TypeError, ValueError) as error:
        raise InputError(
            f"dustmaps.{module_name}.{wanted} cannot be opened "
            f"({type(error).__name__}: {error}): fetch its data first, as its "
            "documentation says, or open it in Python and call compare_map"
        ) from error


def _maps_of(module_name: str) -> dict[str, Any]:
    """The classes of maps that a module of dustmaps defines."""
    with warnings.catch_warnings():
        # Of a configuration that need not exist: its defaults are what is meant.
        warnings.filterwarnings("ignore", "(?s).*Configuration file not found")
        try:
            base = importlib.import_module("dustmaps.map_base").DustMap
            module = importlib.import_module(f"dustmaps.{module_name}")
        except ImportError as error:
            raise InputError(
                f"no map {module_name!r} of the package dustmaps ({error}): is it "
                "installed (pip install 'dustmap[dustmaps]')?"
            ) from error
    return {
        name: each
        for name, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, base) and each.__module__ == module.__name__
    }


def read_npz(path: Path) -> Cube:
    """A cube from a NumPy archive.

    It holds ``density`` of shape ``(x, y, z)``, with x towards l = 0 and z towards the
    north Galactic pole, in mag per unit of length of the axes, and these: ``x``, ``y``
    and ``z`` [pc], or ``grid_kpc`` [kpc] for all three.

    Raises
    ------
    InputError
        If it holds something else.
    """
    with np.load(path, allow_pickle=False) as archive:
        held = ", ".join(sorted(archive.files))
        kpc = "grid_kpc" in archive
        try:
            axes = (
                [1000.0 * archive["grid_kpc"]] * 3
                if kpc
                else [archive[name] for name in "xyz"]
            )
            x, y, z = (np.asarray(axis, dtype=np.float64) for axis in axes)
            density = np.ascontiguousarray(archive["density"].T, dtype=np.float32)
            unit = "mag kpc-1" if kpc else "mag pc-1"
            return Cube(x=x, y=y, z=z, arrays={"density": density}, unit=unit)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{path} holds {held}; expected density (x, y, z) and x, y, z [pc] or "
                f"grid_kpc [kpc]: {error}"
            ) from error
