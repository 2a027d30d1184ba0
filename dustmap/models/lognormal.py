r"""A positive density: ``ρ = ρ_0 exp(f)`` with f Gaussian on a torus.

``apply(ε) = W ρ`` with ``ρ = ρ_0 exp(A ε)``; its tangent is ``Φ = W diag(ρ) A``. The
unresolved part of f is small-scale and multiplies the density: a line integral sees
``κ ∫ ρ² ds`` of it, a point value ``(e^c − 1) ρ²`` (:mod:`dustmap.models.subgrid`).
"""

from __future__ import annotations

import copy
import math

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.distributed.slab_columns import SlabColumns
from dustmap.functionals import (
    DistanceMarginalizedIntegrals,
    Functionals,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.grid import torus_positions
from dustmap.kernels import Radial
from dustmap.linalg.operator import LinearOperator
from dustmap.models.base import ForwardModel, Linearisation
from dustmap.models.gradients import SpectralGradient
from dustmap.models.mean_parameters import (
    log_mean_gradient,
    mean_parameters,
    mean_with,
)
from dustmap.models.means import Mean
from dustmap.models.subgrid import LocalResidual, local_residual
from dustmap.projection import Interpolation, Projection, projection
from dustmap.whitening import TorusWhitening

SUBGRID_SHARE = "subgrid_share"
# Change of the logarithm of a lengthscale that κ and c are differentiated with.
_LOG_STEP = 0.05


class LogNormalTangent(LinearOperator):
    """``Φ = W diag(ρ) A``; a batch of ρ gives every column of a batch its own."""

    def __init__(
        self,
        whitening: TorusWhitening,
        weights: LinearOperator,
        density: Float[Tensor, "*batch f"],
    ) -> None:
        self.shape = (weights.shape[0], whitening.size)
        self.dtype = whitening.dtype
        self.device = whitening.device
        self.domain = whitening.space
        self.whitening = whitening
        self._weights = weights
        self._density = density

    def matvec(self, x: Tensor) -> Tensor:
        return self._weights.matvec(self._density * self.whitening.colour(x))

    def rmatvec(self, y: Tensor) -> Tensor:
        pulled = self._density * self._weights.rmatvec(y)
        return self.whitening.colour_transpose(pulled)

    def gram(self, x: Tensor, weights: Tensor) -> Tensor:
        field = self._density * self.whitening.colour(x)
        pulled = self._density * self._weights.gram(field, weights)
        return self.whitening.colour_transpose(pulled)


class LogNormal(ForwardModel):
    """A log-normal density, seen by all observations at once without a solve.

    Parameters
    ----------
    whitening
        ε ↔ f; its refinement r is that of the grid on which f becomes a density.
    functionals
        Point values and line integrals; others have no local residual.
    mean
        ``ρ_0(x) > 0``, the median of the prior density.
    interpolation
        Weights of W.
    seed
        Of the white noise behind κ and c.
    memory_budget
        W is recomputed in every product where it would take more [bytes].
    subgrid_share
        α, by which κ is multiplied: what a line integral does not share of its
        unresolved part with its neighbours.
    group
        Processes that share out the rows of W; every one makes this model, and calls
        it, together with the others.

    Raises
    ------
    ValueError
        If ``ρ_0`` is not positive in the box, or functionals are of another kind.
    """

    positive = True

    def __init__(
        self,
        whitening: TorusWhitening,
        functionals: Functionals,
        *,
        mean: Mean,
        interpolation: Interpolation = "linear",
        seed: int = 0,
        memory_budget: float | None = None,
        subgrid_share: float = 1.0,
        group: Group | None = None,
    ) -> None:
        if not subgrid_share > 0:
            raise ValueError(f"subgrid_share must be positive, got {subgrid_share}")
        self.subgrid_share = subgrid_share
        self.group = Group() if group is None else group
        self.whitening = whitening
        self.memory_budget = memory_budget
        self.mean = mean
        self.interpolation: Interpolation = interpolation
        self.latent_size = whitening.size
        self.latent_space = whitening.space
        self.dtype = whitening.dtype
        self.device = whitening.device
        self._seed = seed
        self._log_mean = self._logarithm()
        self._local: LocalResidual | None = None
        # By lengthscale; shared with the models made of this one.
        self._unit_residuals: dict[tuple[float, ...], LocalResidual] = {}
        self._observe(functionals)

    def _observe(self, functionals: Functionals) -> None:
        self._functionals = functionals
        self.weights = self._projection()
        self._kinds = _kinds(functionals)

    def _projection(self) -> Projection | SlabColumns:
        return projection(
            self.whitening.torus,
            self._functionals,
            refinement=self.whitening.refinement,
            interpolation=self.interpolation,
            dtype=self.dtype,
            device=self.device,
            memory_budget=self.memory_budget,
            group=self.group,
        )

    @property
    def functionals(self) -> Functionals:
        return self._functionals

    @property
    def kernel(self) -> Radial:
        """The covariance of f."""
        assert isinstance(self.whitening.kernel, Radial)
        return self.whitening.kernel

    @property
    def local(self) -> LocalResidual:
        """What the grid leaves of f (measured when first asked for)."""
        if self._local is None:
            self._local = self._measured(self.kernel)
        return self._local

    def density(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch f"]:
        """``ρ`` on the (refined) torus."""
        return torch.exp(self._log_mean + self.whitening.colour(eps))

    def _slope(self, density: Tensor) -> Tensor:
        """``∂ρ/∂f``."""
        return density

    def _scale(self, density: Tensor) -> Tensor:
        """What a unit of unresolved f is worth in density."""
        return density

    def apply(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch n"]:
        return self.weights.matvec(self.density(eps))

    def linearise(self, eps: Float[Tensor, "*batch p"]) -> Linearisation:
        self.group.require_alike("the vector of parameters", eps)
        density = self.density(eps)
        prediction, variance = self.seen(density)
        return Linearisation(
            prediction=prediction,
            operator=LogNormalTangent(
                self.whitening, self.weights, self._slope(density)
            ),
            variance=variance,
        )

    def seen(
        self, density: Float[Tensor, " f"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Prediction and conditional variance of a `density` that is already coloured.

        The same density may be looked at by many models made by `at`, one after
        another: two sparse products each, and no transform.
        """
        scale = self._scale(density)
        prediction = self.weights.matvec(density)
        known = prediction if scale is density else self.weights.matvec(scale)
        return prediction, self._variance(scale, known)

    def _variance(self, density: Tensor, seen: Tensor) -> Tensor:
        """``κ_n (W ρ²)_n + (e^{c_n} − 1) (W ρ)_n²``, where ``seen`` is ``W ρ``."""
        line, point = self._factors()
        return line * self.weights.matvec(density**2) + point * seen**2

    def moved(
        self, eps: Float[Tensor, " p"], step: Float[Tensor, " p"], length: float
    ) -> Float[Tensor, " p"]:
        """A step that multiplies ρ by ``1 + δ`` where δ, the change of f, is positive.

        That is what the tangent promised; ``exp(δ)`` overshoots it, and long steps
        would have to be halved for the sake of a few cells.
        """
        if self.whitening.refinement != 1:
            return super().moved(eps, step, length)
        change = length * self.whitening.colour(step)
        softer = torch.where(change > 0, torch.log1p(change.clamp(min=0)), change)
        return eps + self.whitening.whiten(softer)

    def residual_draws(
        self, eps: Float[Tensor, "s p"], generator: torch.Generator
    ) -> Float[Tensor, "s n"]:
        """Draws that leave every prediction positive; independent between rows."""
        shape = (len(eps), len(self._functionals))
        white = torch.randn(shape, generator=generator, dtype=torch.float64)
        return self.residual_from(eps, white)

    def residual_from(
        self, eps: Float[Tensor, "s p"], white: Float[Tensor, "s n"]
    ) -> Float[Tensor, "s n"]:
        """``W ρ (e^{τ z − τ²/2} − 1)`` with ``τ² = ln(1 + v / (W ρ)²)``."""
        density = self.density(eps)
        prediction = self.weights.matvec(density)
        variance = self._variance(density, prediction)
        # A ray without length sees nothing, with no relative scatter of it.
        size = prediction.clamp(min=torch.finfo(self.dtype).tiny)
        scatter = torch.log1p((variance.sqrt() / size) ** 2).sqrt()
        exponent = scatter * white.to(scatter) - scatter**2 / 2
        return prediction * torch.expm1(exponent)

    def with_subgrid_share(self, share: float) -> LogNormal:
        if not 0 < share < math.inf:
            raise ValueError(f"a share must be positive and finite, got {share}")
        other = copy.copy(self)
        other._local = self.local
        other.subgrid_share = share
        return other

    def at(self, functionals: Functionals) -> LogNormal:
        other = copy.copy(self)
        other._local = self.local
        other._observe(functionals)
        return other

    def parameters(self) -> dict[str, Tensor]:
        kernel = {n: v.detach() for n, v in self.kernel.parameters().items()}
        share = torch.tensor(self.subgrid_share, dtype=torch.float64)
        return {**kernel, **mean_parameters(self.mean), SUBGRID_SHARE: share}

    def with_parameters(self, values: dict[str, Tensor]) -> LogNormal:
        """The same torus, W and white noise under other hyperparameters.

        Raises
        ------
        ValueError
            If a name is not among ``parameters()`` or a value is not positive.
        """
        self.require_known(values)
        own = mean_parameters(self.mean)
        other = copy.copy(self)
        if SUBGRID_SHARE in values:
            other = self.with_subgrid_share(float(values[SUBGRID_SHARE]))
        own = {*own, SUBGRID_SHARE}
        own_values = {n: v for n, v in values.items() if n in own}
        other.mean = mean_with(self.mean, own_values)
        if other.mean != self.mean:
            other._log_mean = other._logarithm()
        kernel = {n: v for n, v in values.items() if n not in own}
        if kernel:
            other.whitening = self.whitening.with_kernel(
                self.kernel.with_parameters(kernel)
            )
            other._local = None
        return other

    def parameter_gradient(
        self,
        eps: Float[Tensor, "s p"],
        of_prediction: Float[Tensor, "s n"],
        of_variance: Float[Tensor, "s n"],
    ) -> dict[str, Tensor]:
        gradient = SpectralGradient(self.whitening, self.whitening.refinement)
        total = torch.zeros(self.whitening.fine_size, dtype=torch.float64)
        line, point = self._factors()
        curved = bool(of_variance.any())
        # What the factors of the variances are multiplied with, summed over samples.
        squares = torch.zeros(2, len(line), dtype=torch.float64)
        for one, a, b in zip(eps, of_prediction, of_variance, strict=True):
            density = self.density(one)
            slope, scale = self._slope(density), self._scale(density)
            pull = self._pull(a)
            of_field, of_mean = slope * pull, density * pull
            if curved:
                seen = self.weights.matvec(scale)
                varied = 2 * scale**2 * self._pull(b * line)
                varied = varied + scale * self._pull(2 * b * point * seen)
                of_mean = of_mean + varied
                of_field = of_field + varied if scale is density else of_field
                both = torch.stack([self.weights.matvec(scale**2), seen**2])
                squares += (b * both).to(torch.float64).cpu()
            gradient.add_coloured(one[None], of_field[None])
            total += of_mean.to(torch.float64).cpu()
        of_kernel = gradient.by_parameter()
        if curved:
            of_factors = self._factor_gradient(squares)
            of_kernel = {n: v + of_factors[n] for n, v in of_kernel.items()}
        # Variances of lines are proportional to the share.
        lines = (line.to(squares) * squares[0]).sum() / self.subgrid_share
        of_mean_function = log_mean_gradient(self.mean, self._positions(), total)
        return {**of_kernel, **of_mean_function, SUBGRID_SHARE: lines}

    def _pull(self, cotangent: Tensor) -> Tensor:
        return self.weights.rmatvec(cotangent.to(self.dtype))

    def _factor_gradient(self, squares: Float[Tensor, "2 n"]) -> dict[str, Tensor]:
        """``∂/∂θ Σ_n [κ_n s_1n + (e^{c_n} − 1) s_2n]`` by central differences."""
        gradient = {}
        for name, value in self.kernel.parameters().items():
            slopes = torch.zeros(value.numel(), dtype=torch.float64)
            for entry in range(value.numel()):
                ends = []
                for sign in (-1.0, 1.0):
                    moved = value.detach().clone().reshape(-1)
                    moved[entry] *= math.exp(sign * _LOG_STEP)
                    kernel = self.kernel.with_parameters({name: moved.view_as(value)})
                    factors = self._factors_of(self._measured(kernel))
                    ends.append(float((torch.stack(factors) * squares).sum()))
                size = float(value.detach().reshape(-1)[entry])
                slopes[entry] = (ends[1] - ends[0]) / (2 * _LOG_STEP * size)
            gradient[name] = slopes.view_as(value)
        return gradient

    def _measured(self, kernel: Radial) -> LocalResidual:
        """Proportional to the variance: measured once for every lengthscale."""
        scales = tuple(kernel.lengthscale.detach().reshape(-1).tolist())
        if scales not in self._unit_residuals:
            one = {"variance": torch.ones_like(kernel.variance)}
            self._unit_residuals[scales] = local_residual(
                kernel.with_parameters(one),
                self.whitening.torus.grid.spacing,
                refinement=self.whitening.refinement,
                interpolation=self.interpolation,
                seed=self._seed,
            )
        return self._unit_residuals[scales].times(float(kernel.variance))

    def _factors(self) -> tuple[Tensor, Tensor]:
        """``κ_n`` and ``e^{c_n} − 1`` per functional; one of them is zero."""
        line, point = self._factors_of(self.local)
        place = {"dtype": self.dtype, "device": self.device}
        return line.to(**place), point.to(**place)

    def _factors_of(self, local: LocalResidual) -> tuple[Tensor, Tensor]:
        line = torch.zeros(len(self._functionals), dtype=torch.float64)
        point = torch.zeros_like(line)
        for rows, part in self._kinds:
            if isinstance(part, PointValues):
                grid = self.whitening.torus.grid
                point[rows] = self._point_factor(local.at(part.points, grid))
            else:
                line[rows] = self.subgrid_share * local.line
        return line, point

    def _point_factor(self, variance: Tensor) -> Tensor:
        """Relative variance of the density where that of f is ``c``."""
        return torch.expm1(variance)

    def _positions(self) -> Float[Tensor, "f d"]:
        return torus_positions(self.whitening.torus, self.whitening.refinement)

    def _logarithm(self) -> Float[Tensor, " f"]:
        """``ln ρ_0`` on the (refined) torus."""
        values = self.mean(self._positions())
        if not bool((values > 0).all()):
            raise ValueError(
                "the median of a log-normal density must be positive everywhere, the "
                f"mean function is {float(values.min()):.3g} at its lowest: use a "
                "positive mean, or a Gaussian density"
            )
        return values.log().to(dtype=self.dtype, device=self.device)


def _kinds(functionals: Functionals, start: int = 0) -> list[tuple[slice, Functionals]]:
    """Runs of rows of one kind."""
    if isinstance(functionals, Stack):
        runs = []
        for part in functionals.parts:
            runs += _kinds(part, start)
            start += len(part)
        return runs
    known = PointValues | LineIntegrals | DistanceMarginalizedIntegrals
    if not isinstance(functionals, known):
        raise ValueError(
            "a log-normal density is observed by point values and line integrals, got "
            f"{type(functionals).__name__}: use a Gaussian density for others"
        )
    return [(slice(start, start + len(functionals)), functionals)]
