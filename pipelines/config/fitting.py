"""The configuration of ``dustmap fit``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipelines.config.base import (
    Auto,
    Counts,
    Interval,
    NonNegative,
    PerAxis,
    Positive,
    Settings,
)

KernelName = Literal["matern12", "matern32", "matern52", "squared-exponential"]
DensityKind = Literal["lognormal", "gaussian"]
MeanKind = Literal["constant", "exponential-disc", "zero"]
Interpolation = Literal["linear", "cubic"]
EngineName = Literal["full-batch", "svi"]
Quadrature = Literal["monte-carlo", "gauss-legendre"]


class BoxConfig(Settings):
    """Where the map is made, and how finely.

    Heliocentric Galactic coordinates: +x to l=0, +y to l=90, +z to the north Galactic
    pole. The observer sits at the origin, which the box must contain.
    """

    x: Auto[Interval] = Field(default=None, description="[min, max] along x [pc]")
    y: Auto[Interval] = Field(default=None, description="[min, max] along y [pc]")
    z: Auto[Interval] = Field(default=None, description="[min, max] along z [pc]")
    spacing: Auto[PerAxis] = Field(
        default=None,
        description="distance of grid points, one number or [x, y, z] [pc]",
    )
    shape: Auto[Counts] = Field(
        default=None, description="number of grid points [x, y, z], instead of spacing"
    )

    @model_validator(mode="after")
    def _check(self) -> BoxConfig:
        for name in ("x", "y", "z"):
            interval = getattr(self, name)
            if interval is not None and not interval[0] <= 0 <= interval[1]:
                raise ValueError(
                    f"{name} = {list(interval)} leaves out the observer at 0: choose "
                    "min <= 0 <= max"
                )
        if self.spacing is not None and self.shape is not None:
            raise ValueError("spacing and shape are both given: leave one out")
        return self


class PriorConfig(Settings):
    """The Gaussian process before it has seen a star."""

    kernel: Auto[KernelName] = Field(
        default=None,
        description="covariance function; auto takes matern12 for the logarithm of "
        "a lognormal density, with a spectrum that falls as k^-4, nearly that of "
        "turbulence, k^-11/3, and matern32 for a gaussian density",
    )
    lengthscale: Auto[PerAxis] = Field(
        default=None, description="correlation length, one number or [x, y, z] [pc]"
    )
    std: Auto[Positive] = Field(
        default=None,
        description="standard deviation of the field: of the logarithm of a lognormal "
        "density, of a gaussian one in mag/pc",
    )
    mean: Literal["auto", "constant", "exponential-disc", "zero"] = Field(
        default="auto", description="mean density"
    )
    mean_density: Auto[NonNegative] = Field(
        default=None,
        description="mean density at the Sun's place in the plane [mag/pc]; of a "
        "lognormal density, too, the mean and not the median, which is "
        "exp(-std^2/2) times the mean and goes with the std when that is learnt",
    )
    scale_height: Auto[Positive] = Field(
        default=None, description="scale height of the exponential disc [pc]"
    )
    scale_length: Auto[Positive] = Field(
        default=None, description="scale length of the exponential disc [pc]"
    )

    @model_validator(mode="after")
    def _check(self) -> PriorConfig:
        unused = {
            "zero": ("mean_density", "scale_height", "scale_length"),
            "constant": ("scale_height", "scale_length"),
        }.get(self.mean, ())
        for name in unused:
            if getattr(self, name) is not None:
                raise ValueError(
                    f'{name} has no meaning with mean = "{self.mean}": leave it out '
                    "or change mean"
                )
        return self


class ModelConfig(Settings):
    """From the field to what the stars see."""

    density: Auto[DensityKind] = Field(
        default=None,
        description="how the density follows from the field: positive as the "
        "exponential of it, or the field itself; lognormal when auto, with the engine "
        "svi gaussian",
    )
    refinement: Annotated[int, Field(ge=1, le=4)] = Field(
        default=1, description="points of the quadrature grid per grid point and axis"
    )
    interpolation: Interpolation = Field(
        default="linear", description="interpolation between grid points"
    )
    subgrid_noise: bool = Field(
        default=True,
        description="add what the grid cannot resolve to the stars' noise; the scales "
        "are learnt with it in any case",
    )
    ray_step: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5, description="step of the integral along a ray, in cells"
    )
    wrap_tolerance: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=5e-2,
        description="correlation allowed between opposite faces of the box through "
        "the torus, relative to the variance",
    )
    distance_errors: bool = Field(
        default=True,
        description="average sight lines over the stars' distance errors, and add what "
        "these do to the extinction to the noise: density around the star times "
        "distance error",
    )
    outliers: bool = Field(
        default=True,
        description="stars far from the fit count less: Student-T instead of normal "
        "noise",
    )
    subgrid_share: Auto[Positive] = Field(
        default=None,
        description="what a sight line does not share with its neighbours of the "
        "variance that the grid leaves unresolved; learnt when auto with a lognormal "
        "density, one with a gaussian one",
    )
    degrees: Auto[Annotated[float, Field(gt=1)]] = Field(
        default=None,
        description="degrees of freedom of the Student-T noise; learnt when auto",
    )
    common_noise: Auto[NonNegative] = Field(
        default=None,
        description="noise added in quadrature to every star's error [mag]; learnt "
        "when auto",
    )


class InferenceConfig(Settings):
    """How the posterior is computed."""

    engine: EngineName = Field(
        default="full-batch", description="full-batch solves, or HIP-GP as published"
    )
    grid: Literal["whole", "slabs"] = Field(
        default="whole",
        description="with several processes: every one holds the whole grid, or a slab "
        "of planes along x, so that a grid may be larger than one's memory; with the "
        "engine full-batch, refinement 1 and no sub-grid noise of a gaussian density",
    )
    samples: Annotated[int, Field(ge=0)] = Field(
        default=32, description="posterior samples, which give the standard deviations"
    )
    tolerance: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=1e-4, description="relative residual at which the mean's solve stops"
    )
    sample_tolerance: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=1e-2,
        description="the same for a posterior sample of a gaussian density; one of a "
        "lognormal density is done when the expected decrease of steps is small",
    )
    max_iterations: Annotated[int, Field(ge=1)] = Field(
        default=500, description="most iterations of a solve"
    )
    preconditioner: Literal["nystrom", "none"] = Field(
        default="nystrom", description="preconditioner of the posterior's solves"
    )
    preconditioner_rank: Annotated[int, Field(ge=1)] = Field(
        default=100, description="rank of the Nystrom preconditioner"
    )
    dtype: Literal["float64", "float32"] = Field(
        default="float32",
        description="precision of the products; spectra and reductions are float64",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="where to compute; auto takes CUDA where there is one",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0, description="seed of every random draw"
    )
    search: bool = Field(
        default=True, description="search coarsely for hyperparameters that are auto"
    )
    learn: bool = Field(
        default=True,
        description="learn hyperparameters that are auto from the gradient of the "
        "evidence, after the search; it stops at a quarter of budget.minutes, but not "
        "before one step, and only if it was not stopped so is it the same again",
    )
    anisotropic: bool = Field(
        default=False, description="learn one lengthscale per axis"
    )

    @model_validator(mode="after")
    def _check(self) -> InferenceConfig:
        if self.samples == 1:
            raise ValueError(
                "samples = 1 gives no standard deviation: take at least 2, or 0 for "
                "the mean alone"
            )
        return self


class SviConfig(Settings):
    """The engine ``svi`` only: stochastic variational inference as published."""

    batch_size: Annotated[int, Field(ge=1)] = Field(
        default=64, description="stars per step"
    )
    epochs: Annotated[int, Field(ge=1)] = Field(
        default=20, description="passes through the stars"
    )
    learning_rate: Auto[Annotated[float, Field(gt=0, le=1)]] = Field(
        default=None,
        description="step of the natural gradient; auto averages the minibatches",
    )
    family: Literal["mean-field", "block", "low-rank", "full"] = Field(
        default="block", description="covariance of the variational distribution"
    )
    block: Annotated[int, Field(ge=1)] = Field(
        default=2, description="cells per axis of one block of the family block"
    )
    rank: Annotated[int, Field(ge=1)] = Field(
        default=32,
        description="columns beside the diagonal in the precision of the family "
        "low-rank",
    )
    pcg_tolerance: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=1e-6, description="relative residual at which a star's solve stops"
    )
    pcg_max_iterations: Annotated[int, Field(ge=1)] = Field(
        default=200, description="most iterations of a star's solve"
    )
    hyperparameter_rate: NonNegative = Field(
        default=0.0,
        description="Adam's rate for the kernel's hyperparameters; 0 fixes them",
    )
    nugget: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=1e-6,
        description="variance added at the grid points, relative to the field's",
    )
    max_embedding: Annotated[int, Field(ge=1)] = Field(
        default=20_000_000, description="most points of the circulant embedding"
    )
    quadrature: Quadrature = Field(
        default="monte-carlo", description="nodes along a ray"
    )
    nodes: Annotated[int, Field(ge=1)] = Field(default=20, description="nodes per ray")


class BudgetConfig(Settings):
    """What the fit may spend; the grid's fineness follows where it is auto."""

    minutes: Positive = Field(default=10.0, description="time [min]")
    memory_gib: Auto[Positive] = Field(
        default=None, description="memory [GiB]; half the machine's when auto"
    )


class DataConfig(Settings):
    """Which stars are used for what."""

    holdout: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        default=0.05, description="fraction of the stars held out to test the map"
    )
    max_distance: Auto[Positive] = Field(
        default=None, description="stars further away are left out [pc]"
    )


class CheckpointConfig(Settings):
    """How often a fit saves what it needs to go on (fit --resume)."""

    minutes: Positive = Field(
        default=5.0, description="most time between two checkpoints [min]"
    )
    iterations: Auto[Annotated[int, Field(ge=1)]] = Field(
        default=None,
        description="most Gauss-Newton steps (blocks of samples of a gaussian density, "
        "minibatches of svi) between two checkpoints; when auto only time counts",
    )


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

    @model_validator(mode="after")
    def _check(self) -> FitConfig:
        if self.density == "gaussian" and self.model.subgrid_share is not None:
            raise ValueError(
                "model.subgrid_share belongs to a lognormal density: a gaussian one "
                "takes the unresolved variance whole"
            )
        self._check_slabs()
        if self.density == "gaussian":
            return self
        if self.inference.engine == "svi":
            raise ValueError(
                'engine svi has no lognormal density: set model.density = "gaussian"'
            )
        if self.inference.samples % 2:
            raise ValueError(
                f"inference.samples = {self.inference.samples}: samples of a lognormal "
                "density come in pairs, take an even number"
            )
        if self.model.interpolation == "cubic":
            raise ValueError(
                'model.interpolation = "cubic" has negative weights, with which a '
                "lognormal density would not stay positive: take linear, or "
                'model.density = "gaussian"'
            )
        if self.prior.mean == "zero":
            raise ValueError(
                'prior.mean = "zero" cannot be the median of a lognormal density: '
                'choose another or model.density = "gaussian"'
            )
        return self

    def _check_slabs(self) -> None:
        if self.inference.grid != "slabs":
            return
        if self.inference.engine == "svi":
            raise ValueError(
                'inference.grid = "slabs" is of the engine full-batch: take that, or '
                'inference.grid = "whole"'
            )
        if self.model.refinement != 1:
            raise ValueError(
                'inference.grid = "slabs" takes model.refinement = 1, got '
                f"{self.model.refinement}: choose a finer grid instead"
            )
        if self.density == "gaussian" and self.model.subgrid_noise:
            raise ValueError(
                'inference.grid = "slabs" has no sub-grid noise of a gaussian density: '
                "set model.subgrid_noise = false, or take a lognormal density"
            )

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
