"""Names of extinctions, and the wavelength that stands for each.

A broad band is not monochromatic: how much it is dimmed depends on the star's colour
and on the extinction itself, by some per cent in the optical and by up to about 10% in
Gaia's wide G. Here every band is its one wavelength in ``passbands.toml``, which the
converted file names; who needs better integrates a spectrum. B and V are defined
otherwise: see `pipelines.bands.conversion`.
"""

from __future__ import annotations

import importlib.resources
import math
import re
import tomllib
import unicodedata
from dataclasses import dataclass

from pipelines.base.errors import InputError

_FILE = importlib.resources.files("pipelines.bands") / "passbands.toml"
# In nm.
WAVELENGTHS: dict[str, float] = {
    key: wavelength
    for published in tomllib.loads(_FILE.read_text("utf-8")).values()
    for key, wavelength in published.items()
}
_NAMES = ", ".join(WAVELENGTHS)
_UNITS = {"nm": 1.0, "um": 1e3, "µm": 1e3, "μm": 1e3, "micron": 1e3, "angstrom": 0.1}
_AT = re.compile(r"A\(\s*([0-9.]+)\s*([A-Za-zµμ]+)\s*\)")
_BAND = re.compile(r"A_?(\w+(?:\(\w+\))?)|A\(\s*(\w+(?:\(\w+\))?)\s*\)")
_EXCESS = re.compile(r"E\(\s*(\w+(?:\(\w+\))?)\s*-\s*(\w+(?:\(\w+\))?)\s*\)")
# Gaia's BP and RP are also written GBP or G_BP.
_GAIA = re.compile(r"(?<![A-Za-z])G_?(?=[BR]P(?![A-Za-z]))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """An extinction, or the difference of two.

    ``terms`` are what is added up: name, wavelength [nm], and +1 or −1.
    """

    name: str
    terms: tuple[tuple[str, float, int], ...]


def parse_band(text: str) -> Band:
    """Understand ``A_V``, ``A_g(PS1)``, ``E(B-V)``, ``A(550 nm)``; the case matters.

    So are ``AV`` and ``A(V)``, ``E(GBP-GRP)`` and ``E(G_BP-G_RP)``, with any dash for
    the minus sign. ``name`` is one for all spellings: ``E(BP-RP)``.

    Raises
    ------
    InputError
        If it is none of these, or names a passband that is not known.
    """
    dashes = {c: "-" for c in text if c == "−" or unicodedata.category(c) == "Pd"}
    plain = _GAIA.sub("", text.strip().translate(str.maketrans(dashes)))
    if found := _AT.fullmatch(plain):
        wavelength = _wavelength(found[1], found[2], text)
        name = f"A({wavelength:.10g} nm)"
        return Band(name=name, terms=((name, wavelength, 1),))
    if found := _BAND.fullmatch(plain):
        key = _known(found[1] or found[2], text)
        return Band(name=f"A_{key}", terms=((f"A_{key}", WAVELENGTHS[key], 1),))
    if found := _EXCESS.fullmatch(plain):
        blue, red = (_known(part, text) for part in found.groups())
        if blue == red:
            raise InputError(f"{text!r} is the difference of a band with itself")
        signs = ((blue, 1), (red, -1))
        terms = tuple((f"A_{key}", WAVELENGTHS[key], sign) for key, sign in signs)
        return Band(name=f"E({blue}-{red})", terms=terms)
    raise InputError(
        f"{text!r} is not an extinction band: expected A_ and one of {_NAMES}, such as "
        "A_V; the excess of two, such as E(B-V) or E(BP-RP); or A(550 nm)"
    )


def _wavelength(number: str, unit: str, text: str) -> float:
    scale = _UNITS.get(unit, _UNITS.get(unit.lower(), math.nan))
    try:
        # Without the last bits of 0.1 times angstroms.
        value = float(f"{float(number) * scale:.10g}")
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(
            f"{text!r} names no wavelength: expected a positive number with nm, um or "
            "angstrom, such as A(550 nm)"
        )
    return value


def _known(key: str, text: str) -> str:
    if key in WAVELENGTHS:
        return key
    similar = [k for k in WAVELENGTHS if k.split("(")[0].lower() == key.lower()]
    hint = f"do you mean {' or '.join(similar)}?" if similar else ""
    raise InputError(
        f"{text!r}: there is no band {key!r}, {hint or f'there are {_NAMES}'}"
    )
