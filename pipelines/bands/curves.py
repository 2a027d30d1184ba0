"""Extinction curves of ``dust_extinction``: A(λ)/A(V) for a given R_V."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

import numpy as np

from pipelines.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Where a curve was published; ``doi`` may be empty."""

    reference: str
    title: str
    doi: str


CURVES = {
    "G23": Curve(
        reference="Gordon et al. 2023, ApJ 950, 86",
        title="One Relation for All Wavelengths: The Far-ultraviolet to Mid-infrared "
        "Milky Way Spectroscopic R(V)-dependent Dust Extinction Relationship",
        doi="10.3847/1538-4357/accb59",
    ),
    "F19": Curve(
        reference="Fitzpatrick et al. 2019, ApJ 886, 108",
        title="An Analysis of the Shapes of Interstellar Extinction Curves. VII. Milky "
        "Way Spectrophotometric Optical-through-ultraviolet Extinction and Its "
        "R-dependence",
        doi="10.3847/1538-4357/ab4c3a",
    ),
    "F99": Curve(
        reference="Fitzpatrick 1999, PASP 111, 63",
        title="Correcting for the Effects of Interstellar Extinction",
        doi="10.1086/316293",
    ),
    "F04": Curve(
        reference="Fitzpatrick 2004, ASPC 309, 33",
        title="Interstellar Extinction in the Milky Way Galaxy",
        doi="",
    ),
    "CCM89": Curve(
        reference="Cardelli & Clayton & Mathis 1989, ApJ 345, 245",
        title="The Relationship between Infrared, Optical, and Ultraviolet Extinction",
        doi="10.1086/167900",
    ),
    "O94": Curve(
        reference="O'Donnell 1994, ApJ 422, 158",
        title="R_v-dependent Optical and Near-Ultraviolet Extinction",
        doi="10.1086/173713",
    ),
    "M14": Curve(
        reference="Maíz Apellániz et al. 2014, A&A 564, A63",
        title="The VLT-FLAMES Tarantula Survey. XVI. The optical and NIR extinction "
        "laws in 30 Doradus and the photometric determination of the effective "
        "temperatures of OB stars",
        doi="10.1051/0004-6361/201423439",
    ),
}
PACKAGE = Curve(
    reference="Gordon 2024, JOSS 9, 7023",
    title="dust_extinction: Interstellar Dust Extinction Models",
    doi="10.21105/joss.07023",
)


def relative_extinction(wavelength: float, *, curve: str, r_v: float) -> float:
    """A(λ)/A(V) at a wavelength [nm] of vacuum.

    Raises
    ------
    InputError
        If there is no such curve, it does not reach the wavelength or R_V, or the
        package is not installed.
    """
    check_curve(curve)
    try:
        from dust_extinction import parameter_averages
    except ImportError:
        raise InputError(
            "extinction curves need the package dust_extinction: pip install "
            "'dustmap[bands]'"
        ) from None
    made = getattr(parameter_averages, curve)
    low, high = made.Rv_range
    if not low <= r_v <= high:
        raise InputError(
            f"the curve {curve} is made for R_V of {low:g} to {high:g}, got {r_v:g}"
        )
    number = 1e3 / wavelength
    low, high = made.x_range
    if not low <= number <= high:
        raise InputError(
            f"the curve {curve} reaches from {1e3 / high:.4g} to {1e3 / low:.4g} nm: "
            f"there is no extinction at {wavelength:g} nm; G23 reaches furthest"
        )
    from astropy import units

    values = made(Rv=r_v)(np.array([number]) / units.micron)
    return float(values[0])


def check_curve(curve: str) -> None:
    """Raise an `InputError` that lists the curves if it is none of them."""
    if curve not in CURVES:
        raise InputError(
            f"there is no extinction curve {curve!r}: there are {', '.join(CURVES)}"
        )


def package_version() -> str:
    """Name and version of what the curves come from."""
    return f"dust_extinction {importlib.metadata.version('dust_extinction')}"
