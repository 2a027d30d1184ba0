"""Bands of extinction, and conversions between them.

A star with the spectrum F of a black body of 5800 K, nearly the Sun's, is dimmed in a
passband of response T per energy, by a curve k = A(λ)/A(V) of one R_V, by

    A = -2.5 log10(∫ F T 10^(-0.4 A_V k) dλ / ∫ F T dλ)

Mean, std and quantiles are all multiplied by the one factor ``A(target)/A(source)`` at
A_V = 1 mag or as asked; no std includes how it changes with A_V, star and R_V.

- A_V is A(V), which normalises the curve, whatever this has at 545 nm.
- E(B−V) is A_V / R_V and A_B is A_V + E(B−V): that is how R_V is defined, and the
  curve is not used (at 438 nm G23 has 0.3% more than that, F99 0.6% less).
- A_0 and A(550 nm) are monochromatic: the curve itself.
- Scales of reddening, such as E(B-V)_SFD, have the factors to A_V of their papers
  (``scales.toml``), whatever curve and R_V are.
- Every other colour excess is the difference of its two bands.
"""

from __future__ import annotations

import importlib.resources
import re
import tomllib
import unicodedata
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from astropy import units

from pipelines.base.errors import InputError

_FILES = importlib.resources.files("pipelines.bands")


def _read(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((_FILES / f"{name}.toml").read_text("utf-8"))


CURVES = _read("curves")
"""Title and references of the curves."""
SCALES = _read("scales")
"""Scales of reddening: A_V in units of each, title and references."""
PASSBANDS: dict[str, tuple[str, np.ndarray, np.ndarray]] = {
    key: (origin, np.array(rule[0]), np.array(rule[1]))
    for origin, published in _read("passbands").items()
    for key, rule in published.items()
}
"""Origin, nodes [nm] and weights of each passband."""
_PACKAGE = CURVES.pop("dust_extinction")
CURVE = "G23"
R_V = 3.1
_RANGE = (1e-12, 5.0)  # of A_V [mag] in `factor_range`; the first is 0 in all digits
_HC_K = 1.438776877e7  # second constant of radiation, h c / k [nm K], CODATA 2018
_MOST_AV = 100.0  # nodes were compared with fine integrals so far: 0.06%, u(SDSS) 0.3%
UNKNOWN = "as in the catalogue"
_SEPARATOR = "; "
_STATED_AT = re.compile(r"A_\w+ at ([0-9.]+) ?nm")
_NAMES = ", ".join(PASSBANDS)
_AT = re.compile(r"A\(\s*([0-9.]+\s*[A-Za-zµμ]+)\s*\)")
_BAND = re.compile(r"A_?(\w+(?:\(\w+\))?)|A\(\s*(\w+(?:\(\w+\))?)\s*\)")
_EXCESS = re.compile(r"E\(\s*(\w+(?:\(\w+\))?)\s*-\s*(\w+(?:\(\w+\))?)\s*\)")
# Gaia's BP and RP are also written GBP or G_BP.
_GAIA = re.compile(r"(?<![A-Za-z])G_?(?=[BR]P(?![A-Za-z]))")


@dataclass(frozen=True, slots=True)
class Band:
    """An extinction, or the difference of two: the sum of ``terms``, with signs."""

    name: str
    terms: tuple[tuple[str, int], ...]


def parse_band(text: str) -> Band:
    """Understand ``A_V``, ``A_g(PS1)``, ``E(B-V)``, ``A(550 nm)``; the case matters.

    Scales of reddening are ``E(B-V)_SFD``, ``E(B-V)_Bayestar`` and ``E_ZGR23``. Other
    spellings are ``AV`` and ``A(V)``, ``E(GBP-GRP)`` and ``E(G_BP-G_RP)``, with any
    dash for the minus sign; all have one ``name``: ``E(BP-RP)``.

    Raises `InputError` if it is none of these, or names a passband that is not known.
    """
    dashes = {c: "-" for c in text if c == "−" or unicodedata.category(c) == "Pd"}
    plain = _GAIA.sub("", text.strip().translate(str.maketrans(dashes)))
    if plain in SCALES:
        return Band(plain, ((plain, 1),))
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
        return Band(name, ((name, 1),))
    if found := _BAND.fullmatch(plain) or _EXCESS.fullmatch(plain):
        keys = [key for key in found.groups() if key]
        for key in (key for key in keys if key not in PASSBANDS):
            near = [k for k in PASSBANDS if k.split("(")[0].lower() == key.lower()]
            hint = f"do you mean {' or '.join(near)}?" if near else f"of {_NAMES}"
            raise InputError(f"{text!r}: there is no band {key!r}, {hint}")
        terms = tuple((f"A_{key}", sign) for key, sign in zip(keys, (1, -1)))
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

    It holds at A_V = ``at_av`` [mag] for a star of ``temperature`` [K];
    ``factor_range`` has it at 0 and 5 mag. ``passbands`` are the origins of all that
    are integrated; without any, ``curve`` and ``package`` are empty.
    """

    source: str
    target: str
    factor: float
    factor_range: list[float]
    at_av: float
    curve: str
    r_v: float
    temperature: float
    passbands: dict[str, str]
    package: str

    @property
    def cited(self) -> list[dict[str, Any]]:
        """Title and references of the works that it rests on."""
        scales = [SCALES[n] for n in (self.source, self.target) if n in SCALES]
        return scales + ([CURVES[self.curve], _PACKAGE] if self.package else [])

    def as_dict(self) -> dict[str, Any]:
        """Return it as a file has it."""
        return {**asdict(self), "at_av_unit": "mag", "temperature_unit": "K"}

    def summary(self) -> str:
        """Describe it in one line for people."""
        if self.source == self.target:
            return f"extinction is taken to be {self.source}, and left as it is"
        low, high = self.factor_range
        curve = f"{self.curve} of {self.package}, " if self.package else ""
        here = star = ""
        if low != high:
            here = (
                f" at A_V = {self.at_av:g} mag, {low:.4g} at 0 and {high:.4g} at 5 mag"
            )
            star = f", {self.temperature:g} K through {', '.join(self.passbands)}"
        factor = f"{self.factor:.5g} {self.source}{here}"
        return f"{self.target} = {factor} ({curve}R_V = {self.r_v:g}{star})"


def factor(source: str, target: str, **given: Any) -> float:
    """Return ``target / source``: 1/3.1 from ``A_V`` to ``E(B-V)`` (`conversion`)."""
    return conversion(source, target, **given).factor


def conversion(
    source: str,
    target: str,
    *,
    curve: str = CURVE,
    r_v: float = R_V,
    at_av: float = 1.0,
    temperature: float = 5800.0,
) -> Conversion:
    """Find the conversion from one extinction to another, at A_V = ``at_av`` [mag].

    Raises `InputError` if a band or the curve is not known, the curve does not reach a
    band, R_V is out of its range, or an excess is not positive.
    """
    if curve not in CURVES:
        raise InputError(f"there is no curve {curve!r}: there are {', '.join(CURVES)}")
    if not (r_v > 0 and temperature > 0):
        raise InputError(f"R_V and K must be positive, got {r_v:g}, {temperature:g}")
    if not 0 <= at_av <= _MOST_AV:
        raise InputError(f"--at-av must be 0 to {_MOST_AV:g} mag, got {at_av:g}")
    start, end = parse_band(source), parse_band(target)
    a_v = np.maximum([at_av, *_RANGE], _RANGE[0])
    ratios: dict[str, Any] = {"A_V": 1.0, "A_B": 1.0 + 1.0 / r_v}
    ratios |= {name: 1 / scale["a_v"] for name, scale in SCALES.items()}
    used: dict[str, str] = {}
    factors = np.ones(3)
    for band, power in ((start, -1), (end, 1)) if start != end else ():
        for name in (name for name, _ in band.terms if name not in ratios):
            if name.startswith("A("):
                used[name], nodes, weights = "", np.array([float(name[2:-4])]), 1.0
            else:
                used[name], nodes, weights = PASSBANDS[name[2:]]
            light = weights * nodes**-5.0 / np.expm1(_HC_K / nodes / temperature)
            along = _curve(nodes, curve=curve, r_v=r_v)
            ratios[name] = _dimmed(light / light.sum(), along, a_v)
        total = np.array(sum(sign * ratios[name] for name, sign in band.terms))
        if not (total > 0).all():
            raise InputError(f"{band.name} is not positive: put the bluer band first")
        factors *= total**power
    return Conversion(
        source=start.name,
        target=end.name,
        factor=float(factors[0]),
        factor_range=factors[1:].tolist(),
        at_av=float(at_av),
        curve=curve if used else "",
        r_v=float(r_v),
        temperature=float(temperature),
        passbands=used,
        package=f"dust_extinction {version('dust_extinction')}" if used else "",
    )


def _dimmed(shares: np.ndarray, curve: np.ndarray, a_v: np.ndarray) -> np.ndarray:
    """Return the extinction over A_V (s,) of light with ``shares`` at nodes (n,)."""
    # Above the least, so that small and large extinctions keep their digits.
    depth, least = -0.4 * np.log(10) * a_v, curve.min()
    return least + np.log1p(np.expm1(np.outer(depth, curve - least)) @ shares) / depth


def _curve(wavelengths: np.ndarray, *, curve: str, r_v: float) -> np.ndarray:
    """Return A(λ)/A(V) at ascending wavelengths [nm] of vacuum."""
    try:
        from dust_extinction import parameter_averages
    except ImportError:
        raise InputError("curves need: pip install 'dustmap[bands]'") from None
    made = getattr(parameter_averages, curve)
    low, high = made.Rv_range
    if not low <= r_v <= high:
        raise InputError(f"{curve} is for R_V of {low:g} to {high:g}, got {r_v:g}")
    low, high = (1e3 / number for number in made.x_range[::-1])
    if not low <= wavelengths[0] <= wavelengths[-1] <= high:
        ends = f"{wavelengths[0]:g} to {wavelengths[-1]:g} nm"
        raise InputError(f"{curve} reaches from {low:.4g} to {high:.4g} nm, not {ends}")
    return np.asarray(made(Rv=r_v)(1e3 / wavelengths / units.micron))


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
    stated: str, band: str | None, declared: str | None, **by: Any
) -> Conversion | None:
    """Find the conversion from a product's ``stated`` band to ``band``, if named.

    ``declared`` is the product's own band where none is stated; ``by`` are ``curve``,
    ``r_v`` and ``at_av``, or None.

    Raises `InputError` if the product's band is not known or another than declared, or
    the conversion is impossible.
    """
    given = {name: value for name, value in by.items() if value is not None}
    if band is None and given:
        raise InputError("--curve, --r-v and --at-av convert: add --band")
    if band is None and declared is None:
        return None
    source = source_band(stated, declared)
    return conversion(source, band or source, **given)
