"""Bands of extinction, and conversions between them."""

from pipelines.bands.conversion import (
    CURVE,
    CURVES,
    R_V,
    Conversion,
    conversion,
    factor,
)
from pipelines.bands.passbands import WAVELENGTHS, parse_band
from pipelines.bands.source import source_band, wanted_conversion

__all__ = [
    "CURVE",
    "CURVES",
    "R_V",
    "WAVELENGTHS",
    "Conversion",
    "conversion",
    "factor",
    "parse_band",
    "source_band",
    "wanted_conversion",
]
