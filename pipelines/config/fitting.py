"""The configuration of ``dustmap fit``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from pipelines.config.base import (
    Auto,
    Count,
    Counts,
    Interval,
    Length,
    NonNegative,
    PerAxis,
    Positive,
    Seed,
    Settings,
    Share,
)
from pipelines.config.engines import ABILITIES, Abilities, DensityKind, EngineName

KernelName = Literal["matern12", "matern32", "matern52", "squared-exponential"]
Cover = Literal["stars", "cylinder", "sphere"]
Quadrature = Literal["monte-carlo", "gauss-legendre"]


class BoxConfig(Settings):
    """The box of the map, and its resolution.

    Heliocentric Galactic coordinates: +x to l=0, +y to l=90, +z to the north Galactic
    pole. The observer is at the origin, which the box must contain.
    """

    x: Auto[Interval] = None
    """[min, max] along x [pc]"""
    y: Auto[Interval] = None
    """[min, max] along y [pc]"""
    z: Auto[Interval] = None
    """[min, max] along z [pc]"""
    cover: Auto[Cover] = None
    """extent of the box along axes without given ends: the stars, the sphere around the
    observer to data.max_distance or the furthest star, or its cylinder, with the stars'
    extent in z; auto uses, with data.max_distance, the sphere or else the cylinder if
    its volume is at most twice that of the stars' box, and any remaining volume for its
    height"""
    spacing: Auto[PerAxis] = None
    """spacing of grid points, one number or [x, y, z] [pc]"""
    shape: Auto[Counts] = None
    """number of grid points [x, y, z], instead of spacing"""
    levels: Auto[Annotated[int, Field(ge=1, le=12)]] = None
    """number of nested grids, each with half the spacing of the one around it; when
    auto, set by the density of stars near the observer, or one if spacing or shape is
    given"""
    finest: Auto[Length] = None
    """smallest spacing of nested grids [pc]"""

    def conflicts(self) -> Iterator[str]:
        """Yield intervals without the observer, and contradictory spacings."""
        for name in ("x", "y", "z"):
            interval = getattr(self, name)
            if interval is not None and not interval[0] <= 0 <= interval[1]:
                yield (
                    f"{name} = {list(interval)} leaves out the observer at 0: choose "
                    "min <= 0 <= max"
                )
        if self.cover is not None and None not in (self.x, self.y, self.z):
            yield f"cover = {self.cover} has no axis left: leave out one of x, y, z"
        if self.spacing is not None and self.shape is not None:
            yield "spacing and shape are both given: leave one out"


class PriorConfig(Settings):
    """The prior of the Gaussian process."""

    kernel: Auto[KernelName] = None
    """covariance function; auto takes matern12 for the logarithm of a lognormal
    density, with a spectrum that falls as k^-4, nearly that of turbulence, k^-11/3, and
    matern32 for a gaussian density"""
    lengthscale: Auto[PerAxis] = None
    """correlation length, one number or [x, y, z] [pc]"""
    std: Auto[Annotated[float, Field(gt=0, le=10)]] = None
    """standard deviation of the field: of the logarithm of a lognormal density, of a
    gaussian one in mag/pc"""
    mean: Literal["auto", "constant", "exponential-disc", "zero"] = "auto"
    """mean density"""
    mean_density: Auto[NonNegative] = None
    """mean density at the Sun's place in the plane [mag/pc]; for a lognormal density
    also the mean, not the median, which is exp(-std^2/2) times the mean and changes
    with a learnt std"""
    scale_height: Auto[Length] = None
    """scale height of the exponential disc [pc]"""
    scale_length: Auto[Length] = None
    """scale length of the exponential disc [pc]"""

    def conflicts(self) -> Iterator[str]:
        """Yield parameters that the chosen mean does not have."""
        scales = ("scale_height", "scale_length")
        unused = {"zero": ("mean_density", *scales), "constant": scales}
        for name in unused.get(self.mean, ()):
            if getattr(self, name) is not None:
                yield (
                    f'{name} has no meaning with mean = "{self.mean}": leave it out '
                    "or change mean"
                )


class ModelConfig(Settings):
    """The model from the field to the stars' extinctions."""

    density: Auto[DensityKind] = None
    """density as the exponential of the field, which is positive, or as the field
    itself; lognormal when auto, with the engine svi gaussian"""
    subgrid_noise: bool = True
    """add the variance below the grid to the stars' noise"""
    wrap_tolerance: Share = 5e-2
    """largest correlation between opposite faces of the box through the torus, relative
    to the variance"""
    distance_errors: bool = True
    """average sight lines over the stars' distance errors, and add the resulting error
    of the extinction to the noise: density around the star times distance error; when
    false the fit is that of a catalogue without them"""
    distance_prior: Literal["flat", "stars"] = "flat"
    """prior of true distances: flat, or the stars' own density, which moves measured
    distances to the expected ones"""
    outliers: bool = True
    """reduce the weight of outliers: Student-T instead of normal noise"""
    subgrid_share: Auto[Positive] = None
    """share of the unresolved variance that a sight line does not have in common with
    its neighbours; learnt when auto with a lognormal density, one with a gaussian
    one"""
    degrees: Auto[Annotated[float, Field(gt=1)]] = None
    """degrees of freedom of the Student-T noise; learnt when auto"""
    residual: bool = True
    """predict extinctions from the map and from the residual shared by neighbouring
    stars; for a lognormal density"""
    reference: Auto[str] = None
    """survey whose zero point and scale the map has; when auto the one with the most
    stars"""
    common_noise: Auto[NonNegative] = None
    """noise added in quadrature to every star's error [mag]; learnt when auto"""

    def conflicts(self) -> Iterator[str]:
        """Yield a prior of distances without their errors."""
        if self.distance_prior != "flat" and not self.distance_errors:
            yield 'distance_prior = "stars" needs distance_errors = true'


class InferenceConfig(Settings):
    """The computation of the posterior."""

    engine: EngineName = "full-batch"
    """full-batch solves, or HIP-GP as published"""
    samples: Annotated[int, Field(ge=0, le=10_000)] = 32
    """posterior samples, which give the standard deviations"""
    tolerance: Share = 1e-4
    """relative residual at which the solve for the mean stops; that for samples of a
    gaussian density stops at 1e-2, those of a lognormal one at a small expected
    decrease of steps"""
    max_iterations: Count = 500
    """most iterations of a solve"""
    preconditioner: Literal["nystrom", "none"] = "nystrom"
    """preconditioner of the posterior's solves"""
    preconditioner_rank: Auto[Count] = None
    """rank of the Nystrom preconditioner; when auto 100, or less (at least 16) for a
    lognormal density with few stars per grid point"""
    dtype: Literal["float64", "float32"] = "float32"
    """precision of the products; spectra and reductions are float64"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """device of the computation; auto uses CUDA if present"""
    teams: Count = 1
    """groups of processes (torchrun) that divide the samples; the processes of a group
    divide the stars"""
    seed: Seed = 0
    """seed of every random draw"""
    learn: bool = True
    """learn hyperparameters that are auto from 40 to 4,000 stars, by a likelihood given
    neighbouring stars; otherwise use moments of the extinctions"""

    def conflicts(self) -> Iterator[str]:
        """Yield a single sample, and teams without samples to divide."""
        if self.samples == 1:
            yield (
                "samples = 1 gives no standard deviation: use at least 2, or 0 for the "
                "mean alone"
            )
        if self.teams > 1 and not self.abilities.teams:
            yield (
                f"teams = {self.teams}: the engine {self.engine} has no teams, leave "
                "it out"
            )

    @property
    def abilities(self) -> Abilities:
        """What the engine offers."""
        return ABILITIES[self.engine]


class SviConfig(Settings):
    """The engine ``svi`` only: stochastic variational inference as published."""

    batch_size: Count = 64
    """stars per step"""
    epochs: Count = 20
    """passes through the stars"""
    family: Literal["mean-field", "block", "full"] = "block"
    """covariance of the variational distribution"""
    block: Count = 2
    """cells per axis of one block of the family block"""
    pcg_tolerance: Share = 1e-6
    """relative residual at which the solve for a star stops"""
    pcg_max_iterations: Count = 200
    """most iterations of the solve for a star"""
    hyperparameter_rate: NonNegative = 0.0
    """Adam's rate for the kernel's hyperparameters; 0 fixes them"""
    nugget: Annotated[float, Field(ge=0, lt=1)] = 1e-6
    """variance added at the grid points, relative to the field's"""
    quadrature: Quadrature = "monte-carlo"
    """nodes along a ray"""
    nodes: Count = 20
    """nodes per ray"""


class BudgetConfig(Settings):
    """The limit of memory, which bounds the resolution of the grid when auto."""

    memory_gib: Auto[Positive] = None
    """memory for which the grid is chosen [GiB]; 8 when auto"""

    @property
    def bytes(self) -> float:
        """The memory of a fit [bytes]."""
        return (8.0 if self.memory_gib is None else self.memory_gib) * 2**30


class DataConfig(Settings):
    """The use of the stars."""

    holdout: Annotated[float, Field(ge=0, lt=0.5)] = 0.05
    """fraction of the stars, at most 5,000, held out to test the map"""
    validation: Auto[Annotated[float, Field(ge=0, lt=0.5)]] = None
    """fraction of the stars, at most 3000, for learning the residual, which the grid is
    not fitted to; 5% when auto, up to 15% for small catalogues"""
    max_distance: Auto[Length] = None
    """largest distance of stars [pc]"""
    magnitude: Auto[str] = None
    """column of apparent magnitudes of a catalogue that is complete to data.limit: it
    lacks stars behind much dust, and the bias of the extinctions of the others is
    corrected to first order; no correction when auto"""
    limit: Auto[float] = None
    """magnitude to which the catalogue is complete"""
    dimming: Positive = 1.0
    """extinction in the band of data.magnitude over that of the catalogue, such as
    0.83 for G and A_V"""

    def conflicts(self) -> Iterator[str]:
        """Yield magnitudes without a limit, and the reverse."""
        if (self.magnitude is None) != (self.limit is None):
            yield "magnitude and limit belong together: give both or neither"


class CheckpointConfig(Settings):
    """The intervals of checkpoints (fit --resume)."""

    minutes: Positive = 5.0
    """most time between two checkpoints [min]"""
    iterations: Auto[Count] = None
    """most iterations between two checkpoints: Gauss-Newton steps to the mode and pairs
    of batches of samples; blocks of a gaussian density; minibatches of svi. No limit
    when auto"""


class FitConfig(Settings):
    """Settings of a fit. Every key has a default; auto values follow from the data."""

    box: BoxConfig = BoxConfig()
    prior: PriorConfig = PriorConfig()
    model: ModelConfig = ModelConfig()
    inference: InferenceConfig = InferenceConfig()
    svi: SviConfig = SviConfig()
    budget: BudgetConfig = BudgetConfig()
    data: DataConfig = DataConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    def conflicts(self) -> Iterator[str]:
        """Yield conflicts between sections."""
        if (self.box.levels or 1) > 1:
            yield from self._conflicts_with_levels()
        if self.data.magnitude is not None and not self.shares_noise:
            yield (
                "data.magnitude needs the residual of neighbouring stars: a lognormal "
                "density, samples, a Matern kernel, model.residual = true"
            )
        engine, abilities = self.inference.engine, self.inference.abilities
        if self.density not in abilities.densities:
            yield (
                f"engine {engine} has no {self.density} density: set model.density = "
                f'"{abilities.densities[0]}"'
            )
        if self.density != "lognormal":
            if self.model.subgrid_share is not None:
                yield (
                    "model.subgrid_share belongs to a lognormal density: leave it out "
                    "for a gaussian one, which uses the whole unresolved variance"
                )
            return
        if self.inference.samples % 2:
            yield (
                f"inference.samples = {self.inference.samples}: samples of a lognormal "
                "density come in pairs, use an even number"
            )
        if self.prior.mean == "zero":
            yield (
                'prior.mean = "zero" cannot be the median of a lognormal density: '
                'choose another or model.density = "gaussian"'
            )

    def _conflicts_with_levels(self) -> Iterator[str]:
        asked = f"box.levels = {self.box.levels}"
        if self.density != "lognormal":
            yield f'{asked} needs model.density = "lognormal"'
        if self.kernel == "squared-exponential":
            yield f"{asked} needs a Matern kernel: choose another prior.kernel"

    @property
    def levels(self) -> int | None:
        """Number of nested grids; ``None`` if set by the stars."""
        by_hand = self.box.spacing is not None or self.box.shape is not None
        if self.box.levels is not None or by_hand:
            return self.box.levels or 1
        return 1 if any(self._conflicts_with_levels()) else None

    @property
    def shares_noise(self) -> bool:
        """True if neighbours' noise is correlated; grids carry a band of the prior."""
        shared = self.model.residual and self.inference.abilities.shared_errors
        lognormal = self.density == "lognormal"
        samples = self.inference.samples > 0
        bands = self.kernel != "squared-exponential"
        return shared and lognormal and samples and bands

    @property
    def density(self) -> DensityKind:
        """``lognormal`` or ``gaussian``."""
        return self.model.density or self.inference.abilities.densities[0]

    @property
    def kernel(self) -> KernelName:
        """The covariance function's name."""
        if self.prior.kernel is not None:
            return self.prior.kernel
        return "matern12" if self.density == "lognormal" else "matern32"
