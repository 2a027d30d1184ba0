"""A map around another one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.bands import Conversion
from pipelines.base.geometry import Box
from pipelines.base.table import Facts
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns, Ends, LineOfSight
from pipelines.maps.answers import Answers, Directions, Kind
from pipelines.maps.places import Places

if TYPE_CHECKING:
    from pipelines.run.folder import Run


@dataclass(frozen=True, kw_only=True, repr=False)
class Wrapped(Answers):
    """A map that answers as the map ``own``, except where a subclass changes this.

    A subclass defines moments, samples, `crossings` and `sky_maps`.
    """

    own: Answers

    @property
    def changes(self) -> tuple[Conversion, ...]:
        return self.own.changes

    @property
    def factor(self) -> float:
        return self.own.factor

    @property
    def box(self) -> Box:
        return self.own.box

    @property
    def extent(self) -> float:
        return self.own.extent

    @property
    def facts(self) -> Facts:
        return self.own.facts

    @property
    def fit(self) -> Run | None:
        return self.own.fit

    @property
    def has_samples(self) -> bool:
        return self.own.has_samples

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        return self.own.kinds(integrated=integrated)

    def default_kinds(self, *, integrated: bool) -> tuple[Kind, ...]:
        return self.own.default_kinds(integrated=integrated)

    def quality(self, places: Places) -> dict[str, np.ndarray]:
        return self.own.quality(places)

    def origins(self) -> list[dict[str, Any]]:
        return self.own.origins()

    def support(self, places: Places) -> np.ndarray:
        return self.own.support(places)

    def last_star(self, places: Places) -> np.ndarray:
        return self.own.last_star(places)

    def reach(self, places: Places) -> np.ndarray:
        return self.own.reach(places)

    def cube(self) -> Cube:
        return self.own.cube()

    def columns(
        self, along: str, between: Ends | None = None, *, level: int = 0
    ) -> Columns | None:
        return self.own.columns(along, between, level=level)

    def lines(self, directions: Directions | None = None) -> list[LineOfSight]:
        return self.own.lines(directions)

    def _estimated(self, estimate: str) -> Answers:
        return replace(self, own=self.own.estimated(estimate), estimate=estimate)
