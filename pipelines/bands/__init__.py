"""Bands of extinction, and conversions between them.

A broad band is not monochromatic: how much it is dimmed depends on the star's colour
and on the extinction itself, by some per cent in the optical and by up to about 10% in
Gaia's wide G. Here every band is its one wavelength in ``passbands.toml``, which the
converted file names; who needs better integrates a spectrum.

Mean, std and quantiles are all multiplied by the one factor ``a(target)/a(source)``,
with ``a = A/A(V)`` for a curve and R_V that are the same for all of the dust. No std
includes the factor's uncertainty, or how R_V varies from cloud to cloud.

- A_V is A(V), which normalises the curve: ``a = 1``, whatever the curve has at 545 nm.
- E(B−V) is A_V / R_V and A_B is A_V + E(B−V): that is how R_V is defined, and the
  curve is not used (at 438 nm G23 has 0.3% more than that, F99 0.6% less).
- Scales of reddening, such as E(B-V)_SFD, have the factors to A_V of their papers
  (``scales.toml``), whatever curve and R_V are.
- Every other band is the curve at its wavelength, and every other colour excess the
  difference of its two bands.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import math
import re
import tomllib
import unicodedata
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from astropy import units

from pipelines.base.errors import InputError

_FILES = importlib.resources.files("pipelines.bands")
_PASSBANDS = tomllib.loads((_FILES / "passbands.toml").read_text("utf-8"))
WAVELENGTHS: dict[str, float] = {
    key: nm for published in _PASSBANDS.values() for key, nm in published.items()
}
"""Wavelength [nm] of each passband."""
CURVES: dict[str, dict[str, Any]] = tomllib.loads(
    (_FILES / "curves.toml").read_text("utf-8")
)
"""Title and references of the curves."""
_PACKAGE = CURVES.pop("dust_extinction")
SCALES: dict[str, dict[str, Any]] = tomllib.loads(
    (_FILES / "scales.toml").read_text("utf-8")
)
"""Scales of reddening: A_V in units of each, title and references."""
CURVE = "G23"
R_V = 3.1
UNKNOWN = "as in the catalogue"
_SEPARATOR = "; "
_STATED_AT = re.compile(r"A_\w+ at ([0-9.]+) ?nm")
_NAMES = ", ".join(WAVELENGTHS)
_AT = re.compile(r"A\(\s*([0-9.]+\s*[A-Za-zµμ]+)\s*\)")
_BAND = re.compile(r"A_?(\w+(?:\(\w+\))?)|A\(\s*(\w+(?:\(\w+\))?)\s*\)")
_EXCESS = re.compile(r"E\(\s*(\w+(?:\(\w+\))?)\s*-\s*(\w+(?:\(\w+\))?)\s*\)")
# Gaia's BP and RP are also written GBP or G_BP.
_GAIA = re.compile(r"(?<![A-Za-z])G_?(?=[BR]P(?![A-Za-z]))")


@dataclass(frozen=True, slots=True)
class Band:
    """An extinction, or the difference of two.

    ``terms`` are added up: name, wavelength [nm], and +1 or −1. The wavelength of a
    scale of reddening (`SCALES`) is NaN.
    """

    name: str
    terms: tuple[tuple[str, float, int], ...]


def parse_band(text: str) -> Band:
    """Understand ``A_V``, ``A_g(PS1)``, ``E(B-V)``, ``A(550 nm)``; the case matters.

    Scales of reddening are ``E(B-V)_SFD``, ``E(B-V)_Bayestar`` and ``E_ZGR23``.

    Other spellings are ``AV`` and ``A(V)``, ``E(GBP-GRP)`` and ``E(G_BP-G_RP)``, with
    any dash for the minus sign; all have one ``name``: ``E(BP-RP)``.

    Raises `InputError` if it is none of these, or names a passband that is not known.
    """
    dashes = {c: "-" for c in text if c == "−" or unicodedata.category(c) == "Pd"}
    plain = _GAIA.sub("", text.strip().translate(str.maketrans(dashes)))
    if plain in SCALES:
        return Band(plain, ((plain, math.nan, 1),))
    if found := _AT.fullmatch(plain):
        try:
            wavelength: Any = units.Quantity(found[1]).to_value(units.nm)
        except (TypeError, units.UnitConversionError):
            wavelength = 0.0
        if not wavelength > 0:
            raise InputError(f"{text!r} names no wavelength: expected e.g. A(550 nm)")
        # Without the last bits of 0.1 times angstroms.
        wavelength = float(f"{wavelength:.10g}")
        name = f"A({wavelength:.10g} nm)"
        return Band(name, ((name, wavelength, 1),))
    if found := _BAND.fullmatch(plain) or _EXCESS.fullmatch(plain):
        keys = [key for key in found.groups() if key]
        for key in (key for key in keys if key not in WAVELENGTHS):
            near = [k for k in WAVELENGTHS if k.split("(")[0].lower() == key.lower()]
            hint = (
                f"do you mean {' or '.join(near)}?" if near else f"there are {_NAMES}"
            )
            raise InputError(f"{text!r}: there is no band {key!r}, {hint}")
        signs = zip(keys, (1, -1))
        terms = tuple((f"A_{key}", WAVELENGTHS[key], sign) for key, sign in signs)
        if len(keys) == 1:
            return Band(terms[0][0], terms)
        if keys[0] == keys[1]:
            raise InputError(f"{text!r} is the difference of a band with itself")
        return Band(f"E({keys[0]}-{keys[1]})", terms)
    raise InputError(
        f"{text!r} is not an extinction band: expected A_ and one of {_NAMES}, such as "
        f"A_V; the excess of two, such as E(B-V) or E(BP-RP); {', '.join(SCALES)}; or "
        "A(550 nm)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """``target = factor · source``, and the origin of the factor.

    ``wavelengths`` [nm] are those at which the curve was read, by band; ``curve`` and
    ``package`` are empty where R_V alone was needed.
    """

    source: str
    target: str
    factor: float
    curve: str
    r_v: float
    wavelengths: dict[str, float]
    package: str

    @property
    def cited(self) -> list[dict[str, Any]]:
        """Title and references of the works that it rests on."""
        scales = [SCALES[n] for n in (self.source, self.target) if n in SCALES]
        return scales + ([CURVES[self.curve], _PACKAGE] if self.package else [])

    def as_dict(self) -> dict[str, Any]:
        """Return it as a file has it."""
        return {**asdict(self), "wavelength_unit": "nm"}

    def summary(self) -> str:
        """Describe it in one line for people."""
        if self.source == self.target:
            return f"extinction is taken to be {self.source}, and left as it is"
        at = [f"{band} at {nm:g} nm" for band, nm in self.wavelengths.items()]
        curve = [f"{self.curve} of {self.package}"] if self.package else []
        grounds = ", ".join([*curve, f"R_V = {self.r_v:g}", *at])
        return f"{self.target} = {self.factor:.5g} {self.source} ({grounds})"


def factor(source: str, target: str, *, curve: str = CURVE, r_v: float = R_V) -> float:
    """Return ``target / source``: 1/3.1 from ``A_V`` to ``E(B-V)``."""
    return conversion(source, target, curve=curve, r_v=r_v).factor


def conversion(
    source: str, target: str, *, curve: str = CURVE, r_v: float = R_V
) -> Conversion:
    """Find the conversion from one extinction to another.

    Raises `InputError` if a band or the curve is not known, the curve does not reach a
    band, R_V is out of its range, or an excess is not positive.
    """
    if curve not in CURVES:
        raise InputError(
            f"there is no extinction curve {curve!r}: there are {', '.join(CURVES)}"
        )
    if not r_v > 0:
        raise InputError(f"R_V must be positive, got {r_v:g}")
    start, end = parse_band(source), parse_band(target)
    ratios = {"A_V": 1.0, "A_B": 1.0 + 1.0 / r_v}
    ratios |= {name: 1 / scale["a_v"] for name, scale in SCALES.items()}
    used: dict[str, float] = {}
    totals = []
    for band in (start, end) if start != end else ():
        for name, nm, _ in band.terms:
            if name not in ratios:
                used[name] = nm
                ratios[name] = _relative_extinction(nm, curve=curve, r_v=r_v)
        totals.append(sum(sign * ratios[name] for name, _, sign in band.terms))
        if not totals[-1] > 0:
            raise InputError(f"{band.name} is not positive: put the bluer band first")
    package = "dust_extinction"
    return Conversion(
        source=start.name,
        target=end.name,
        factor=totals[1] / totals[0] if totals else 1.0,
        curve=curve if used else "",
        r_v=float(r_v),
        wavelengths=used,
        package=f"{package} {importlib.metadata.version(package)}" if used else "",
    )


def _relative_extinction(wavelength: float, *, curve: str, r_v: float) -> float:
    """Return A(λ)/A(V) at a wavelength [nm] of vacuum."""
    try:
        from dust_extinction import parameter_averages
    except ImportError:
        raise InputError("curves need: pip install 'dustmap[bands]'") from None
    made = getattr(parameter_averages, curve)
    low, high = made.Rv_range
    if not low <= r_v <= high:
        raise InputError(
            f"the curve {curve} is made for R_V of {low:g} to {high:g}, got {r_v:g}"
        )
    low, high = (1e3 / number for number in made.x_range[::-1])
    if not low <= wavelength <= high:
        raise InputError(
            f"{curve} reaches from {low:.4g} to {high:.4g} nm, not {wavelength:g} nm"
        )
    return float(made(Rv=r_v)(np.array([1e3 / wavelength]) / units.micron)[0])


def joined_bands(bands: list[str]) -> str:
    """Join the bands of several catalogues in one line; an empty one is not known."""
    return _SEPARATOR.join(sorted({band or UNKNOWN for band in bands})) or UNKNOWN


def known_band(stated: str) -> str:
    """Return the name of the one band that is stated; empty if none is known."""
    # Text after a comma explains: "A_0, monochromatic at 541.4 nm".
    plain = stated if _SEPARATOR in stated else stated.split(", ")[0]
    if found := _STATED_AT.fullmatch(plain):
        plain = f"A({found[1]} nm)"
    try:
        return parse_band(plain).name
    except InputError:
        return ""


def source_band(
    stated: str, declared: str | None = None, *, of: str = "the map"
) -> str:
    """Return the band of a catalogue or a map, as it states or the user declares.

    Raises `InputError` if neither does, one is not understood, or they contradict each
    other.
    """
    known = known_band(stated)
    named = known if declared is None else parse_band(declared).name
    if not named:
        reason = "not stated" if stated in ("", UNKNOWN) else f"stated as {stated!r}"
        raise InputError(
            f"the band of {of} is {reason}: state it, e.g. --declare-band A_V"
        )
    if known and known != named:
        raise InputError(
            f"the extinctions of {of} are {known}, not {named} as --declare-band says: "
            f"--band {named} converts them"
        )
    return named


def wanted_conversion(
    stated: str,
    band: str | None,
    declared: str | None,
    *,
    curve: str | None = None,
    r_v: float | None = None,
) -> Conversion | None:
    """Find the conversion from a product's ``stated`` band to ``band``, if named.

    ``declared`` is the product's own band where none is stated.

    Raises `InputError` if the product's band is not known or another than declared, or
    the conversion is impossible.
    """
    if band is None and (curve, r_v) != (None, None):
        raise InputError("--curve and --r-v convert to another band: add --band")
    if band is None and declared is None:
        return None
    source = source_band(stated, declared)
    r_v = R_V if r_v is None else r_v
    return conversion(source, band or source, curve=curve or CURVE, r_v=r_v)
