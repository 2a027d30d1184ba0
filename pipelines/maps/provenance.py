"""Origin, band and citation in exported files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import dustmap
from pipelines.bands import Conversion, joined_bands
from pipelines.catalog.provenance import surveys
from pipelines.cubes.cube import Cube, field_unit
from pipelines.cubes.sky import Columns, SkyMaps
from pipelines.formats.citation import citation_block

if TYPE_CHECKING:
    from pipelines.run.folder import Run

Product = TypeVar("Product", Cube, SkyMaps, Columns)


def provenance(run: Run) -> dict[str, Any]:
    """Return the origin of an exported file, with citations."""
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
    product: Product, change: Conversion | None, factor: float | None = None
) -> Product:
    """Multiply extinctions or densities by ``factor``, by default the conversion's.

    The provenance of the result states band and conversion; for `Columns` it is that of
    their cube.
    """
    if factor is None:
        factor = 1.0 if change is None else change.factor
    if change is None and factor == 1:
        return product
    if isinstance(product, Cube) and product.finer:
        return product.each(lambda cube: convert(cube, change, factor))
    arrays = {
        name: values * factor if field_unit(name, "mag") else values
        for name, values in product.arrays.items()
    }
    if isinstance(product, Columns):
        return replace(product, arrays=arrays)
    return replace(product, arrays=arrays, meta=converted(product.meta, change))


def converted(meta: dict[str, Any], change: Conversion | None) -> dict[str, Any]:
    """Return a provenance with the conversion and its citation."""
    if change is None:
        return meta
    changed = {
        **meta,
        "extinction_band": change.target,
        "band_conversion": change.as_dict(),
    }
    if "citation" in meta:
        curves = change.cited
        cited = {**meta["citation"], "band": change.target, "extinction_curve": curves}
        changed["citation"] = cited
    return changed
