"""Whole products in another band."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from pipelines.bands.conversion import Conversion
from pipelines.bands.curves import CURVES, PACKAGE, Curve
from pipelines.catalog.references import parse_references, plain
from pipelines.maps.cube import Cube, field_unit
from pipelines.maps.integrated import Integrated
from pipelines.maps.shells import ShellMaps

Product = TypeVar("Product", Cube, Integrated, ShellMaps)


def convert(product: Product, change: Conversion) -> Product:
    """Multiply what is an extinction or its density; lengths and places stay.

    Band and conversion are in the provenance of the result, those of `Integrated` in
    that of the cube it is written with.
    """
    if isinstance(product, Cube):
        arrays = {
            name: array * change.factor if field_unit(name, product.unit) else array
            for name, array in product.arrays.items()
        }
        return replace(product, arrays=arrays, meta=converted(product.meta, change))
    scaled = {name: values * change.factor for name, values in product.arrays.items()}
    if isinstance(product, ShellMaps):
        meta = converted(product.meta, change)
        return replace(product, arrays=scaled, meta=meta)
    return replace(product, arrays=scaled)


def converted(meta: dict[str, Any], change: Conversion) -> dict[str, Any]:
    """A provenance that tells of the conversion, and whom to cite for it."""
    changed = {
        **meta,
        "extinction_band": change.target,
        "band_conversion": change.as_dict(),
    }
    citation = meta.get("citation")
    if isinstance(citation, dict):
        used = [CURVES[change.curve], PACKAGE] if change.package else []
        changed["citation"] = {
            **citation,
            "band": change.target,
            "extinction_curve": [_plain(curve) for curve in used],
        }
    return changed


def _plain(curve: Curve) -> dict[str, Any]:
    papers = parse_references(curve.reference, curve.doi)
    entitled = [paper.model_copy(update={"title": curve.title}) for paper in papers]
    return {"title": curve.title, "references": plain(entitled)}
