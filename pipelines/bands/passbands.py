"""Names of extinctions, and the wavelength that stands for each.

A broad band is not monochromatic: how much it is dimmed depends on the star's colour
and on the extinction itself, by some per cent in the optical and by up to about 10% in
Gaia's wide G. Here every band is its one wavelength below, which the converted file
names; who needs better integrates a spectrum.

=====================  ================================================================
bands                  wavelengths
=====================  ================================================================
U B V R I              effective, of an A0 star: Bessell, Castelli & Plez 1998,
                       A&A 333, 231, table A2 (B and V are defined otherwise: see
                       `pipelines.bands.conversion`)
J H Ks                 isophotal, of 2MASS: Cohen, Wheaton & Megeath 2003, AJ 126, 1090
W1 W2                  isophotal: Jarrett et al. 2011, ApJ 735, 112
G BP RP                pivot, of Gaia (E)DR3: Riello et al. 2021, A&A 649, A3
u g r i z (SDSS)       effective: Stoughton et al. 2002, AJ 123, 485
g r i z y (PS1)        effective: Tonry et al. 2012, ApJ 750, 99, table 4
0                      541.4 nm by definition: Andrae et al. 2023, A&A 674, A27
=====================  ================================================================
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pipelines.base.errors import InputError

# In nm.
WAVELENGTHS = {
    "U": 366.0,
    "B": 438.0,
    "V": 545.0,
    "R": 641.0,
    "I": 798.0,
    "J": 1235.0,
    "H": 1662.0,
    "Ks": 2159.0,
    "W1": 3352.6,
    "W2": 4602.8,
    "G": 621.79,
    "BP": 510.97,
    "RP": 776.91,
    "u(SDSS)": 355.1,
    "g(SDSS)": 468.6,
    "r(SDSS)": 616.6,
    "i(SDSS)": 748.0,
    "z(SDSS)": 893.2,
    "g(PS1)": 481.0,
    "r(PS1)": 617.0,
    "i(PS1)": 752.0,
    "z(PS1)": 866.0,
    "y(PS1)": 962.0,
    "0": 541.4,
}
_UNITS = {"nm": 1.0, "um": 1e3, "µm": 1e3, "μm": 1e3, "micron": 1e3, "angstrom": 0.1}
_AT = re.compile(r"A\(\s*([0-9.]+)\s*([A-Za-zµμ]+)\s*\)")
_BAND = re.compile(r"A_(\w+(?:\(\w+\))?)")
_EXCESS = re.compile(r"E\(\s*(\w+(?:\(\w+\))?)\s*-\s*(\w+(?:\(\w+\))?)\s*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """An extinction, or the difference of two.

    ``terms`` are the passbands that are added and subtracted: a key of `WAVELENGTHS` or
    a wavelength [nm], and +1 or −1.
    """

    name: str
    terms: tuple[tuple[str | float, int], ...]

    @property
    def wavelengths(self) -> dict[str, float]:
        """Wavelength [nm] by passband."""
        return {
            f"A_{key}" if isinstance(key, str) else self.name: (
                WAVELENGTHS[key] if isinstance(key, str) else key
            )
            for key, _ in self.terms
        }


def parse_band(text: str) -> Band:
    """Understand ``A_V``, ``A_g(PS1)``, ``E(B-V)``, ``A(550 nm)``; the case matters.

    Raises
    ------
    InputError
        If it is none of these, or names a passband that is not known.
    """
    plain = text.strip().replace("−", "-").replace("–", "-")
    if found := _AT.fullmatch(plain):
        wavelength = _wavelength(found[1], found[2], text)
        name = f"A({wavelength:.10g} nm)"
        return Band(name=name, terms=((wavelength, 1),))
    if found := _BAND.fullmatch(plain):
        key = _known(found[1], text)
        return Band(name=f"A_{key}", terms=((key, 1),))
    if found := _EXCESS.fullmatch(plain):
        blue, red = (_known(part, text) for part in found.groups())
        if blue == red:
            raise InputError(f"{text!r} is the difference of a band with itself")
        return Band(name=f"E({blue}-{red})", terms=((blue, 1), (red, -1)))
    raise InputError(f"{text!r} is no extinction band: expected {_examples()}")


def _wavelength(number: str, unit: str, text: str) -> float:
    scale = _UNITS.get(unit, _UNITS.get(unit.lower()))
    try:
        value = float(number) * (scale or math.nan)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(
            f"{text!r} names no wavelength: expected a positive number with nm, um or "
            "angstrom, such as A(550 nm)"
        )
    # Without the last bits of 0.1 times angstroms.
    return float(f"{value:.10g}")


def _known(key: str, text: str) -> str:
    if key in WAVELENGTHS:
        return key
    similar = [k for k in WAVELENGTHS if k.split("(")[0].lower() == key.lower()]
    hint = f"do you mean {' or '.join(similar)}?" if similar else "there are "
    names = "" if similar else ", ".join(WAVELENGTHS)
    raise InputError(f"{text!r}: there is no band {key!r}, {hint}{names}")


def _examples() -> str:
    return "A_V, A_G, A_g(PS1), A_Ks, E(B-V), E(BP-RP), A(550 nm) or the like"
