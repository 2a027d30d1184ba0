"""Origin, band and citation in exported files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import dustmap
from pipelines.bands import Conversion, joined_bands
from pipelines.cubes.cube import Cube, field_unit
from pipelines.cubes.sky import Columns, SkyMaps
from pipelines.formats.citation import citation_block

if TYPE_CHECKING:
    from pipelines.run.folder import Run

Product = TypeVar("Product", Cube, SkyMaps, Columns)


def provenance(run: Run) -> dict[str, Any]:
    """Return the origin of an exported file, with citations."""
    # The readers of tables take longer to import than a query.
    from pipelines.catalog.provenance import surveys

    held = surveys(run.provenance.get("catalogue") or {})
    catalogues = [one for one in held if one["name"]]
    band = joined_bands([one["band"] for one in held])
    inputs = run.provenance["inputs"]
    return {
        "program": f"dustmap {dustmap.__version__}",
        "run": run.path.name,
        "fit": run.provenance["fit"],
        "plan": run.plan.as_dict(),
        "configuration": run.provenance["configuration"],
        "inputs": inputs,
        "catalogues": catalogues,
        "extinction_band": band,
        "verdict": str(run.verdict),
        # Of densities and their integrals.
        "estimate": "map",
        "citation": citation_block(catalogues, band, inputs),
    }


def convert(
    product: Product, changes: Sequence[Conversion], factor: float | None = None
) -> Product:
    """Multiply extinctions or densities by ``factor``, by default the conversions'.

    The provenance of the result states band and conversions; for `Columns` it is that
    of their cube.
    """
    if factor is None:
        factor = math.prod(change.factor for change in changes)
    if not changes and factor == 1:
        return product
    if isinstance(product, Cube) and product.finer:
        return product.each(lambda cube: convert(cube, changes, factor))
    arrays = {
        name: values * factor if field_unit(name, "mag") else values
        for name, values in product.arrays.items()
    }
    if isinstance(product, Columns):
        return replace(product, arrays=arrays)
    meta = converted(product.meta, changes)
    if maps := meta.get("maps"):
        own = {"band": changes[-1].target} if changes else {}
        maps = [{**one, **own, "factor": factor * one["factor"]} for one in maps]
        meta = {**meta, "maps": maps}
    return replace(product, arrays=arrays, meta=meta)


def converted(meta: dict[str, Any], changes: Sequence[Conversion]) -> dict[str, Any]:
    """Return a provenance with further conversions, in order, and their citations."""
    for change in changes:
        before, band = meta.get("band_conversions", []), change.target
        meta = {**meta, "extinction_band": band}
        meta["band_conversions"] = [*before, change.as_dict()]
        if cited := meta.get("citation"):
            curves = cited.get("extinction_curve", [])
            curves = [*curves, *(work for work in change.cited if work not in curves)]
            meta["citation"] = {**cited, "band": band, "extinction_curve": curves}
    return meta
