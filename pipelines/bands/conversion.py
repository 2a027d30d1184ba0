"""Conversion from a catalogue's band of extinction to another one.

Mean, std and quantiles are all multiplied by the one factor ``a(target)/a(source)``,
with ``a = A/A(V)`` for a curve and R_V that are the same for all of the dust. No std
includes the factor's uncertainty, or how R_V varies from cloud to cloud.

- A_V is A(V), which normalises the curve: ``a = 1``, whatever the curve has at 545 nm.
- E(B−V) is A_V / R_V and A_B is A_V + E(B−V): that is how R_V is defined, and the
  curve is not used (at 438 nm G23 has 0.3% more than that, F99 0.6% less).
- Every other band is the curve at its wavelength in `pipelines.bands.passbands`, and
  every other colour excess the difference of its two bands.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import tomllib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipelines.bands.passbands import Band, parse_band
from pipelines.base.errors import InputError

_FILE = importlib.resources.files("pipelines.bands") / "curves.toml"
# Title and references of the curves, and of the package that computes them.
CURVES: dict[str, dict[str, Any]] = tomllib.loads(_FILE.read_text("utf-8"))
_PACKAGE = CURVES.pop("dust_extinction")
CURVE = "G23"
R_V = 3.1


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
        return [CURVES[self.curve], _PACKAGE] if self.package else []

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

    Raises
    ------
    InputError
        If a band or the curve is not known, the curve does not reach a band, R_V is
        out of its range, or an excess is not positive.
    """
    if curve not in CURVES:
        raise InputError(
            f"there is no extinction curve {curve!r}: there are {', '.join(CURVES)}"
        )
    if not r_v > 0:
        raise InputError(f"R_V must be positive, got {r_v:g}")
    start, end = parse_band(source), parse_band(target)
    defined = {"A_V": 1.0, "A_B": 1.0 + 1.0 / r_v}
    terms = () if start == end else (*start.terms, *end.terms)
    used = {name: nm for name, nm, _ in terms if name not in defined}
    ratios = defined | {
        name: _relative_extinction(nm, curve=curve, r_v=r_v)
        for name, nm in used.items()
    }
    factor = 1.0
    if terms:
        factor = _total(end, ratios, curve) / _total(start, ratios, curve)
    package = "dust_extinction"
    return Conversion(
        source=start.name,
        target=end.name,
        factor=factor,
        curve=curve if used else "",
        r_v=float(r_v),
        wavelengths=used,
        package=f"{package} {importlib.metadata.version(package)}" if used else "",
    )


def _total(band: Band, ratios: dict[str, float], curve: str) -> float:
    """Return ``a`` of a band from those of its passbands."""
    total = sum(sign * ratios[name] for name, _, sign in band.terms)
    if not total > 0:
        raise InputError(
            f"{band.name} is {total:.3g} A_V by the curve {curve}: write an excess as "
            "that of the bluer band over the redder one"
        )
    return total


def _relative_extinction(wavelength: float, *, curve: str, r_v: float) -> float:
    """Return A(λ)/A(V) at a wavelength [nm] of vacuum."""
    try:
        from dust_extinction import parameter_averages
    except ImportError:
        raise InputError(
            "extinction curves need the package dust_extinction: pip install "
            "'dustmap[bands]'"
        ) from None
    from astropy import units

    made = getattr(parameter_averages, curve)
    low, high = made.Rv_range
    if not low <= r_v <= high:
        raise InputError(
            f"the curve {curve} is made for R_V of {low:g} to {high:g}, got {r_v:g}"
        )
    low, high = (1e3 / number for number in made.x_range[::-1])
    if not low <= wavelength <= high:
        raise InputError(
            f"the curve {curve} reaches from {low:.4g} to {high:.4g} nm: there is no "
            f"extinction at {wavelength:g} nm; G23 reaches furthest"
        )
    return float(made(Rv=r_v)(np.array([1e3 / wavelength]) / units.micron)[0])
