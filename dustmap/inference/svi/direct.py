r"""The optimum of the published bound in closed form, for small problems (S2–S5).

``S_i = Λ_i⁻¹`` for each block, ``m = Λ⁻¹ b`` exactly, with ``Λ = I + Φᵀ Σ⁻¹ Φ`` and
``b = Φᵀ Σ⁻¹ r``. (The paper's S2 defines Λ_i without the identity that S4 needs.) Where
the data are fewer than the parameters, m comes from the N × N system
``m = Φᵀ (Φ Φᵀ + Σ)⁻¹ r``, and the full-rank ``S = I − Φᵀ (Φ Φᵀ + Σ)⁻¹ Φ`` is never
formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.blocks import BlockGaussian
from dustmap.inference.svi.bound import Observations, elbo
from dustmap.inference.svi.families import prior
from dustmap.inference.svi.gaussian import Gaussian, white_noise
from dustmap.inference.svi.settings import Family
from dustmap.linalg.operator import LinearOperator
from dustmap.models.row_report import RowReport
from dustmap.models.rowwise import RowwiseGaussian


@dataclass(kw_only=True, eq=False)
class DualGaussian(Gaussian):
    """``N(m, S)`` with ``S = I − Φᵀ (Φ Φᵀ + Σ)⁻¹ Φ``, held by Φ.

    Parameters
    ----------
    mean
        m.
    features
        Φ, of a model that keeps its rows.
    noise
        The diagonal of Σ.
    factor
        Lower Cholesky factor of ``Φ Φᵀ + Σ``.
    """

    mean: Float[Tensor, " p"]
    features: LinearOperator
    noise: Float[Tensor, " n"]
    factor: Float[Tensor, "n n"]

    def quadratic(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        predicted = self.features.matvec(rows).mT
        half = torch.linalg.solve_triangular(self.factor, predicted, upper=False)
        return (rows**2).sum(dim=-1) - (half**2).sum(dim=0)

    def trace(self) -> Float[Tensor, ""]:
        """``tr S = P − N + tr (Φ Φᵀ + Σ)⁻¹ Σ``."""
        inverse = torch.cholesky_inverse(self.factor).diagonal()
        return len(self.mean) - len(self.noise) + (inverse * self.noise).sum()

    def log_determinant(self) -> Float[Tensor, ""]:
        """``ln |S| = ln |Σ| − ln |Φ Φᵀ + Σ|``."""
        return self.noise.log().sum() - 2 * self.factor.diagonal().log().sum()

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "s p"]:
        """``m + ξ − Φᵀ (Φ Φᵀ + Σ)⁻¹ (Φ ξ + Σ^½ η)``, ξ and η standard normal."""
        white = white_noise(count, self.mean, generator)
        eta = white_noise(count, self.noise, generator)
        predicted = self.features.matvec(white) + self.noise.sqrt() * eta
        back = torch.cholesky_solve(predicted.mT, self.factor).mT
        return self.mean + white - self.features.rmatvec(back)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DirectOptimum:
    """The optimal q of a family, and the bound of the best q of all.

    ``collapsed_bound`` is the full-rank optimum's value: ``ln N(r | 0, Φ Φᵀ + Σ) − ½
    Σ_n v_n/σ_n²``, or with sub-grid noise ``ln N(r | 0, Φ Φᵀ + Σ + diag v)``.
    """

    q: BlockGaussian | DualGaussian
    collapsed_bound: float
    rows: RowReport


def direct_optimum(
    model: RowwiseGaussian,
    data: Observations,
    *,
    family: Family = "full",
    block: int = 2,
    memory: int = 2**32,
) -> DirectOptimum:
    """S4–S5 with every row of Φ solved once and kept in the model.

    Parameters
    ----------
    model, data
        The problem; its noise must be normal.
    family
        Of S; m is exact for each.
    block
        Points per axis of one block of ``family = "block"``.
    memory
        Bytes that kept rows and dense matrices may take.

    Raises
    ------
    ValueError
        If the problem is too large for that memory.
    """
    count, latent = len(data), model.latent_size
    needed = model.kept_bytes + 3 * 8 * min(count, latent) ** 2
    if needed > memory:
        raise ValueError(
            f"the direct optimum of {count} observations and {latent} parameters takes "
            f"{needed / 2**30:.1f} GiB, more than {memory / 2**30:.1f}: use "
            "minibatches, a coarser grid, or the full-batch engine"
        )
    model.keep_rows()
    q, bound = (_solve_dual if count <= latent else _solve_primal)(model, data)
    if family != "full":
        shape = model.whitening.latent_shape
        start = prior(family, shape, block=block, device=model.device)
        q = _covariance(model, data, start.with_mean(q.mean))
    return DirectOptimum(q=q, collapsed_bound=bound, rows=model.report)


def _solve_dual(
    model: RowwiseGaussian, data: Observations
) -> tuple[DualGaussian, float]:
    noise, operator = data.noise(model), model.operator
    rows = [operator.matvec(model.rows(index).features) for index in model.batches()]
    gram = torch.cat(rows)
    factor = torch.linalg.cholesky((gram + gram.mT) / 2 + noise.diag())
    weights = torch.cholesky_solve(data.residual[:, None], factor)[:, 0]
    q = DualGaussian(
        mean=operator.rmatvec(weights), features=operator, noise=noise, factor=factor
    )
    determinant = 2 * factor.diagonal().log().sum()
    fit = (data.residual * weights).sum()
    constant = len(data) * math.log(2 * math.pi)
    missed = 0.0 if data.subgrid_noise else (model.variance / noise).sum()
    return q, float(-0.5 * (constant + determinant + fit + missed))


def _solve_primal(
    model: RowwiseGaussian, data: Observations
) -> tuple[BlockGaussian, float]:
    """The same by ``Λ``, whose bound is the collapsed one."""
    start = prior("full", model.whitening.latent_shape, device=model.device)
    q = _covariance(model, data, start)
    projected = model.operator.rmatvec((data.residual / data.noise(model))[None])
    q = q.with_mean(q.covariance_times(projected)[0])
    return q, elbo(model, data, q)


def _covariance(
    model: RowwiseGaussian, data: Observations, start: BlockGaussian
) -> BlockGaussian:
    """``S_i⁻¹ = Λ_i = I + Σ_n k_{n,i} k_{n,i}ᵀ / σ_n²``, chunk by chunk."""
    precision = start.precision
    for index in model.batches():
        batch = data.select(index).batch(model.rows(index))
        precision = precision + (start.data_precision(batch) - start.precision)
    return replace(start, precision=precision)
