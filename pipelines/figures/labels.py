"""Words and units on axes: bands, extinctions, densities."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from pipelines.bands.source import SEPARATOR
from pipelines.figures.style import density_unit

# A letter and an index, as in A_V or A_Ks, or a colour excess.
_BAND = re.compile(r"A_\w+(?:\(\w+\))?|E\(\w+-\w+\)|A\([\d.]+ nm\)")


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


def density_label(values: np.ndarray, unit: str, band: str, what: str = "density"):
    """Factor and label that show a density in mag/pc or mag/kpc.

    Returns
    -------
    factor, label
        By which ``values`` [unit] are multiplied, and what stands at the colour bar.
    """
    factor, shown = density_unit(values, unit)
    symbol = band_symbol(band)
    named = f"{what} of {symbol}" if symbol else what
    return factor, f"{named} {shown}"
