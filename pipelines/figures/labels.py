"""Words and units on axes: bands, extinctions, densities."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from astropy import units as u

from pipelines.bands.source import SEPARATOR

# A letter and an index, as in A_V or A_Ks, or a colour excess.
_BAND = re.compile(r"A_\w+(?:\(\w+\))?|E\(\w+-\w+\)|A\([\d.]+ nm\)")
# Densities whose 99th percentile is below this are shown in mag/kpc.
_FROM_MAG_PER_PC = 0.1


def band_of(meta: dict[str, Any]) -> str:
    """The extinction band that a map's provenance names; empty if none or several."""
    parts = str(meta.get("extinction_band", "")).split(SEPARATOR)
    found = [match.group() if match else "" for match in map(_BAND.match, parts)]
    return found[0] if len(set(found)) == 1 else ""


def band_symbol(band: str) -> str:
    """A band as mathematics: ``A_V`` as its symbol with an index; words as they are."""
    if re.fullmatch(r"A_\w+(?:\(\w+\))?", band):
        return rf"$A_\mathrm{{{band[2:]}}}$"
    if re.fullmatch(r"E\(\w+-\w+\)", band):
        return f"${band}$"
    return band


def extinction_label(band: str, what: str = "extinction") -> str:
    """What is shown, the band and the unit of an integrated extinction."""
    return " ".join(word for word in (what, band_symbol(band), "[mag]") if word)


def density_label(
    values: np.ndarray, unit: str, band: str, what: str = "density"
) -> tuple[float, str]:
    """Factor that brings ``values`` [unit] to mag/pc or mag/kpc, and the label."""
    finite = np.abs(values[np.isfinite(values)])
    native: Any = u.Unit(unit)
    high = np.percentile(finite, 99) * native.to("mag pc-1") if finite.size else 0.0
    shown: Any = u.Unit("mag pc-1" if high >= _FROM_MAG_PER_PC else "mag kpc-1")
    named = f"{what} of {band_symbol(band)}" if band else what
    return native.to(shown), f"{named} [{shown.to_string('latex_inline')}]"
