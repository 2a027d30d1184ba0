r"""A Gaussian field with exact features, one solve per observation (HIP-GP).

``Φ`` has rows ``k_n = Rᵀ K⁻¹ k_un`` (eq. 20) with the plain kernel and any whitening of
its inducing values: HIP-GP's Toeplitz embedding (PCG), Cholesky's factor or contour
quadrature. What the points cannot resolve has the variance ``v_n = k_nn − |k_n|²``;
``k_un`` and ``k_nn`` have the same nodes. If a solve stops early, ``a_n`` approximates
``K⁻¹ k_un``, and ``v_n = k_nn − 2 a_nᵀ k_un + a_nᵀ K a_n`` is the variance of the
remainder ``L_n f − a_nᵀ u``, which can only be larger. (In exact arithmetic it would
equal ``k_nn − |k_n|²``; with rounding, the latter is up to 7% off either way at a
relative residual of 1e-4, and 42% at 1e-3, for Matérn-3/2 with ℓ/h = 4.)

A box is smaller than its embedding, so kept rows are ``a_n = K⁻¹ k_un`` (M numbers), of
which ``k_n = Rᵀ a_n`` (P numbers) follows by one FFT. For free points, whose whitening
makes ``k_n`` directly, kept rows are ``k_n`` and ``v_n = k_nn − |k_n|²``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, astuple, dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.covariance import (
    functional_covariance,
    functional_variance,
    inducing_covariance,
)
from dustmap.distributed.group import Group
from dustmap.functionals import Functionals
from dustmap.linalg.cg import Solution
from dustmap.linalg.operator import LinearOperator, inner
from dustmap.memory import rows_within
from dustmap.models.base import ForwardModel, Linearisation
from dustmap.models.means import ConstantMean, Mean
from dustmap.shapes import Draws, Eps, EpsDraws, Index, Vector
from dustmap.whitening import ToeplitzWhitening, Whitening

# Limit on the bytes of rows ``k_un`` that the operator keeps.
_CROSS = 2**30


class FeatureRows(NamedTuple):
    """Features ``k_n`` and conditional variances ``v_n`` of a batch.

    Kept rows of an embedding hold ``a_n = K⁻¹ k_un`` in place of ``k_n``.
    """

    features: Float[Tensor, "b p"]
    variance: Float[Tensor, " b"]


@dataclass(frozen=True, slots=True)
class RowReport:
    """The status of all solves so far.

    ``rows`` counts right-hand sides, of rows and of products with Φ. ``residual`` is
    the worst true relative residual of a solve and ``iterations`` the largest number;
    ``unconverged`` counts solves that stopped short of the tolerance (on purpose with
    early stopping). ``below_zero`` counts rows whose ``v_n`` was negative by rounding
    and was set to zero; ``lowest`` is the lowest of these relative to ``k_nn``.
    ``modes_below_zero`` counts eigenvalues of a joint residual covariance likewise.
    """

    rows: int = 0
    unconverged: int = 0
    residual: float = 0.0
    iterations: int = 0
    below_zero: int = 0
    lowest: float = 0.0
    modes_below_zero: int = 0

    def with_solution(self, solution: Solution) -> RowReport:
        """Add a batch of solves."""
        if not len(solution.residual):
            return self
        found = RowReport(
            rows=len(solution.residual),
            unconverged=int((~solution.converged).sum()),
            residual=float(solution.residual.max()),
            iterations=int(solution.iterations.max()),
        )
        return self.joined(found)

    def joined(self, *others: RowReport) -> RowReport:
        """Join this report with reports on other rows."""
        columns = list(zip(astuple(self), *map(astuple, others), strict=True))
        join = (sum, sum, max, max, sum, min, sum)
        return RowReport(*(f(column) for f, column in zip(join, columns, strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.rows} solves in at most {self.iterations} iterations, "
            f"{self.unconverged} short of the tolerance (worst residual "
            f"{self.residual:.1e}); {self.below_zero} conditional variances below zero "
            f"by rounding (lowest {self.lowest:.1e} of the prior variance), "
            f"{self.modes_below_zero} modes of residual covariances likewise"
        )


class RowwiseFeatures(LinearOperator):
    """``Φ`` by one solve per vector: ``Φ ε = K_nu K⁻¹ R ε``, ``Φᵀ y = Rᵀ K⁻¹ K_un y``.

    With kept rows, ``Φ ε = A R ε`` without any solve. Otherwise the rows ``k_un`` are
    evaluated chunk by chunk, or once if they fit into a gibibyte; the model's report
    counts the solves.
    """

    def __init__(self, model: RowwiseGaussian) -> None:
        self.shape = (len(model.functionals), model.latent_size)
        self.dtype = model.dtype
        self.device = model.device
        self._model = model
        self._cross: list[Tensor] = []

    def matvec(self, x: Tensor) -> Tensor:
        model = self._model
        if model.kept is not None:
            values = model.whitening.colour(x) if model.embedded else x
            return values @ model.kept.features.mT
        solved = self._solve(model.whitening.colour(x))
        # Row by row: BLAS rounds a row alone otherwise than among others.
        parts = [inner(part, solved[..., None, :]) for part in self._chunks()]
        return torch.cat(parts, dim=-1)

    def rmatvec(self, y: Tensor) -> Tensor:
        model = self._model
        if model.kept is not None:
            return model.features_of(y @ model.kept.features)
        total = y.new_zeros(*y.shape[:-1], model.inducing_size)
        for own, part in zip(y.split(model.chunk, dim=-1), self._chunks()):
            total = total + own @ part
        return model.whitening.colour_transpose(self._solve(total))

    def _solve(self, values: Tensor) -> Tensor:
        flat = values.reshape(-1, values.shape[-1])
        solution = self._model.whitening.solve(flat)
        self._model.report = self._model.report.with_solution(solution)
        return solution.value.reshape(values.shape)

    def _chunks(self) -> Iterable[Tensor]:
        """Yield ``k_un``, chunk by chunk."""
        model = self._model
        chunks = model.functionals.chunks(model.chunk)
        if model.kept_bytes > _CROSS:
            return (model.cross(part) for _, part in chunks)
        if not self._cross:
            self._cross = [model.cross(part) for _, part in chunks]
        return self._cross


@dataclass(eq=False)
class RowwiseGaussian(ForwardModel):
    r"""``ρ = μ + f``, f Gaussian, with the published features (float64).

    All tensors are on the device of the whitening, except for the functionals and their
    row numbers, which stay on the CPU.

    Parameters
    ----------
    whitening
        ε ↔ inducing values on the box.
    functionals
        The observations.
    mean
        The mean function.
    tolerance
        ``v_n ≥ −tolerance · k_nn`` counts as rounding; anything lower is an error.
    group
        Processes that share the solves for a batch's rows and gather them; all of them
        construct and call the model together.
    report, kept
        Status of the solves so far, and the rows of :meth:`keep_rows`.
    """

    whitening: Whitening
    functionals: Functionals
    _: KW_ONLY
    mean: Mean = field(default_factory=ConstantMean)
    tolerance: float = 1e-6
    group: Group = field(default_factory=Group)
    report: RowReport = field(default_factory=RowReport)
    kept: FeatureRows | None = None
    linear = True

    def __post_init__(self) -> None:
        points, dimension = self.whitening.points, self.functionals.dimension
        if dimension != points.shape[1]:
            raise ValueError(
                f"functionals in {dimension}-D do not fit inducing points in "
                f"{points.shape[1]}-D"
            )
        self.latent_size = self.whitening.size
        self.inducing_size = len(points)
        self.dtype = torch.float64
        self.device = self.whitening.covariance.device
        # Embedded rows in float64, and three temporary arrays of their size.
        self.chunk = rows_within(32 * self.latent_size)
        self.embedded = isinstance(self.whitening, ToeplitzWhitening)
        self.operator = RowwiseFeatures(self)

    @cached_property
    def offset(self) -> Vector:
        """``L_n μ`` of every observation."""
        return self.mean.observed(self.functionals).to(self.device)

    @cached_property
    def nodes_per_row(self) -> float:
        """Mean number of nodes of an observation, at least 1."""
        total = sum(len(p.nodes().rows) for _, p in self.functionals.chunks(4096))
        return max(1.0, total / max(len(self.functionals), 1))

    @property
    def kept_bytes(self) -> int:
        """Memory that :meth:`keep_rows` takes [bytes]."""
        return 8 * len(self.functionals) * self.inducing_size

    def cross(self, functionals: Functionals) -> Float[Tensor, "n m"]:
        """Return the rows ``k_un`` (eq. 7)."""
        whitening = self.whitening
        return inducing_covariance(whitening.kernel, functionals, whitening.points)

    def rows(self, index: Index) -> FeatureRows:
        """Return ``k_n`` (eq. 20) and ``v_n`` of some rows. Cost: one solve each.

        Raises `ValueError` if a ``v_n`` is negative beyond rounding.
        """
        values, variance = self._rows_to_keep(index)
        return FeatureRows(self.features_of(values), variance)

    def features_of(self, values: Float[Tensor, "*b m"]) -> Float[Tensor, "*b p"]:
        """Return ``k_n`` from kept values of rows."""
        return self.whitening.colour_transpose(values) if self.embedded else values

    def _rows_to_keep(self, index: Index, *, dual: bool | None = None) -> FeatureRows:
        """Return ``v_n`` with ``a_n`` or ``k_n``, by default the one kept."""
        dual = self.embedded if dual is None else dual
        if self.kept is not None and dual == self.embedded:
            return FeatureRows(self.kept.features[index], self.kept.variance[index])
        solve = partial(self.rows_under, self.whitening, dual=dual)
        return FeatureRows(*self.shared_out(solve, index))

    def rows_under(
        self, whitening: Whitening, index: Index, *, dual: bool = False
    ) -> FeatureRows:
        """Return ``v_n`` with ``k_n`` or ``a_n`` under a whitening.

        Rows with ``k_n`` are differentiable in the whitening's inputs.
        """
        if not len(index):
            # A rank may have no rows of a batch smaller than the group.
            none = whitening.points.new_zeros(0, self.inducing_size)
            return FeatureRows(none, none[:, 0])
        part = self.functionals.select(index)
        cross = inducing_covariance(whitening.kernel, part, whitening.points)
        if dual:
            solution = whitening.solve(cross)
            values = solution.value
            coloured = whitening.covariance.matvec(values)
            explained = (values * (2 * cross - coloured)).sum(dim=-1)
        else:
            values, explained, solution = whitening.features(cross)
        self.report = self.report.with_solution(solution)
        total = functional_variance(whitening.kernel, part, device=self.device)
        return FeatureRows(values, self.checked_variance(total, explained))

    def shared_out(
        self, solve: Callable[[Index], tuple[Tensor, ...]], index: Index
    ) -> tuple[Tensor, ...]:
        """Share these rows among the ranks, and gather the results of ``solve``.

        ``solve`` returns tensors with the rows along their first dim; reports are
        joined. Results carry no gradients.
        """
        if self.group.size == 1:
            return solve(index)
        own, counts = self.group.share(len(index))
        before, self.report = self.report, RowReport()
        parts = solve(index[own])
        mine = torch.tensor([astuple(self.report)], dtype=torch.float64)
        kinds = [type(value) for value in astuple(before)]
        reports = [
            RowReport(*(kind(x) for kind, x in zip(kinds, numbers, strict=True)))
            for numbers in self.group.gather(mine, [1] * len(counts), dim=0).tolist()
        ]
        self.report = before.joined(*reports)
        return tuple(self.group.gather(part, counts, dim=0) for part in parts)

    def checked_variance(self, total: Vector, explained: Vector) -> Vector:
        """Return ``v_n = k_nn − |k_n|²``; count rounding below zero, set to 0."""
        variance = total - explained
        exact = variance.detach()
        scale = total.detach()
        relative = torch.where(scale > 0, exact / torch.where(scale > 0, scale, 1), 0)
        wrong = relative < -self.tolerance
        if bool(wrong.any()):
            raise ValueError(
                f"{int(wrong.sum())} of {len(wrong)} conditional variances are "
                f"negative, down to {float(relative.min()):.1e} of the prior variance "
                f"(allowed: {-self.tolerance:.0e}): the covariance of the inducing "
                "points is singular to working precision. Add a nugget, use a coarser "
                "grid, a shorter lengthscale or a rougher kernel"
            )
        below = relative[relative < 0]
        if len(below):
            found = RowReport(below_zero=len(below), lowest=float(below.min()))
            self.report = self.report.joined(found)
        # Zero replaces rounding only: the derivative remains that of the formula.
        return variance + (exact.clamp(min=0) - exact)

    def keep_rows(self, *, on_rows: Callable[[int], None] | None = None) -> None:
        """Solve every row once and keep it (``kept_bytes``): no further solves.

        ``on_rows(rows done)`` reports progress.
        """
        if self.kept is not None:
            return
        parts = [self.rows_under(self.whitening, torch.arange(0))]
        for index in self.batches():
            parts.append(self._rows_to_keep(index))
            if on_rows is not None:
                on_rows(int(index[-1]) + 1)
        self.kept = FeatureRows(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def batches(self) -> Iterator[Index]:
        """Yield the numbers of all observations, in runs of bounded memory."""
        count = len(self.functionals)
        yield from torch.arange(count).split(self.chunk) if count else ()

    @cached_property
    def variance(self) -> Vector:
        """``v_n`` of every observation. Cost: one solve each, unless rows are kept."""
        if self.kept is not None:
            return self.kept.variance
        parts = [self._rows_to_keep(index).variance for index in self.batches()]
        return torch.cat(parts)

    def apply(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch n"]:
        return self.offset + self.operator.matvec(eps)

    def linearise(self, eps: Eps) -> Linearisation:
        return Linearisation(
            prediction=self.apply(eps), operator=self.operator, variance=self.variance
        )

    def residual_covariance(self) -> Float[Tensor, "n n"]:
        """Return ``Cov(L f − Φ ε) = K_nn − A K_un − (A K_un)ᵀ + A K Aᵀ``, dense.

        It equals ``K_nn − Φ Φᵀ`` for exact solves, and is positive with early stopping.
        """
        seen, whitening = self.functionals, self.whitening
        # Joint draws take O(N³).
        if len(seen) > 4096:
            raise ValueError(
                f"joint residuals of {len(seen)} observations need a dense covariance, "
                f"limited to 4096: draw fewer at a time, take the variances "
                "alone, or use the full-batch torus model"
            )
        parts = [self._rows_to_keep(index, dual=True) for index in self.batches()]
        dual = torch.cat([part.features for part in parts])
        cross = dual @ self.cross(seen).mT
        prior = functional_covariance(whitening.kernel, seen, seen, device=self.device)
        return prior - cross - cross.mT + whitening.covariance.matvec(dual) @ dual.mT

    def residual_draws(self, eps: EpsDraws, generator: torch.Generator) -> Draws:
        covariance = self.residual_covariance()
        # The covariance is singular if the grid resolves an observation: Cholesky would
        # need a jitter, eigenvalues do not.
        values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
        prior = functional_variance(self.whitening.kernel, self.functionals).sum()
        if bool((values < -self.tolerance * float(prior)).any()):
            raise ValueError(
                "the joint residual covariance has an eigenvalue of "
                f"{float(values[0]):.1e} in a prior total of {float(prior):.1e}: the "
                "covariance of the inducing points is singular to working precision; "
                "add a nugget"
            )
        below = RowReport(modes_below_zero=int((values < 0).sum()))
        self.report = self.report.joined(below)
        shape = len(eps), len(values)
        white = torch.randn(shape, generator=generator, dtype=self.dtype)
        return (white.to(self.device) * values.clamp(min=0).sqrt()) @ vectors.mT

    def at(self, functionals: Functionals) -> RowwiseGaussian:
        return replace(self, functionals=functionals, report=RowReport(), kept=None)

    def on(self, whitening: Whitening) -> RowwiseGaussian:
        """Return the same data on another whitening, with the report so far."""
        return replace(self, whitening=whitening, kept=None)

    def about(self, mean: Mean) -> RowwiseGaussian:
        """Return the same data and features around another mean function."""
        return replace(self, mean=mean)
