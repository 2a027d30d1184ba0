r"""Gaussian distributions ``q(ε) = N(m, S)`` and their natural-gradient step.

With ``E_n = E_q[ln p(y_n | f_n)]``, ``f_n ~ N(L_n μ + k_nᵀm, k_nᵀ S k_n + v_n)`` and
the gradients ``α_n = ∂E_n/∂mean_n``, ``β_n = ∂E_n/∂variance_n``, each times ``N/|B|``,
a step of length l in the natural parameters ``(S⁻¹m, −½ S⁻¹)`` along the gradient by
the expectation parameters ``(m, S + mmᵀ)`` (Hensman, Rattray & Lawrence 2012;
Salimbeni, Eleftheriadis & Hensman 2018; HIP-GP, S7–S12) is

``S⁻¹ ← (1 − l) S⁻¹ + l Λ̂``, ``Λ̂ = I + Σ_n w_n k_n k_nᵀ``, ``w_n = −2 β_n``,
``m ← m + l S (b̂ − Λ̂ m)`` with the new S, ``b̂ = Σ_n (α_n + w_n k_nᵀm) k_n``,

where a family keeps its own blocks of Λ̂. With normal noise ``w_n = N/(|B| σ_n²)`` and
``b̂ = Σ_n w_n r_n k_n`` for any q, and one step of l = 1 with all data is the optimum of
the full-rank family.

Three safeguards, all counted. A likelihood that is not log-concave may have β > 0,
which would take precision away: such rows add none (w ← 0). Where S is not full, the
step of m is cut to ``l ≤ 1 / λ_max(S Σ_n w_n k_n k_nᵀ)``: with blocks, unit steps
diverge. And where the bound is not quadratic in m, the step of m is halved while the
bound's part that depends on m, ``Σ_n E_n − ½ |m|²`` at the variances before the step,
falls; after ten halvings m stays.

One class covers the published families (HIP-GP, eq. 23): blocks of one parameter are
mean-field, one block of all parameters is full rank, blocks in between tile the space
of ε. The covariance is stored as the precision of its blocks, which natural steps
average.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.inference.svi.settings import SvgpSettings
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.rowwise import RowReport, RowwiseGaussian
from dustmap.shapes import Device, Eps, EpsDraws


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A minibatch's ``Λ̂ = I + Σ w k kᵀ`` and ``b̂ = Σ t k`` (S2–S3).

    Parameters
    ----------
    features
        Rows ``k_n``.
    weight, target
        ``w_n``, not negative, and ``t_n = α_n + w_n k_nᵀm``, both times ``N/|B|``; with
        normal noise ``1/σ_n²`` and ``w_n r_n``.
    clipped
        Number of rows whose curvature was set to zero.
    objective
        ``m ↦ (N/|B|) Σ_n E_n`` at the variances before the step, unless quadratic.
    """

    features: Float[Tensor, "b p"]
    weight: Float[Tensor, " b"]
    target: Float[Tensor, " b"]
    clipped: int = 0
    objective: Callable[[Eps], float] | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """Counts of the safeguards' actions, summed over natural steps.

    ``clipped`` counts rows with β > 0, ``limited`` steps of m cut to the stable length,
    ``halved`` halved steps, ``refused`` halved steps that left m unchanged.
    """

    steps: int = 0
    clipped: int = 0
    limited: int = 0
    halved: int = 0
    refused: int = 0

    def __add__(self, other: StepReport) -> StepReport:
        return StepReport(*map(operator.add, astuple(self), astuple(other)))

    def __str__(self) -> str:
        return (
            f"{self.steps} natural steps: {self.limited} were cut for stability, "
            f"{self.halved} of the mean halved, {self.refused} refused; {self.clipped} "
            "rows without curvature"
        )


@dataclass(kw_only=True, eq=False)
class NaturalGaussian:
    """``q(ε) = Π_i N(m_i, S_i)`` over k blocks of at most n parameters.

    Make it at the prior ``N(0, I)`` with :func:`block_prior`.

    Parameters
    ----------
    mean, precision
        m, and ``S_i⁻¹``, the identity in the padding.
    index
        The number of the j-th parameter of block i, or P for padding.
    solver
        For one block: conjugate gradients replace the Cholesky factor in steps and in
        ``kᵀ S k``, ``O(J P²)`` for J iterations (Pleiss et al. 2020, NeurIPS,
        arXiv:2006.11267). The KL term and draws still take a factor.
    solves
        Status of these solves.
    """

    mean: Eps
    precision: Float[Tensor, "k n n"]
    index: Int[Tensor, "k n"]
    solver: ConjugateGradients | None = None
    solves: RowReport = field(default_factory=RowReport)

    @cached_property
    def factor(self) -> Float[Tensor, "k n n"]:
        """Lower Cholesky factors of the precisions.

        Raises `ValueError` if one is not positive definite.
        """
        lower, fault = torch.linalg.cholesky_ex(self.precision)
        if bool(fault.any()):
            raise ValueError(
                f"the precision of {int((fault > 0).sum())} of {len(fault)} blocks is "
                "not positive definite: lower the natural rate"
            )
        return lower

    def gather(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, "k b n"]:
        """Cut rows into blocks, zero in the padding."""
        padded = torch.cat([rows, rows.new_zeros(len(rows), 1)], dim=1)
        return padded[:, self.index].permute(1, 0, 2)

    def scatter(self, parts: Float[Tensor, "k b n"]) -> Float[Tensor, "b p"]:
        """Join blocks to rows, the inverse of :meth:`gather`."""
        rows = parts.new_empty(parts.shape[1], len(self.mean) + 1)
        rows[:, self.index] = parts.permute(1, 0, 2)
        return rows[:, :-1]

    def quadratic(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        """Return ``kᵀ S k`` of every row, differentiable in the rows.

        With a solver it is ``2 kᵀx − xᵀ S⁻¹ x`` with ``x ≈ S k``: its error is of
        second order in that of x, and its derivative by k is 2x.
        """
        if self.solver is not None:
            x = self.covariance_times(rows.detach())
            square = (x * (x @ self.precision[0])).sum(dim=-1)
            return 2 * (rows * x).sum(dim=-1) - square
        parts = self.gather(rows).mT
        half = torch.linalg.solve_triangular(self.factor, parts, upper=False)
        return (half**2).sum(dim=(0, 1))

    def covariance_times(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        """Return ``S k`` of every row."""
        if self.solver is not None:
            K, scale = self.precision[0], self.precision[0].diagonal()
            solution = self.solver.solve(
                lambda x: x @ K, rows, preconditioner=lambda x: x / scale
            )
            self.solves = self.solves.with_solution(solution)
            return solution.value
        parts = self.gather(rows).mT
        return self.scatter(torch.cholesky_solve(parts, self.factor).mT)

    def divergence(self) -> float:
        """Return ``KL(q ‖ N(0, I)) = ½ (tr S + mᵀm − ln|S| − P)`` (eq. 14, b')."""
        size, eye = len(self.mean), torch.eye(self.index.shape[1]).to(self.precision)
        every = eye.expand_as(self.precision)
        half = torch.linalg.solve_triangular(self.factor, every, upper=False)
        # Padding adds one for each of its entries.
        trace = (half**2).sum() - (self.index.numel() - size)
        log_determinant = -2 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum()
        squares = (self.mean**2).sum()
        return 0.5 * float(trace + squares - log_determinant - size)

    def sample(self, count: int, generator: np.random.Generator) -> EpsDraws:
        """Draw ε ``count`` times."""
        # Drawn on the CPU, to be the same on every device.
        shape = count, len(self.mean)
        white = torch.from_numpy(generator.standard_normal(shape))
        parts = self.gather(white.to(self.mean)).mT
        drawn = torch.linalg.solve_triangular(self.factor.mT, parts, upper=True)
        return self.mean + self.scatter(drawn.mT)

    def with_mean(self, mean: Eps) -> Self:
        """Return the same covariance, with its cached factor, around another mean."""
        moved = copy.copy(self)
        moved.mean = mean
        return moved

    def covariance_step(self, batch: Batch, rate: float) -> Self:
        """Set ``S⁻¹ ← (1 − l) S⁻¹ + l Λ̂`` (S10, S12), positive definite for l ≤ 1.

        A family keeps its blocks of ``Λ̂ = I + Σ w k kᵀ`` (S2 with the identity of S4).
        """
        parts = self.gather(batch.features)
        data = (parts * batch.weight[:, None]).mT @ parts
        fresh = torch.eye(parts.shape[-1]).to(parts) + data
        return replace(self, precision=(1 - rate) * self.precision + rate * fresh)

    def direction(self, batch: Batch) -> Eps:
        """Return ``S (b̂ − Λ̂ m)`` with the current S."""
        misfit = batch.target - batch.weight * (batch.features @ self.mean)
        gradient = misfit @ batch.features - self.mean
        return self.covariance_times(gradient[None])[0]

    def curvature(self, batch: Batch) -> float:
        """Return ``λ_max`` of ``S Σ w k kᵀ``, by the batch's own Gram matrix.

        ``S ≤ I``, since ``S⁻¹`` averages ``Λ̂ ≥ I``; so with ``l ≤ 1 / λ_max`` and
        ``l ≤ 1`` every eigenvalue of ``l S Λ̂`` is at most 2 and the step of m cannot
        diverge. In full rank, after a covariance step, ``l λ_max ≤ 1`` always.
        """
        scaled = batch.weight.sqrt()[:, None] * batch.features
        gram = scaled @ self.covariance_times(scaled).mT
        return float(torch.linalg.eigvalsh((gram + gram.mT) / 2)[-1])

    def safe_step(self, batch: Batch, rate: float) -> tuple[Self, StepReport]:
        """Make one step of both moments; also return counts of the safeguards' actions.

        Raises `ValueError` if the rate does not lie in (0, 1].
        """
        if not 0 < rate <= 1:
            raise ValueError(
                f"a natural rate must lie in (0, 1], got {rate}: beyond 1 the "
                "covariance loses its positive definiteness"
            )
        q, length, halvings = self.covariance_step(batch, rate), rate, 0
        most = 10
        if len(q.index) > 1:
            # Steps are stable only with one block of all, which represents Λ̂ exactly.
            length = min(rate, 1 / max(q.curvature(batch), 1e-300))
        step = length * q.direction(batch)
        mean = q.mean + step
        objective = batch.objective
        if objective is not None:

            def bound(m: Tensor) -> float:
                return objective(m) - 0.5 * float(m @ m)

            before = bound(q.mean)
            # At the optimum a step changes the bound by rounding only.
            least = before - 1e-10 * abs(before)
            while halvings <= most and not bound(mean) >= least:
                halvings += 1
                mean = q.mean + 0.5**halvings * step
            if halvings > most:
                mean = q.mean
        return q.with_mean(mean), StepReport(
            steps=1,
            clipped=batch.clipped,
            # Rounding does not count as a cut.
            limited=int(length * (1 + 1e-9) < rate),
            halved=int(halvings > 0),
            refused=int(halvings > most),
        )


def block_prior(
    shape: Sequence[int], width: int, device: Device = "cpu"
) -> NaturalGaussian:
    """Return ``N(0, I)`` with independent blocks that tile a grid of ε (eq. 23).

    Parameters
    ----------
    shape
        The grid of ε (the embedding), in C order.
    width
        Points per axis of one block: 1 is mean-field, the longest axis full rank
        (``P²`` numbers, ``O(P³)`` a step). Last blocks may be smaller; an axis shorter
        than the width is taken whole.
    """
    size = math.prod(shape)
    block = [min(width, n) for n in shape]
    whole = [math.ceil(n / b) * b for n, b in zip(shape, block, strict=True)]
    padded = torch.full(whole, size)
    padded[tuple(slice(0, n) for n in shape)] = torch.arange(size).reshape(*shape)
    for axis, b in enumerate(block):
        padded = padded.unfold(axis, b, b)
    index = padded.reshape(-1, math.prod(block)).to(device)
    eye = torch.eye(index.shape[1], dtype=torch.float64, device=device)
    return NaturalGaussian(
        mean=eye.new_zeros(size),
        precision=eye.expand(len(index), *eye.shape).clone(),
        index=index,
    )


def initial_family(forward: RowwiseGaussian, settings: SvgpSettings) -> NaturalGaussian:
    """Return the prior in the family of the settings.

    Raises `ValueError` if it would not fit into memory.
    """
    size, shape = forward.latent_size, forward.whitening.latent_shape
    # Points per axis of a block.
    widths = {"mean-field": 1, "block": settings.block, "full": max(shape)}
    width = widths[settings.family]
    numbers = math.prod(min(width, n) for n in shape)
    # The precision, its factor and the fresh estimate exist at once.
    needed = 3 * 8 * size * numbers
    if needed > settings.covariance_memory:
        raise ValueError(
            f"a {settings.family} covariance of {size} parameters takes "
            f"{needed / 2**30:.1f} GiB, more than "
            f"{settings.covariance_memory / 2**30:.1f}: use smaller blocks "
            "or fewer inducing points"
        )
    prior = block_prior(shape, width, forward.device)
    if settings.family == "full" and settings.solves == "iterative":
        prior.solver = ConjugateGradients(rtol=settings.solver_rtol, max_steps=500)
    return prior
