"""Extinction curves of ``dust_extinction``: A(λ)/A(V) for a given R_V."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import tomllib

import numpy as np

from pipelines.base.errors import InputError

_FILE = importlib.resources.files("pipelines.bands") / "curves.toml"
# Reference, title and DOI of each.
CURVES: dict[str, dict[str, str]] = tomllib.loads(_FILE.read_text("utf-8"))
PACKAGE = {
    "reference": "Gordon 2024, JOSS 9, 7023",
    "title": "dust_extinction: Interstellar Dust Extinction Models",
    "doi": "10.21105/joss.07023",
}


def relative_extinction(wavelength: float, *, curve: str, r_v: float) -> float:
    """A(λ)/A(V) at a wavelength [nm] of vacuum.

    Raises
    ------
    InputError
        If the curve does not reach the wavelength or R_V, or the package is not
        installed.
    """
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


def check_curve(curve: str) -> None:
    """Raise an `InputError` that lists the curves if it is none of them."""
    if curve not in CURVES:
        raise InputError(
            f"there is no extinction curve {curve!r}: there are {', '.join(CURVES)}"
        )


def package_version() -> str:
    """Name and version of what the curves come from."""
    return f"dust_extinction {importlib.metadata.version('dust_extinction')}"
