"""The configuration of ``dustmap simulate``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pipelines.config.base import Auto, Interval, NonNegative, Positive, Settings

Fraction = Annotated[float, Field(ge=0, lt=1)]


class TruthConfig(Settings):
    """The box around the Sun in which the galaxy is made, and its resolution."""

    half_x: Positive = Field(default=2000.0, description="half the box along x [pc]")
    half_y: Positive = Field(default=2000.0, description="half the box along y [pc]")
    half_z: Positive = Field(default=400.0, description="half the box along z [pc]")
    spacing: Positive = Field(
        default=20.0,
        description="distance of the density's grid points [pc]; rounded so that "
        "they reach the box's faces",
    )

    @model_validator(mode="after")
    def _check(self) -> TruthConfig:
        for name in ("half_x", "half_y", "half_z"):
            if getattr(self, name) < 2 * self.spacing:
                raise ValueError(
                    f"{name} = {getattr(self, name):g} is under two of spacing = "
                    f"{self.spacing:g}: widen the box or lower spacing"
                )
        return self


class DustConfig(Settings):
    """The density of the dust: disc x turbulence x cavities + clouds."""

    density: Positive = Field(
        default=1.2e-3,
        description="mean A_V density at the Sun's place in the plane [mag/pc]",
    )
    scale_height: Positive = Field(
        default=100.0, description="scale height of the exponential disc [pc]"
    )
    scale_length: Positive = Field(
        default=4000.0, description="scale length of the exponential disc [pc]"
    )
    centre_distance: Positive = Field(
        default=8200.0, description="distance to the Galactic centre [pc]"
    )
    sun_height: float = Field(
        default=20.0, description="height of the Sun over the plane [pc]"
    )
    turbulence: Annotated[float, Field(ge=0, le=3)] = Field(
        default=1.0, description="standard deviation of the logarithm of the density"
    )
    correlation_length: Positive = Field(
        default=150.0, description="outer scale of the turbulence [pc]"
    )
    slope: Annotated[float, Field(gt=3, le=11)] = Field(
        default=11 / 3,
        description="fall of the turbulence's power spectrum; 11/3 Kolmogorov",
    )
    stirring: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5,
        description="smooth random displacement that draws the turbulence out into "
        "wisps, in correlation lengths; 0 leaves it Gaussian",
    )
    clouds: Annotated[int, Field(ge=0)] = Field(
        default=60, description="clouds in the box, half of them filaments"
    )
    cloud_radius: Auto[Interval] = Field(
        default=None,
        description="least and largest standard deviation of a cloud's profile [pc]; "
        "1 to 2.5 of truth.spacing when auto",
    )
    cloud_extinction: Positive = Field(
        default=0.8, description="median A_V through the middle of a cloud [mag]"
    )
    cavities: Annotated[int, Field(ge=0)] = Field(
        default=15, description="cavities in the box, the first one around the Sun"
    )
    cavity_radius: Auto[Interval] = Field(
        default=None,
        description="least and largest radius of a cavity [pc]; 5 to 12 of "
        "truth.spacing when auto",
    )


class TracerConfig(Settings):
    """The stars: an exponential disc seen down to a limiting magnitude."""

    scale_height: Positive = Field(
        default=300.0, description="scale height of the exponential disc [pc]"
    )
    scale_length: Positive = Field(
        default=2600.0, description="scale length of the exponential disc [pc]"
    )
    brightest: float = Field(
        default=-1.0, description="brightest absolute magnitude [mag]"
    )
    faintest: float = Field(
        default=7.0, description="faintest absolute magnitude [mag]"
    )
    luminosity_slope: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.2,
        description="growth of the stars' number per absolute magnitude [dex/mag]",
    )
    magnitude_limit: float = Field(
        default=15.0, description="faintest apparent magnitude, dust included [mag]"
    )
    dimming: NonNegative = Field(
        default=0.84, description="extinction in the survey's band per A_V"
    )

    @model_validator(mode="after")
    def _check(self) -> TracerConfig:
        if not self.brightest < self.faintest:
            raise ValueError(
                f"brightest = {self.brightest:g} must be a smaller magnitude than "
                f"faintest = {self.faintest:g}"
            )
        return self


class ErrorConfig(Settings):
    """What is measured, and how well."""

    extinction: Positive = Field(
        default=0.05,
        description="median error of the extinction, at the median star [mag]",
    )
    scatter: NonNegative = Field(
        default=0.3, description="standard deviation of the logarithm of the errors"
    )
    growth: NonNegative = Field(
        default=0.1,
        description="growth of the extinction's error per magnitude [dex/mag]",
    )
    parallax: NonNegative = Field(
        default=0.01, description="error of the parallax [mas]"
    )
    parallax_over_error: Positive = Field(
        default=5.0,
        description="stars of a lower signal-to-noise of the parallax are lost",
    )
    outliers: Fraction = Field(
        default=0.0, description="fraction of the stars whose extinction is an outlier"
    )
    outlier_scale: Annotated[float, Field(ge=1)] = Field(
        default=20.0, description="scatter of the outliers, in their stated errors"
    )


class SimulateConfig(Settings):
    """Settings of a mock galaxy."""

    stars: Annotated[int, Field(ge=1)] = Field(
        default=60_000, description="stars in the catalogue"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0,
        description="seed of every random draw; the same seed, the same files",
    )
    truth: TruthConfig = TruthConfig()
    dust: DustConfig = DustConfig()
    tracers: TracerConfig = TracerConfig()
    errors: ErrorConfig = ErrorConfig()

    @model_validator(mode="after")
    def _check(self) -> SimulateConfig:
        spacing = self.truth.spacing
        if self.dust.turbulence and self.dust.correlation_length < 2 * spacing:
            raise ValueError(
                f"dust.correlation_length = {self.dust.correlation_length:g} cannot be "
                f"resolved with truth.spacing = {spacing:g}: take at least twice it"
            )
        for name in ("cloud_radius", "cavity_radius"):
            interval = getattr(self.dust, name)
            if interval is not None and interval[0] < spacing:
                raise ValueError(
                    f"dust.{name} starts at {interval[0]:g}, which truth.spacing = "
                    f"{spacing:g} cannot resolve: take at least the spacing"
                )
        return self

    @property
    def cloud_radius(self) -> tuple[float, float]:
        """Range of the clouds' standard deviations [pc]."""
        return self.dust.cloud_radius or (self.truth.spacing, 2.5 * self.truth.spacing)

    @property
    def cavity_radius(self) -> tuple[float, float]:
        """Range of the cavities' radii [pc]."""
        return self.dust.cavity_radius or (
            5 * self.truth.spacing,
            12 * self.truth.spacing,
        )
