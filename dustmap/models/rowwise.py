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
from functools import cached_property
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
from dustmap.functionals import Functionals, PointValues
from dustmap.kernels import Kernel
from dustmap.models.base import ForwardModel, Linearisation
from dustmap.models.means import ConstantMean, Mean
from dustmap.models.row_operator import RowwiseFeatures
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
        self._functionals = functionals
        self.operator = RowwiseFeatures(self)

    @property
    def functionals(self) -> Functionals:
        return self._functionals

    @cached_property
    def offset(self) -> Float[Tensor, " n"]:
        """``L_n μ`` of every observation."""
        return self.mean.observed(self._functionals).to(self.device)

    @cached_property
    def nodes_per_row(self) -> float:
        """Nodes of an observation, on average, at least 1."""
        total = sum(len(p.nodes().rows) for _, p in self._functionals.chunks(4096))
        return max(1.0, total / max(len(self._functionals), 1))

    @property
    def kept_bytes(self) -> int:
        """What :meth:`keep_rows` takes."""
        return 8 * len(self._functionals) * self.inducing_size

    def cross(self, functionals: Functionals) -> Float[Tensor, "n m"]:
        """The rows ``k_un`` (eq. 7)."""
        return cross_covariance(
            self.whitening.kernel, functionals, self.whitening.points
        )

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
        if self.embedded:
            return self.dual_rows(index)
        return SolvedRows(
            *self.shared_out(lambda own: self.free_rows(self.whitening, own), index)
        )

    def dual_rows(self, index: Int[Tensor, " b"]) -> SolvedRows:
        """``K⁻¹ k_un`` and ``v_n`` of some observations on any whitening."""
        if self.embedded and self.kept is not None:
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
        own, counts = self.group.share(len(index))
        before, self.report = self.report, RowReport()
        parts = solve(index[own])
        self.report = before.joined(self.report.of_all(self.group))
        return tuple(self.group.gather(part, counts, dim=0) for part in parts)

    def free_rows(self, whitening: Whitening, index: Int[Tensor, " b"]) -> FeatureRows:
        """Rows of free points, differentiable in what the whitening depends on."""
        if not len(index):
            return FeatureRows(*self._nothing)
        part = self._functionals.select(index)
        cross = cross_covariance(whitening.kernel, part, whitening.points)
        features, solution = whitening.features(cross)
        self.report = self.report.with_solution(solution)
        total = functional_variance(whitening.kernel, part, device=self.device)
        explained = (features**2).sum(dim=-1)
        return FeatureRows(features, self.checked_variance(total, explained))

    def _dual(self, index: Int[Tensor, " b"]) -> tuple[Tensor, Tensor]:
        if not len(index):
            return self._nothing
        part = self._functionals.select(index)
        cross = self.cross(part)
        solution = self.whitening.solve(cross)
        self.report = self.report.with_solution(solution)
        coloured = self.whitening.covariance.matvec(solution.value)
        explained = (solution.value * (2 * cross - coloured)).sum(dim=-1)
        total = functional_variance(self.whitening.kernel, part, device=self.device)
        return solution.value, self.checked_variance(total, explained)

    @property
    def _nothing(self) -> tuple[Tensor, Tensor]:
        """A rank's share of a batch smaller than the group."""
        none = self.whitening.points.new_zeros(0, self.inducing_size)
        return none, none[:, 0]

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
        parts = [SolvedRows(*self._nothing)]
        for index in self.batches():
            parts.append(self.solved_rows(index))
            if on_rows is not None:
                on_rows(int(index[-1]) + 1)
        self.kept = SolvedRows(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def batches(self) -> Iterator[Int[Tensor, " b"]]:
        """The numbers of all observations, in runs that bound the memory."""
        count = len(self._functionals)
        yield from torch.arange(count).split(self.chunk) if count else ()

    @property
    def variance(self) -> Float[Tensor, " n"]:
        """``v_n`` of every observation. Cost: one solve each, the first time."""
        return self._variance if self.kept is None else self.kept.variance

    @cached_property
    def _variance(self) -> Float[Tensor, " n"]:
        parts = [self.solved_rows(index).variance for index in self.batches()]
        return torch.cat(parts)

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
        prior = functional_variance(self.whitening.kernel, self._functionals).sum()
        if bool((values < -self.tolerance * float(prior)).any()):
            raise ValueError(
                "the joint residual covariance has an eigenvalue of "
                f"{float(values[0]):.1e} in a prior total of {float(prior):.1e}: the "
                "covariance of the inducing points is singular to working precision; "
                "add a nugget"
            )
        below = RowReport(modes_below_zero=int((values < 0).sum()))
        self.report = self.report.joined(below)
        white = torch.randn(
            len(eps), len(values), generator=generator, dtype=self.dtype
        )
        return (white.to(self.device) * values.clamp(min=0).sqrt()) @ vectors.mT

    def at(self, functionals: Functionals) -> RowwiseGaussian:
        return self._copy(self.whitening, functionals, self.mean)

    def with_kernel(self, kernel: Kernel) -> RowwiseGaussian:
        """The same data and ε under another kernel (embedding or points kept)."""
        return self.on(self.whitening.with_kernel(kernel))

    def on(self, whitening: Whitening) -> RowwiseGaussian:
        """The same data on another whitening; the report continues to count."""
        copy = self._copy(whitening, self._functionals, self.mean)
        known = {
            n: v for n, v in vars(self).items() if n in ("offset", "nodes_per_row")
        }
        vars(copy).update(known, report=self.report)
        return copy

    def about(self, mean: Mean) -> RowwiseGaussian:
        """The same data and features around another mean function."""
        copy = self._copy(self.whitening, self._functionals, mean)
        copy.kept, copy.report = self.kept, self.report
        return copy

    def _copy(
        self, whitening: Whitening, functionals: Functionals, mean: Mean
    ) -> RowwiseGaussian:
        return RowwiseGaussian(
            whitening,
            functionals,
            mean=mean,
            tolerance=self.tolerance,
            dense_limit=self.dense_limit,
            group=self.group,
        )
