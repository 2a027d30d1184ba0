"""A map in another band: its answers, multiplied by the factor of the conversion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pipelines.bands import Conversion
from pipelines.base.table import Facts
from pipelines.cubes.cube import Cube, field_unit
from pipelines.cubes.sky import Columns, Ends, LineOfSight, SkyMaps
from pipelines.maps.answers import (
    PRIOR_SHARE,
    Answers,
    Crossed,
    Directions,
    Distances,
    Draws,
    Found,
    Kinds,
    Product,
    Rng,
    Sides,
)
from pipelines.maps.places import Places
from pipelines.maps.wrapped import Wrapped

if TYPE_CHECKING:
    from dustmap.models.prior_integrals import PriorIntegrals


@dataclass(frozen=True, kw_only=True, repr=False)
class Converted(Wrapped):
    """The map ``own``, whose values are multiplied by ``times``, in the ``band``.

    The band is that of the ``change``, if there is one; its factor is in ``times``.
    Conversions nest, and products name each of them.
    """

    change: Conversion | None
    times: float

    @classmethod
    def of(cls, own: Answers, change: Conversion | None, factor: float) -> Self:
        """Return a map converted, and multiplied by a further factor."""
        known, times = own.identity(), factor
        if change is not None:
            known["band"] = change.target
            times *= change.factor
        return cls(**known, own=own, change=change, times=times)

    @property
    def changes(self) -> tuple[Conversion, ...]:
        return (*self.own.changes, *([] if self.change is None else [self.change]))

    @property
    def factor(self) -> float:
        return self.times * self.own.factor

    @property
    def facts(self) -> Facts:
        factor = {"factor": f"{self.factor:g}"} if "factor" in self.own.facts else {}
        return {**self.own.facts, **factor}

    def prior(self) -> PriorIntegrals:
        return self.own.prior().scaled(self.times)

    def origins(self) -> list[dict[str, Any]]:
        band = self.band or "unknown"
        return [
            {**origin, "band": band, "factor": self.times * origin["factor"]}
            for origin in self.own.origins()
        ]

    def moments(self, places: Places, kinds: Kinds, *, integrated: bool) -> Found:
        found = self.own.moments(places, kinds, integrated=integrated)
        return {k: v if k == PRIOR_SHARE else self.times * v for k, v in found.items()}

    def samples(self, places: Places, *, integrated: bool, rng: Rng = None) -> Draws:
        return self.times * self.own.samples(places, integrated=integrated, rng=rng)

    def crossings(self, places: Places, extinction: np.ndarray) -> Crossed:
        return self.own.crossings(places, extinction / self.times)

    def cube(self) -> Cube:
        return self._changed(self.own.cube())

    def sampled(self, spacing: float | None, box: Sides = None) -> Cube:
        return self._changed(self.own.sampled(spacing, box))

    def columns(
        self, along: str, between: Ends | None = None, *, level: int = 0
    ) -> Columns | None:
        found = self.own.columns(along, between, level=level)
        return None if found is None else self._changed(found)

    def sky_maps(
        self, distances: Distances = None, nside: int | None = None
    ) -> SkyMaps:
        return self._changed(self.own.sky_maps(distances, nside))

    def lines(self, directions: Directions | None = None) -> list[LineOfSight]:
        return [line.scaled(self.times) for line in self.own.lines(directions)]

    def convert(self, product: Product) -> Product:
        return self._changed(self.own.convert(product))

    def _changed(self, product: Product) -> Product:
        """Return a product of ``own`` in this band, with the change in its provenance.

        The provenance of `Columns` is that of their cube.
        """
        if isinstance(product, Cube) and product.finer:
            return product.each(self._changed)
        arrays = {
            name: values * self.times if field_unit(name, "mag") else values
            for name, values in product.arrays.items()
        }
        if isinstance(product, Columns):
            return replace(product, arrays=arrays)
        meta = product.meta
        band = {}
        if self.change is not None:
            meta = with_change(meta, self.change)
            band = {"band": self.band}
        if maps := meta.get("maps"):
            maps = [
                {**one, **band, "factor": self.times * one["factor"]} for one in maps
            ]
            meta = {**meta, "maps": maps}
        return replace(product, arrays=arrays, meta=meta)


def with_change(meta: dict[str, Any], change: Conversion) -> dict[str, Any]:
    """Return a provenance with a further conversion, and its citations."""
    before, band = meta.get("band_conversions", []), change.target
    meta = {**meta, "extinction_band": band}
    meta["band_conversions"] = [*before, change.as_dict()]
    if cited := meta.get("citation"):
        curves = cited.get("extinction_curve", [])
        curves = [*curves, *(work for work in change.cited if work not in curves)]
        meta["citation"] = {**cited, "band": band, "extinction_curve": curves}
    return meta
