"""The conversion that a user asks for by options of the command line."""

from __future__ import annotations

from typing import Any

from pipelines.bands.conversion import CURVE, R_V, Conversion, conversion
from pipelines.bands.passbands import parse_band
from pipelines.bands.source import source_band
from pipelines.base.errors import InputError


def wanted_conversion(
    meta: dict[str, Any],
    band: str | None,
    declared: str | None,
    *,
    curve: str | None = None,
    r_v: float | None = None,
) -> Conversion | None:
    """From the band of a product, by its provenance, to ``band``, if any is named.

    ``declared`` states the product's own where that is not known.

    Raises
    ------
    InputError
        If the product's band is not known or another than declared, or the conversion
        is impossible.
    """
    if band is None and (curve, r_v) != (None, None):
        raise InputError("--curve and --r-v convert to another band: add --band")
    if band is None and declared is None:
        return None
    target = None if band is None else parse_band(band).name
    source = source_band(str(meta.get("extinction_band") or ""), declared)
    return conversion(
        source,
        target or source,
        curve=curve or CURVE,
        r_v=R_V if r_v is None else r_v,
    )
