"""The configuration of ``dustmap simulate``, and what only Python can change of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from pipelines.config.base import (
    MOST_POINTS,
    Count,
    NonNegative,
    Positive,
    Seed,
    Settings,
)

Fraction = Annotated[float, Field(ge=0, lt=1)]


class TruthConfig(Settings):
    """The box of the galaxy around the Sun, and its resolution."""

    half_x: Positive = 2000.0
    """half the box along x [pc]"""
    half_y: Positive = 2000.0
    """half the box along y [pc]"""
    half_z: Positive = 400.0
    """half the box along z [pc]"""
    spacing: Positive = 20.0
    """spacing of the density's grid points [pc]; rounded so that they reach the box's
    faces"""
    levels: Annotated[int, Field(ge=1, le=8)] = 1
    """nested grids: each has half the spacing and half the extent of the one around
    it"""

    def conflicts(self) -> Iterator[str]:
        """Yield grids of too many points, and sides of under two grid steps."""
        sides = (self.half_x, self.half_y, self.half_z)
        if (points := math.prod(2 * s / self.spacing + 1 for s in sides)) > MOST_POINTS:
            yield f"a grid of {points:.3g} points is too large: raise spacing"
        for name in ("half_x", "half_y", "half_z"):
            if getattr(self, name) < 2 * self.spacing:
                yield (
                    f"{name} = {getattr(self, name):g} is under two of spacing = "
                    f"{self.spacing:g}: widen the box or lower spacing"
                )


class DustConfig(Settings):
    """The density of the dust: disc x turbulence x cavities + clouds."""

    density: Positive = 1.2e-3
    """mean A_V density at the Sun's place in the plane [mag/pc]"""
    sun_height: float = 20.0
    """height of the Sun over the plane [pc]"""
    turbulence: Annotated[float, Field(ge=0, le=3)] = 1.0
    """standard deviation of the logarithm of the density"""
    correlation_length: Positive = 150.0
    """outer scale of the turbulence [pc]"""
    clouds: Annotated[int, Field(ge=0)] = 60
    """clouds in the box, half of them filaments"""
    cavities: Annotated[int, Field(ge=0)] = 15
    """cavities in the box, the first one around the Sun"""


class ErrorConfig(Settings):
    """The errors of measurements."""

    extinction: Positive = 0.05
    """median error of the extinction, at the median star [mag]"""
    parallax: NonNegative = 0.01
    """error of the parallax [mas]"""
    outliers: Fraction = 0.0
    """fraction of the stars whose extinction scatters by 20 of its stated errors"""


class SimulateConfig(Settings):
    """Settings of a mock galaxy."""

    stars: Count = 60_000
    """stars in the catalogue"""
    seed: Seed = 0
    """seed of every random draw; the same seed, the same files"""
    truth: TruthConfig = TruthConfig()
    dust: DustConfig = DustConfig()
    errors: ErrorConfig = ErrorConfig()

    def conflicts(self) -> Iterator[str]:
        """Yield structure below the resolution of the grid."""
        spacing = self.truth.spacing
        if self.dust.turbulence and self.dust.correlation_length < 2 * spacing:
            yield (
                f"dust.correlation_length = {self.dust.correlation_length:g} cannot be "
                f"resolved with truth.spacing = {spacing:g}: use at least twice it"
            )


class Galaxy(Settings):
    """The dust's and the stars' exponential discs, the survey and its errors.

    They are arguments of `pipelines.simulate.simulate`, not keys.
    """

    dust_scale_height: Positive = 100.0
    """scale height of the dust [pc]"""
    dust_scale_length: Positive = 4000.0
    """scale length of the dust [pc]"""
    slope: Annotated[float, Field(gt=3, le=11)] = 11 / 3
    """negative slope of the turbulence's power spectrum; 11/3 for Kolmogorov"""
    stirring: Annotated[float, Field(ge=0, le=1)] = 0.5
    """smooth random displacement that stretches the turbulence into wisps, in
    correlation lengths; 0 for a Gaussian field"""
    star_scale_height: Positive = 300.0
    """scale height of the stars [pc]"""
    star_scale_length: Positive = 2600.0
    """scale length of the stars [pc]"""
    magnitude_limit: float = 15.0
    """faintest apparent magnitude, dust included [mag]"""
    dimming: NonNegative = 0.84
    """extinction in the survey's band per A_V"""
    complete_within: Positive | None = None
    """distance d [pc] to which every star is observed; beyond it a share (d/r)^3, so
    that shells from r to 2r have similar numbers of stars; no limit if ``None``"""
    scatter: NonNegative = 0.3
    """standard deviation of the logarithm of the extinction's errors"""
    growth: NonNegative = 0.1
    """increase of the extinction's error per magnitude [dex/mag]"""
    parallax_over_error: Positive = 5.0
    """smallest signal-to-noise of the parallax of observed stars"""
