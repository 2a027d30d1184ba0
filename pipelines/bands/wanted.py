"""The conversion that a user asks for by options of the command line."""

from __future__ import annotations

from typing import Any

from pipelines.bands.conversion import CURVE, R_V, Conversion, conversion
from pipelines.bands.source import source_band
from pipelines.base.errors import InputError


def wanted_conversion(
    meta: dict[str, Any],
    band: str | None,
    from_band: str | None,
    *,
    curve: str | None,
    r_v: float | None,
) -> Conversion | None:
    """From the band of a product, by its provenance, to ``band``, if any is named.

    ``from_band`` replaces the product's own; alone it only states that.

    Raises
    ------
    InputError
        If the product's band is not known, or the conversion is impossible.
    """
    if band is None and (curve, r_v) != (None, None):
        raise InputError("--curve and --r-v convert to another band: add --band")
    target = band or from_band
    if target is None:
        return None
    return conversion(
        from_band or source_band(meta),
        target,
        curve=curve or CURVE,
        r_v=R_V if r_v is None else r_v,
    )
