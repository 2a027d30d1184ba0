r"""A Gaussian field through exact features, one solve per observation (HIP-GP).

``Φ`` has rows ``k_n = Rᵀ K⁻¹ k_un`` (eq. 20) with the plain kernel and any whitening of
its inducing values: HIP-GP's Toeplitz embedding (PCG), Cholesky's factor, or contour
quadrature. What the points cannot resolve has variance ``v_n = k_nn − |k_n|²``, with
the same nodes in ``k_un`` and ``k_nn``. A solve that stops early leaves ``a_n`` short
of ``K⁻¹ k_un``; then ``v_n = k_nn − 2 a_nᵀ k_un + a_nᵀ K a_n``, the variance of what
``a_nᵀ u`` leaves over, which can only be larger. (In exact arithmetic it would equal
``k_nn − |k_n|²``; with rounding that is up to 7% off either way at a relative residual
of 1e-4, and 42% at 1e-3, for Matérn-3/2 with ℓ/h = 4.)

A box is smaller than its embedding, so what is kept of a row is ``a_n = K⁻¹ k_un``
(M numbers), of which ``k_n = Rᵀ a_n`` (P numbers) follows by one FFT. Of free points,
whose whitening makes ``k_n`` by itself, ``k_n`` is kept and ``v_n = k_nn − |k_n|²``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.covariance import (
    functional_covariance,
    functional_variance,
    inducing_covariance,
)
from dustmap.distributed.group import Group
from dustmap.distributed.rows import even_cuts
from dustmap.functionals import Functionals, PointValues
from dustmap.kernels import Kernel
from dustmap.linalg.operator import LinearOperator
from dustmap.models.base import ForwardModel, Linearisation
from dustmap.models.means import ConstantMean, Mean
from dustmap.models.row_report import RowReport
from dustmap.whitening import ToeplitzWhitening, Whitening, point_covariance

# Values of one chunk of embedded rows (float64: 8 bytes each, times a few temporaries).
_BLOCK = 2**22


class FeatureRows(NamedTuple):
    """Features ``k_n`` and conditional variances ``v_n`` of a batch."""

    features: Float[Tensor, "b p"]
    variance: Float[Tensor, " b"]


class SolvedRows(NamedTuple):
    """``a_n = K⁻¹ k_un`` on an embedding, else ``k_n``, and ``v_n`` of a batch."""

    values: Float[Tensor, "b m"]
    variance: Float[Tensor, " b"]


def cross_covariance(
    kernel: Kernel, functionals: Functionals, points: Float[Tensor, "m d"]
) -> Float[Tensor, "n m"]:
    """``Cov(L_n f, f(z_m))``, the rows ``k_un``; point values without their nodes."""
    if isinstance(functionals, PointValues):
        return point_covariance(kernel, functionals.points.to(points), points)
    return inducing_covariance(kernel, functionals, points)


class RowwiseFeatures(LinearOperator):
    """``Φ`` by one solve per vector: ``Φ ε = K_nu K⁻¹ R ε``, ``Φᵀ y = Rᵀ K⁻¹ K_un y``.

    With kept rows, ``Φ ε = A R ε`` without any solve. Otherwise the rows ``k_un`` are
    evaluated chunk by chunk, or once if ``N M`` numbers fit into ``memory`` bytes.
    ``report`` gathers the status of the solves.
    """

    def __init__(self, model: RowwiseGaussian, *, memory: int = 2**30) -> None:
        self.shape = (len(model.functionals), model.latent_size)
        self.dtype = model.dtype
        self.device = model.device
        self.report = RowReport()
        self._model = model
        self._fits = self.shape[0] * model.inducing_size * 8 <= memory
        self._cross: Tensor | None = None

    def matvec(self, x: Tensor) -> Tensor:
        model = self._model
        if model.kept is not None:
            values = model.whitening.colour(x) if model.embedded else x
            return values @ model.kept.values.mT
        solved = self._solve(model.whitening.colour(x))
        return torch.cat([solved @ part.mT for part in self._chunks()], dim=-1)

    def rmatvec(self, y: Tensor) -> Tensor:
        if self._model.kept is not None:
            return self._model.features_of(y @ self._model.kept.values)
        total = y.new_zeros(*y.shape[:-1], self._model.inducing_size)
        start = 0
        for part in self._chunks():
            total = total + y[..., start : start + len(part)] @ part
            start += len(part)
        return self._model.whitening.colour_transpose(self._solve(total))

    def _solve(self, values: Tensor) -> Tensor:
        flat = values.reshape(-1, values.shape[-1])
        solution = self._model.whitening.solve(flat)
        self.report = self.report.with_solution(solution)
        return solution.value.reshape(values.shape)

    def _chunks(self) -> Iterator[Tensor]:
        if self._cross is not None:
            yield self._cross
            return
        parts = []
        for _, part in self._model.functionals.chunks(self._model.chunk):
            cross = self._model.cross(part)
            if self._fits:
                parts.append(cross)
            yield cross
        if parts:
            self._cross = torch.cat(parts)


class RowwiseGaussian(ForwardModel):
    r"""``ρ = μ + f``, f Gaussian, with the published features (float64).

    All is on the device of the whitening, but for the functionals and the numbers of
    their rows, which stay on the CPU.

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
    dense_limit
        Largest N for which residuals may be drawn (``O(N³)``).
    group
        Processes that solve the rows of a batch a share each and gather them; every one
        makes this model, and calls it, together with the others.
    """

    linear = True

    def __init__(
        self,
        whitening: Whitening,
        functionals: Functionals,
        *,
        mean: Mean | None = None,
        tolerance: float = 1e-6,
        dense_limit: int = 4096,
        group: Group | None = None,
    ) -> None:
        points = whitening.points
        if functionals.dimension != points.shape[1]:
            raise ValueError(
                f"functionals in {functionals.dimension}-D do not fit inducing points "
                f"in {points.shape[1]}-D"
            )
        self.group = Group() if group is None else group
        self.whitening = whitening
        self.mean = ConstantMean() if mean is None else mean
        self.tolerance = tolerance
        self.dense_limit = dense_limit
        self.latent_size = whitening.size
        self.inducing_size = len(points)
        self.dtype = torch.float64
        self.device = whitening.covariance.device
        self.chunk = max(1, _BLOCK // whitening.size)
        self.report = RowReport()
        self.embedded = isinstance(whitening, ToeplitzWhitening)
        self.kept: SolvedRows | None = None
        self._offset: Tensor | None = None
        self._nodes: float | None = None
        self._functionals = functionals
        self.operator = RowwiseFeatures(self)
        self._points = points
        self._variance: Tensor | None = None

    @property
    def functionals(self) -> Functionals:
        return self._functionals

    @property
    def offset(self) -> Float[Tensor, " n"]:
        """``L_n μ`` of every observation."""
        if self._offset is None:
            self._offset = self.mean.observed(self._functionals).to(self.device)
        return self._offset

    @property
    def nodes_per_row(self) -> float:
        """Nodes of an observation, on average, at least 1."""
        count = len(self._functionals)
        if self._nodes is None:
            total = sum(len(p.nodes().rows) for _, p in self._functionals.chunks(4096))
            self._nodes = max(1.0, total / max(count, 1))
        return self._nodes

    @property
    def kept_bytes(self) -> int:
        """What :meth:`keep_rows` takes."""
        return 8 * len(self._functionals) * self.inducing_size

    def cross(self, functionals: Functionals) -> Float[Tensor, "n m"]:
        """The rows ``k_un`` (eq. 7)."""
        return cross_covariance(self.whitening.kernel, functionals, self._points)

    def rows(self, index: Int[Tensor, " b"]) -> FeatureRows:
        """``k_n`` (eq. 20) and ``v_n`` of some observations. Cost: one solve each.

        Raises
        ------
        ValueError
            If a ``v_n`` is negative beyond rounding.
        """
        values, variance = self.solved_rows(index)
        return FeatureRows(self.features_of(values), variance)

    def features_of(self, values: Float[Tensor, "*b m"]) -> Float[Tensor, "*b p"]:
        """``k_n`` from what is kept of rows."""
        return self.whitening.colour_transpose(values) if self.embedded else values

    def solved_rows(self, index: Int[Tensor, " b"]) -> SolvedRows:
        """What is kept of some observations, from where it is kept or solved anew."""
        if self.kept is not None:
            return SolvedRows(self.kept.values[index], self.kept.variance[index])
        return SolvedRows(*self.shared_out(self._solved, index))

    def dual_rows(self, index: Int[Tensor, " b"]) -> SolvedRows:
        """``K⁻¹ k_un`` and ``v_n`` of some observations on any whitening."""
        if self.embedded:
            return self.solved_rows(index)
        return SolvedRows(*self.shared_out(self._dual, index))

    def shared_out(
        self,
        solve: Callable[[Int[Tensor, " b"]], tuple[Tensor, ...]],
        index: Int[Tensor, " b"],
    ) -> tuple[Tensor, ...]:
        """What ``solve`` makes of these rows, each on one rank, gathered on all.

        ``solve`` returns tensors whose first dim is that of the rows; what it reports
        is joined. No gradients pass.
        """
        if self.group.size == 1:
            return solve(index)
        cuts = even_cuts(len(index), self.group.size)
        counts = [b - a for a, b in pairwise(cuts)]
        before, self.report = self.report, RowReport()
        own = index[cuts[self.group.rank] : cuts[self.group.rank + 1]]
        parts = solve(own)
        self.report = before.joined(self.report.of_all(self.group))
        return tuple(self.group.gather(part, counts, dim=0) for part in parts)

    def _solved(self, index: Int[Tensor, " b"]) -> tuple[Tensor, Tensor]:
        if self.embedded or not len(index):
            return self._dual(index)
        return self.free_rows(self.whitening, index)

    def free_rows(self, whitening: Whitening, index: Int[Tensor, " b"]) -> FeatureRows:
        """Rows of free points, differentiable in what the whitening depends on."""
        part = self._functionals.select(index)
        cross = cross_covariance(whitening.kernel, part, whitening.points)
        features, solution = whitening.features(cross)
        self.report = self.report.with_solution(solution)
        total = functional_variance(whitening.kernel, part, device=self.device)
        explained = (features**2).sum(dim=-1)
        return FeatureRows(features, self.checked_variance(total, explained))

    def _dual(self, index: Int[Tensor, " b"]) -> tuple[Tensor, Tensor]:
        if not len(index):
            # A rank's share of a batch smaller than the group.
            none = self._points.new_zeros(0, self.inducing_size)
            return none, none[:, 0]
        part = self._functionals.select(index)
        cross = self.cross(part)
        solution = self.whitening.solve(cross)
        self.report = self.report.with_solution(solution)
        coloured = self.whitening.covariance.matvec(solution.value)
        explained = (solution.value * (2 * cross - coloured)).sum(dim=-1)
        total = functional_variance(self.whitening.kernel, part, device=self.device)
        return solution.value, self.checked_variance(total, explained)

    def checked_variance(
        self, total: Float[Tensor, " b"], explained: Float[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """``v_n = k_nn − |k_n|²``; what is negative by rounding is counted and zero."""
        variance = total - explained
        exact = variance.detach()
        scale = total.detach()
        relative = torch.where(scale > 0, exact / torch.where(scale > 0, scale, 1), 0)
        self.report = self.report.with_variances(relative)
        wrong = relative < -self.tolerance
        if bool(wrong.any()):
            raise ValueError(
                f"{int(wrong.sum())} of {len(wrong)} conditional variances are "
                f"negative, down to {float(relative.min()):.1e} of the prior variance "
                f"(allowed: {-self.tolerance:.0e}): the covariance of the inducing "
                "points is singular to working precision. Add a nugget, use a coarser "
                "grid, a shorter lengthscale or a rougher kernel"
            )
        # The zero replaces rounding only: the derivative stays that of the formula.
        return variance + (exact.clamp(min=0) - exact)

    def keep_rows(self, *, on_rows: Callable[[int], None] | None = None) -> None:
        """Solve every row once and keep it (``kept_bytes``): no further solves.

        ``on_rows(rows done)`` reports progress.
        """
        if self.kept is not None:
            return
        values, variances = [], []
        for index in self.batches():
            part, variance = self.solved_rows(index)
            values.append(part)
            variances.append(variance)
            if on_rows is not None:
                on_rows(int(index[-1]) + 1)
        empty = self._points.new_zeros(0, self.inducing_size)
        self.kept = SolvedRows(
            torch.cat([empty, *values]), torch.cat([empty[:, 0], *variances])
        )

    def batches(self) -> Iterator[Int[Tensor, " b"]]:
        """The numbers of all observations, in runs that bound the memory."""
        for start in range(0, len(self._functionals), self.chunk):
            stop = min(start + self.chunk, len(self._functionals))
            yield torch.arange(start, stop)

    @property
    def variance(self) -> Float[Tensor, " n"]:
        """``v_n`` of every observation. Cost: one PCG each, the first time."""
        if self.kept is not None:
            return self.kept.variance
        if self._variance is None:
            parts = [self.solved_rows(index).variance for index in self.batches()]
            self._variance = torch.cat(parts)
        return self._variance

    def apply(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch n"]:
        return self.offset + self.operator.matvec(eps)

    def linearise(self, eps: Float[Tensor, " p"]) -> Linearisation:
        return Linearisation(
            prediction=self.apply(eps), operator=self.operator, variance=self.variance
        )

    def residual_covariance(self) -> Float[Tensor, "n n"]:
        """``Cov(L f − Φ ε) = K_nn − A K_un − (A K_un)ᵀ + A K Aᵀ``, dense.

        Equal to ``K_nn − Φ Φᵀ`` for exact solves, and positive for early stopped ones.
        """
        count = len(self._functionals)
        if count > self.dense_limit:
            raise ValueError(
                f"joint residuals of {count} observations need a dense covariance, "
                f"limited to {self.dense_limit}: ask for fewer at a time, take the "
                "variances alone, or use the full-batch torus model"
            )
        dual = torch.cat([self.dual_rows(index).values for index in self.batches()])
        cross = dual @ self.cross(self._functionals).mT
        seen = self._functionals
        prior = functional_covariance(
            self.whitening.kernel, seen, seen, device=self.device
        )
        return (
            prior - cross - cross.mT + self.whitening.covariance.matvec(dual) @ dual.mT
        )

    def residual_draws(
        self, eps: Float[Tensor, "s p"], generator: torch.Generator
    ) -> Float[Tensor, "s n"]:
        covariance = self.residual_covariance()
        # Singular wherever the grid resolves an observation: Cholesky would need a
        # jitter, eigenvalues need none.
        values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
        self._check_modes(values)
        roots = values.clamp(min=0).sqrt()
        white = torch.randn(
            len(eps), len(values), generator=generator, dtype=self.dtype
        )
        return (white.to(self.device) * roots) @ vectors.mT

    def _check_modes(self, values: Tensor) -> None:
        if not len(values):
            return
        prior = functional_variance(self.whitening.kernel, self._functionals).sum()
        if float(values[0]) < -self.tolerance * float(prior):
            raise ValueError(
                "the joint residual covariance has an eigenvalue of "
                f"{float(values[0]):.1e} in a prior total of {float(prior):.1e}: the "
                "covariance of the inducing points is singular to working precision; "
                "add a nugget"
            )
        below = int((values < 0).sum())
        total = self.report.modes_below_zero + below
        self.report = replace(self.report, modes_below_zero=total)

    def at(self, functionals: Functionals) -> RowwiseGaussian:
        return self._copy(self.whitening, functionals)

    def with_kernel(self, kernel: Kernel) -> RowwiseGaussian:
        """The same data and ε under another kernel (embedding or points kept)."""
        return self.on(self.whitening.with_kernel(kernel))

    def on(self, whitening: Whitening) -> RowwiseGaussian:
        """The same data on another whitening; the report goes on counting."""
        copy = self._copy(whitening, self._functionals)
        copy._offset, copy._nodes = self._offset, self._nodes
        copy.report = self.report
        return copy

    def about(self, mean: Mean) -> RowwiseGaussian:
        """The same data and features around another mean function."""
        copy = self._copy(self.whitening, self._functionals, mean)
        copy._nodes, copy.kept, copy.report = self._nodes, self.kept, self.report
        return copy

    def _copy(
        self, whitening: Whitening, functionals: Functionals, mean: Mean | None = None
    ) -> RowwiseGaussian:
        return RowwiseGaussian(
            whitening,
            functionals,
            mean=self.mean if mean is None else mean,
            tolerance=self.tolerance,
            dense_limit=self.dense_limit,
            group=self.group,
        )
