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
    that divide the samples, ``foreseen`` memory and work, ``single_precision`` products
    in float32.
    """

    densities: tuple[DensityKind, ...]
    outliers: bool = True
    shared_errors: bool = True
    teams: bool = True
    foreseen: bool = True
    single_precision: bool = True


ABILITIES: dict[EngineName, Abilities] = {
    "full-batch": Abilities(densities=("lognormal", "gaussian")),
    "svi": Abilities(
        densities=("gaussian",),
        outliers=False,
        shared_errors=False,
        teams=False,
        foreseen=False,
        single_precision=False,
    ),
}
