r"""Regression of every place on its nearest rows.

With the covariance :math:`c` of a place with its neighbours :math:`N`, their own
:math:`A = K_{NN} + D_N`, and residuals :math:`r = y - \mu`,

.. math::
   m = c^\top A^{-1} r_N, \qquad v = k(0) - c^\top A^{-1} c

(nearest-neighbour Gaussian processes: Datta et al. 2016, JASA 111, 800; Katzfuss &
Guinness 2021, Stat. Sci. 36, 124). Those papers order the rows and learn from each
row's *earlier* neighbours; here a row is scored by its neighbours among all others, as
places are predicted. That is leave-one-out cross-validation (Rasmussen & Williams 2006,
ch. 5.4.2), with neighbours, of the rows that are scored:

.. math::
   \log p = -\tfrac12 \sum_i \left[ \frac{e_i^2}{s_i} + \log 2\pi s_i \right], \qquad
   e_i = y_i - \mu - m_i, \quad s_i = v_i + \tau^2 + \sigma_i^2 .

With :math:`\alpha = A^{-1} c` and :math:`\beta = A^{-1} r_N` its gradient needs no
derivative of a factor:

.. math::
   ds = dk(0) + d\tau^2 - 2 \alpha^\top dc + \alpha^\top dA\, \alpha, \qquad
   de = -\beta^\top dc + \alpha^\top dA\, \beta - (1 - \mathbf 1^\top \alpha)\, d\mu .

Cost of a place: ``k³/3`` operations, ``k²`` values of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import Functionals, PointValues
from dustmap.gp.regression import Regression, gradients_of, leaves_of
from dustmap.kernels import Radial
from dustmap.residual.kriging import solve_neighbourhoods
from dustmap.residual.neighbours import RowIndex, without_self

# Covariances of neighbours in one block: larger arrays leave the processor's cache.
_BLOCK = 2**17
# Neighbours are found in other units than the lengthscales up to this distortion.
_DISTORTION = 1.1


class _Block(NamedTuple):
    """Covariances of some places' neighbours with each other and with the place."""

    among: Float[Tensor, "m k k"]
    across: Float[Tensor, "m k"]


class _Solved(NamedTuple):
    """α and β of some places, their mean and the variance that is left."""

    alpha: Float[Tensor, "m k"]
    beta: Float[Tensor, "m k"]
    mean: Float[Tensor, " m"]
    variance: Float[Tensor, " m"]


@dataclass(eq=False)
class NeighbourGP(Regression):
    """Values at points, each predicted from its ``count`` nearest.

    Parameters
    ----------
    kernel, functionals, observations, noise, mean, known_noise
        As in :class:`~dustmap.gp.regression.Regression`; a radial kernel and
        :class:`~dustmap.functionals.PointValues`.
    count
        k, the number of neighbours, or all rows if there are fewer.
    scored
        Numbers of the rows whose log score is ``log_marginal``.
    index
        Finds neighbours; in units of the lengthscales unless given.
    jitter
        Noise relative to ``k(0)`` that is added to every row's, so that covariances of
        rows without noise stay positive definite.
    near
        Neighbours of the scored rows, which rest while hyperparameters move; found by
        the index unless given.

    Raises
    ------
    ValueError
        Also if the functionals are not values at points, or
        ``count`` or the jitter is out of its range.
    """

    kernel: Radial
    functionals: PointValues
    _: KW_ONLY
    count: int
    scored: Int[Tensor, " s"]
    jitter: float = 1e-10
    index: RowIndex | None = None
    near: Int[Tensor, "s k"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(self.functionals)
        if self.count < 1:
            raise ValueError(f"at least one neighbour is needed, got {self.count}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"the jitter lies in [0, 1), got {self.jitter}")
        points = self.functionals.points
        if self.index is None:
            self.index = RowIndex.of(points, self.kernel.lengthscale)
        if self.near is None:
            near = self.index.nearest(points[self.scored], self.count + 1)
            self.near = without_self(near, self.scored)

    @property
    def noise_variance(self) -> Float[Tensor, " n"]:
        """``τ² + σ_n²`` and the jitter."""
        return super().noise_variance + self.jitter * self.kernel.variance

    def renewed(self, **changes: Any) -> Self:
        """The same after changes, with the neighbours of its present lengthscales.

        The index stays while no axis is stretched against another by more than 10%.
        """
        assert self.index is not None
        stale = self.index.distortion(self.kernel.lengthscale) > _DISTORTION
        index = None if stale else self.index
        return replace(self, **{"index": index, "near": None, **changes})

    def log_marginal(self) -> float:
        """The log score of the scored rows [nats]."""
        return float(self.log_scores().sum())

    def log_scores(self) -> Float[Tensor, " s"]:
        """Log density of every scored row given its neighbours."""
        x, parts = self.functionals.points, []
        with torch.no_grad():
            for rows, near in self._scored_blocks():
                solved = self._solve(near, _block(self.kernel, x[rows], x[near]))
                parts.append(_log_normal(*self._misfit(rows, solved)))
        return torch.cat(parts)

    def value_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        leaves = leaves_of(self.parameters())
        moved, x, total = self.with_parameters(leaves), self.functionals.points, 0.0
        for rows, near in self._scored_blocks():
            block = _block(moved.kernel, x[rows], x[near])
            with torch.no_grad():
                solved = self._solve(near, block)
                error, spread = self._misfit(rows, solved)
                total += float(_log_normal(error, spread).sum())
            moved._linearised(block, solved, error, spread).backward()
        return total, gradients_of(leaves)

    @property
    def _width(self) -> int:
        return self.count

    def _moments(self, part: Functionals) -> tuple[Tensor, Tensor]:
        x, places = self.functionals.points, self._check(part).points
        assert self.index is not None
        near = self.index.nearest(places, self.count)
        solved = [
            self._solve(some, _block(self.kernel, at, x[some]))
            for at, some in _blocks(places, near)
        ]
        return (
            torch.cat([block.mean for block in solved]),
            torch.cat([block.variance for block in solved]),
        )

    def _check(self, functionals: Functionals) -> PointValues:
        if not isinstance(functionals, PointValues):
            raise ValueError(
                "neighbours need values at points, got "
                f"{type(functionals).__name__}: use ExactGP or SGPR"
            )
        return functionals

    def _scored_blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        assert self.near is not None
        return _blocks(self.scored, self.near)

    def _solve(self, near: Tensor, block: _Block) -> _Solved:
        right = torch.stack([block.across, self.residual[near]], dim=1)
        noise = self.noise_variance[near]
        alpha, beta = solve_neighbourhoods(block.among, noise, right).unbind(1)
        return _Solved(
            alpha=alpha,
            beta=beta,
            mean=(block.across * beta).sum(dim=1),
            variance=self.kernel.variance - (block.across * alpha).sum(dim=1),
        )

    def _misfit(self, rows: Tensor, solved: _Solved) -> tuple[Tensor, Tensor]:
        """Errors of the predicted rows and their variances."""
        error = self.residual[rows] - solved.mean
        return error, solved.variance + self.noise_variance[rows]

    def _linearised(
        self, block: _Block, solved: _Solved, error: Tensor, spread: Tensor
    ) -> Float[Tensor, ""]:
        """A function of covariances, noise and mean with the score's gradient."""
        alpha, beta = solved.alpha, solved.beta
        by_error = (-error / spread)[:, None]
        by_spread = 0.5 * (by_error**2 - 1 / spread[:, None])
        both = by_spread * alpha + by_error * beta
        noise = self.noise + self.jitter * self.kernel.variance
        mean = torch.as_tensor(self.mean)
        return (
            by_spread.sum() * self.kernel.variance
            - ((both + by_spread * alpha) * block.across).sum()
            + ((block.among @ both[..., None])[..., 0] * alpha).sum()
            + noise * (by_spread.sum() + (alpha * both).sum())
            - mean * (by_error * (1 - alpha.sum(dim=1, keepdim=True))).sum()
        )


def _block(
    kernel: Radial, places: Float[Tensor, "m d"], rows: Float[Tensor, "m k d"]
) -> _Block:
    """Covariances of every place with its rows, and of these; differentiable."""
    near = rows / kernel.lengthscale
    at = (places / kernel.lengthscale)[:, None]
    return _Block(
        among=kernel.variance * kernel.radial(_distances(near, near)),
        across=kernel.variance * kernel.radial(_distances(at, near))[:, 0],
    )


def _distances(
    one: Float[Tensor, "m a d"], other: Float[Tensor, "m b d"]
) -> Float[Tensor, "m a b"]:
    # By differences: in those of squared norms digits cancel.
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")


def _log_normal(error: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * (error**2 / variance + (2 * math.pi * variance).log())


def _blocks(places: Tensor, near: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Places and their neighbours, few enough at a time."""
    size = max(1, _BLOCK // near.shape[1] ** 2)
    return zip(places.split(size), near.split(size), strict=True)
