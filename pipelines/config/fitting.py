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

KernelName = Literal["matern12", "matern32", "matern52", "squared-exponential"]
DensityKind = Literal["lognormal", "gaussian"]
Interpolation = Literal["linear", "cubic"]
EngineName = Literal["full-batch", "svi"]
Cover = Literal["stars", "cylinder", "sphere"]
Quadrature = Literal["monte-carlo", "gauss-legendre"]


class BoxConfig(Settings):
    """Where the map is made, and how finely.

    Heliocentric Galactic coordinates: +x to l=0, +y to l=90, +z to the north Galactic
    pole. The observer sits at the origin, which the box must contain.
    """

    x: Auto[Interval] = None
    """[min, max] along x [pc]"""
    y: Auto[Interval] = None
    """[min, max] along y [pc]"""
    z: Auto[Interval] = None
    """[min, max] along z [pc]"""
    cover: Auto[Cover] = None
    """what the box holds on axes that are not given: the stars, the sphere around the
    observer to data.max_distance or the furthest star, or its cylinder, with z as the
    stars have it; auto takes, with data.max_distance, the sphere or else the cylinder
    if its volume is at most twice that of the stars' box, taller by what is left"""
    spacing: Auto[PerAxis] = None
    """distance of grid points, one number or [x, y, z] [pc]"""
    shape: Auto[Counts] = None
    """number of grid points [x, y, z], instead of spacing"""
    levels: Auto[Count] = None
    """number of nested grids, each with half the spacing of the one around it; when
    auto as many as the stars near the observer are dense enough for, and one where
    spacing or shape is given"""
    finest: Auto[Length] = None
    """least spacing of nested grids [pc]"""

    def conflicts(self) -> Iterator[str]:
        """Intervals without the observer, and two ways to give the spacing."""
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
    """The Gaussian process before it has seen a star."""

    kernel: Auto[KernelName] = None
    """covariance function; auto takes matern12 for the logarithm of a lognormal
    density, with a spectrum that falls as k^-4, nearly that of turbulence, k^-11/3, and
    matern32 for a gaussian density"""
    lengthscale: Auto[PerAxis] = None
    """correlation length, one number or [x, y, z] [pc]"""
    std: Auto[Positive] = None
    """standard deviation of the field: of the logarithm of a lognormal density, of a
    gaussian one in mag/pc"""
    mean: Literal["auto", "constant", "exponential-disc", "zero"] = "auto"
    """mean density"""
    mean_density: Auto[NonNegative] = None
    """mean density at the Sun's place in the plane [mag/pc]; of a lognormal density,
    too, the mean and not the median, which is exp(-std^2/2) times the mean and goes
    with the std when that is learnt"""
    scale_height: Auto[Length] = None
    """scale height of the exponential disc [pc]"""
    scale_length: Auto[Length] = None
    """scale length of the exponential disc [pc]"""

    def conflicts(self) -> Iterator[str]:
        """Parameters that the chosen mean does not have."""
        scales = ("scale_height", "scale_length")
        unused = {"zero": ("mean_density", *scales), "constant": scales}
        for name in unused.get(self.mean, ()):
            if getattr(self, name) is not None:
                yield (
                    f'{name} has no meaning with mean = "{self.mean}": leave it out '
                    "or change mean"
                )


class ModelConfig(Settings):
    """From the field to what the stars see."""

    density: Auto[DensityKind] = None
    """how the density follows from the field: positive as the exponential of it, or the
    field itself; lognormal when auto, with the engine svi gaussian"""
    refinement: Annotated[int, Field(ge=1, le=4)] = 1
    """points of the quadrature grid per grid point and axis"""
    interpolation: Interpolation = "linear"
    """interpolation between grid points"""
    subgrid_noise: bool = True
    """add what the grid cannot resolve to the stars' noise"""
    ray_step: Annotated[float, Field(gt=0, le=1)] = 0.5
    """step of the integral along a ray, in cells"""
    wrap_tolerance: Share = 5e-2
    """correlation allowed between opposite faces of the box through the torus, relative
    to the variance"""
    distance_errors: bool = True
    """average sight lines over the stars' distance errors, and add what these do to the
    extinction to the noise: density around the star times distance error"""
    outliers: bool = True
    """stars far from the fit count less: Student-T instead of normal noise"""
    subgrid_share: Auto[Positive] = None
    """what a sight line does not share with its neighbours of the variance that the
    grid leaves unresolved; learnt when auto with a lognormal density, one with a
    gaussian one"""
    degrees: Auto[Annotated[float, Field(gt=1)]] = None
    """degrees of freedom of the Student-T noise; learnt when auto"""
    residual: bool = True
    """predict extinctions by the map and by what neighbouring stars share beyond it; of
    a lognormal density"""
    common_noise: Auto[NonNegative] = None
    """noise added in quadrature to every star's error [mag]; learnt when auto"""


class InferenceConfig(Settings):
    """How the posterior is computed."""

    engine: EngineName = "full-batch"
    """full-batch solves, or HIP-GP as published"""
    samples: Annotated[int, Field(ge=0)] = 32
    """posterior samples, which give the standard deviations"""
    tolerance: Share = 1e-4
    """relative residual at which the mean's solve stops"""
    sample_tolerance: Share = 1e-2
    """the same for a posterior sample of a gaussian density; one of a lognormal density
    is done when the expected decrease of steps is small"""
    max_iterations: Count = 500
    """most iterations of a solve"""
    preconditioner: Literal["nystrom", "none"] = "nystrom"
    """preconditioner of the posterior's solves"""
    preconditioner_rank: Auto[Count] = None
    """rank of the Nystrom preconditioner; 100, or less (16 at least) for a lognormal
    density where stars are few per grid point"""
    dtype: Literal["float64", "float32"] = "float32"
    """precision of the products; spectra and reductions are float64"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where to compute; auto takes CUDA where there is one"""
    teams: Count = 1
    """groups of processes (torchrun) that share out the samples; the processes of a
    group share out the stars"""
    seed: Seed = 0
    """seed of every random draw"""
    learn: bool = True
    """learn hyperparameters that are auto from up to 4,000 stars (and no fewer than 40)
    by a likelihood given neighbouring stars, corrected by simulations; moments of the
    extinctions stand for them otherwise"""
    anisotropic: bool = False
    """learn one lengthscale per axis"""

    def conflicts(self) -> Iterator[str]:
        """A single sample, and teams without samples to share out."""
        if self.samples == 1:
            yield (
                "samples = 1 gives no standard deviation: take at least 2, or 0 for "
                "the mean alone"
            )
        if self.teams > 1 and self.engine == "svi":
            yield f"teams = {self.teams}: the engine svi has none, leave it out"


class SviConfig(Settings):
    """The engine ``svi`` only: stochastic variational inference as published."""

    batch_size: Count = 64
    """stars per step"""
    epochs: Count = 20
    """passes through the stars"""
    learning_rate: Auto[Annotated[float, Field(gt=0, le=1)]] = None
    """step of the natural gradient; auto averages the minibatches"""
    family: Literal["mean-field", "block", "full"] = "block"
    """covariance of the variational distribution"""
    block: Count = 2
    """cells per axis of one block of the family block"""
    pcg_tolerance: Share = 1e-6
    """relative residual at which a star's solve stops"""
    pcg_max_iterations: Count = 200
    """most iterations of a star's solve"""
    hyperparameter_rate: NonNegative = 0.0
    """Adam's rate for the kernel's hyperparameters; 0 fixes them"""
    nugget: Annotated[float, Field(ge=0, lt=1)] = 1e-6
    """variance added at the grid points, relative to the field's"""
    max_embedding: Count = 20_000_000
    """most points of the circulant embedding"""
    quadrature: Quadrature = "monte-carlo"
    """nodes along a ray"""
    nodes: Count = 20
    """nodes per ray"""


class BudgetConfig(Settings):
    """What the fit may spend; the grid's fineness follows where it is auto."""

    minutes: Positive = 5.0
    """time [min]; where it runs out the fit draws fewer samples, and says so"""
    memory_gib: Auto[Positive] = None
    """memory [GiB]; half the machine's when auto"""


class DataConfig(Settings):
    """Which stars are used for what."""

    holdout: Annotated[float, Field(ge=0, lt=0.5)] = 0.05
    """fraction of the stars held out to test the map"""
    validation: Auto[Annotated[float, Field(ge=0, lt=0.5)]] = None
    """fraction of the stars, at most 3000, on which the residual is learnt, and to
    which the grid is not fitted; 5% when auto, up to 15% of small catalogues"""
    max_distance: Auto[Length] = None
    """stars further away are left out [pc]"""


class CheckpointConfig(Settings):
    """How often a fit writes a checkpoint (fit --resume)."""

    minutes: Positive = 5.0
    """most time between two checkpoints [min]"""
    iterations: Auto[Count] = None
    """most Gauss-Newton steps (blocks of samples of a gaussian density, minibatches of
    svi) between two checkpoints; when auto only time counts"""


class FitConfig(Settings):
    """Settings of a fit. Every key has a default; auto is chosen from the data."""

    box: BoxConfig = BoxConfig()
    prior: PriorConfig = PriorConfig()
    model: ModelConfig = ModelConfig()
    inference: InferenceConfig = InferenceConfig()
    svi: SviConfig = SviConfig()
    budget: BudgetConfig = BudgetConfig()
    data: DataConfig = DataConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    def conflicts(self) -> Iterator[str]:
        """Choices in different sections that exclude each other."""
        if (self.box.levels or 1) > 1:
            yield from self._conflicts_with_levels()
        if self.density == "lognormal":
            yield from self._conflicts_with_lognormal()
        elif self.model.subgrid_share is not None:
            yield (
                "model.subgrid_share belongs to a lognormal density: a gaussian one "
                "takes the unresolved variance whole"
            )

    def _conflicts_with_levels(self) -> Iterator[str]:
        asked = f"box.levels = {self.box.levels}"
        if self.density != "lognormal":
            yield f'{asked} needs model.density = "lognormal"'
        if self.kernel == "squared-exponential":
            yield f"{asked} needs a Matern kernel: choose another prior.kernel"
        if self.model.refinement != 1:
            yield f"{asked} needs model.refinement = 1, got {self.model.refinement}"

    def _conflicts_with_lognormal(self) -> Iterator[str]:
        if self.inference.engine == "svi":
            yield 'engine svi has no lognormal density: set model.density = "gaussian"'
        if self.inference.samples % 2:
            yield (
                f"inference.samples = {self.inference.samples}: samples of a lognormal "
                "density come in pairs, take an even number"
            )
        if self.model.interpolation == "cubic":
            yield (
                'model.interpolation = "cubic" has negative weights: take linear, or '
                'model.density = "gaussian"'
            )
        if self.prior.mean == "zero":
            yield (
                'prior.mean = "zero" cannot be the median of a lognormal density: '
                'choose another or model.density = "gaussian"'
            )

    @property
    def levels(self) -> int | None:
        """How many nested grids; ``None`` where the stars decide."""
        by_hand = self.box.spacing is not None or self.box.shape is not None
        if self.box.levels is not None or by_hand:
            return self.box.levels or 1
        return 1 if any(self._conflicts_with_levels()) else None

    @property
    def shares_noise(self) -> bool:
        """Neighbouring stars' noise is correlated: grids carry a band of the prior."""
        full_batch = self.inference.engine == "full-batch"
        lognormal = self.density == "lognormal"
        samples = self.inference.samples > 0
        bands = self.kernel != "squared-exponential"
        return self.model.residual and lognormal and full_batch and samples and bands

    @property
    def density(self) -> DensityKind:
        """``lognormal`` or ``gaussian``."""
        if self.model.density is not None:
            return self.model.density
        return "gaussian" if self.inference.engine == "svi" else "lognormal"

    @property
    def kernel(self) -> KernelName:
        """The covariance function's name."""
        if self.prior.kernel is not None:
            return self.prior.kernel
        return "matern12" if self.density == "lognormal" else "matern32"
