"""The engines of inference: what each one offers, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DensityKind = Literal["lognormal", "gaussian"]
EngineName = Literal["full-batch", "svi"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What an engine offers.

    ``densities`` begin with the default; ``outliers`` are Student-T tails of the noise,
    ``shared_errors`` those of a survey or of neighbouring stars, ``teams`` processes
    that divide the samples, ``time_limit`` an end within ``budget.minutes``,
    ``foreseen`` memory and time, ``single_precision`` products in float32. With
    ``cheap_integrals`` a product gives the integrals to any number of places; without,
    each takes a solve.
    """

    densities: tuple[DensityKind, ...]
    outliers: bool
    shared_errors: bool
    teams: bool
    time_limit: bool
    foreseen: bool
    single_precision: bool
    cheap_integrals: bool


ABILITIES: dict[EngineName, Abilities] = {
    "full-batch": Abilities(
        densities=("lognormal", "gaussian"),
        outliers=True,
        shared_errors=True,
        teams=True,
        time_limit=True,
        foreseen=True,
        single_precision=True,
        cheap_integrals=True,
    ),
    "svi": Abilities(
        densities=("gaussian",),
        outliers=False,
        shared_errors=False,
        teams=False,
        time_limit=False,
        foreseen=False,
        single_precision=False,
        cheap_integrals=False,
    ),
}
