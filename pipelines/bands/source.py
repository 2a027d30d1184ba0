"""The band of a catalogue or a map, and its conversion to the user's band."""

from __future__ import annotations

import re
from typing import Any

from pipelines.bands.conversion import CURVE, R_V, Conversion, conversion
from pipelines.bands.passbands import parse_band
from pipelines.base.errors import InputError

UNKNOWN = "as in the catalogue"
_SEPARATOR = "; "
_AT = re.compile(r"A_\w+ at ([0-9.]+) ?nm")


def joined_bands(bands: list[str]) -> str:
    """Join the bands of several catalogues in one line; an empty one is not known."""
    return _SEPARATOR.join(sorted({band or UNKNOWN for band in bands})) or UNKNOWN


def known_band(stated: str) -> str:
    """Return the name of the one band that is stated; empty if none is known."""
    # Text after a comma explains: "A_0, monochromatic at 541.4 nm".
    plain = stated if _SEPARATOR in stated else stated.split(", ")[0]
    if found := _AT.fullmatch(plain):
        plain = f"A({found[1]} nm)"
    try:
        return parse_band(plain).name
    except InputError:
        return ""


def source_band(
    stated: str, declared: str | None = None, *, of: str = "the map"
) -> str:
    """Return the band of a catalogue or a map, as it states or the user declares.

    Raises
    ------
    InputError
        If neither does, one is not understood, or they contradict each other.
    """
    known = known_band(stated)
    named = known if declared is None else parse_band(declared).name
    if not named:
        reason = "not stated" if stated in ("", UNKNOWN) else f"stated as {stated!r}"
        raise InputError(
            f"the band of the extinctions of {of} is {reason}: state it by "
            "--declare-band, such as --declare-band A_V"
        )
    if known and known != named:
        raise InputError(
            f"the extinctions of {of} are {known}, not {named} as --declare-band says: "
            f"--band {named} converts them"
        )
    return named


def wanted_conversion(
    meta: dict[str, Any],
    band: str | None,
    declared: str | None,
    *,
    curve: str | None = None,
    r_v: float | None = None,
) -> Conversion | None:
    """Find the conversion from a product's band to ``band``, if that is named.

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
