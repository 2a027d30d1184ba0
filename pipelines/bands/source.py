"""Which extinction a map is of, as its catalogues say."""

from __future__ import annotations

import re
from typing import Any

from pipelines.bands.passbands import parse_band
from pipelines.base.errors import InputError

UNKNOWN = "as in the catalogue"
SEPARATOR = "; "
_AT = re.compile(r"A_\w+ at ([0-9.]+) ?nm")


def joined_bands(bands: list[str]) -> str:
    """One line for the bands of several catalogues; an empty one is not known."""
    return SEPARATOR.join(sorted({band or UNKNOWN for band in bands})) or UNKNOWN


def source_band(meta: dict[str, Any]) -> str:
    """The band of a product by its provenance, as `parse_band` understands it.

    Raises
    ------
    InputError
        If no band is stated, none that is understood, or more than one.
    """
    stated = str(meta.get("extinction_band") or UNKNOWN)
    # What follows a comma explains: "A_0, monochromatic at 541.4 nm".
    plain = stated if SEPARATOR in stated else stated.split(", ")[0]
    if found := _AT.fullmatch(plain):
        plain = f"A({found[1]} nm)"
    try:
        return parse_band(plain).name
    except InputError:
        reason = "is not stated" if stated == UNKNOWN else f"is stated as {stated!r}"
        raise InputError(
            f"the band of this map's extinction {reason}: name it with "
            "--from-band, such as --from-band A_V"
        ) from None
