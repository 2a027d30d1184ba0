r"""Regression of every place on its nearest rows.

With the covariance :math:`c` of a place with its neighbours :math:`N`, the neighbours'
covariance :math:`A = K_{NN} + D_N` and residuals :math:`r = y - \mu`,

.. math::
   m = c^\top A^{-1} r_N, \qquad v = k(0) - c^\top A^{-1} c

(nearest-neighbour Gaussian processes: Datta et al. 2016, JASA 111, 800; Katzfuss &
Guinness 2021, Stat. Sci. 36, 124). Those papers order the rows and learn from each
row's *earlier* neighbours; here a row is scored given its neighbours among all others,
as places are predicted. This is leave-one-out cross-validation (Rasmussen & Williams
2006, ch. 5.4.2) of the scored rows, given their neighbours:

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

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import Functionals, PointValues
from dustmap.gp.regression import ScoredRegression, gradients_of, leaves_of
from dustmap.kernels import Radial
from dustmap.memory import rows_within
from dustmap.residual.kriging import solve_neighbourhoods
from dustmap.residual.neighbours import Near, RowIndex, nearest, without_self
from dustmap.shapes import Places, Points, Vector
from dustmap.tails import log_normal


class Solved(NamedTuple):
    """Neighbourhoods of places: covariances, α and β, and the places' moments."""

    among: Float[Tensor, "m k k"]
    across: Float[Tensor, "m k"]
    alpha: Float[Tensor, "m k"]
    beta: Float[Tensor, "m k"]
    mean: Float[Tensor, " m"]
    variance: Float[Tensor, " m"]


@dataclass(eq=False)
class NeighbourGP(ScoredRegression):
    """Values at points, each predicted from its ``count`` nearest neighbours.

    A :class:`~dustmap.gp.regression.Regression` with a radial kernel and
    :class:`~dustmap.functionals.PointValues`.

    Parameters
    ----------
    count
        k, the number of neighbours, or all rows if there are fewer.
    scored
        Numbers of the rows whose log score is ``log_marginal``.
    index, near
        Search index, by default in units of the lengthscales, and neighbours of the
        scored rows, by default from the index; both are fixed while hyperparameters
        move.
    jitter
        Variance relative to ``k(0)`` that is added to every row's noise, so that the
        covariance of rows without noise stays positive definite.

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
        if self.count < 1 or not 0 <= self.jitter < 1:
            raise ValueError(
                "expected at least one neighbour and a jitter in [0, 1), got "
                f"{self.count} and {self.jitter}"
            )
        points = _points(self.functionals)
        if self.index is None:
            self.index = RowIndex.of(points, self.kernel.lengthscale)
        if self.near is None:
            near = self.index.nearest(points[self.scored], self.count + 1)
            self.near = without_self(near, self.scored)

    @cached_property
    def noise_variance(self) -> Vector:
        """``τ² + σ_n²`` plus the jitter."""
        return super().noise_variance + self.jitter * self.kernel.variance

    def renewed(self, **changes: Any) -> Self:
        """Change fields, and find neighbours for the current lengthscales.

        The index is kept while no axis is stretched against another by more than 10%.
        """
        assert self.index is not None
        stretch = self.kernel.lengthscale.detach() / self.index.unit
        index = None if stretch.max() / stretch.min() > 1.1 else self.index
        return replace(self, **{"index": index, "near": None, **changes})

    def log_marginal(self) -> float:
        """Return the log score of the scored rows [nats]."""
        return float(self.log_scores().sum())

    @torch.no_grad()
    def log_scores(self) -> Float[Tensor, " s"]:
        """Return the log density of every scored row given its neighbours."""
        x, parts = self.functionals.points, []
        for rows, near in self._scored_blocks():
            parts.append(log_normal(*self._misfit(rows, self.solved_at(x[rows], near))))
        return torch.cat(parts)

    def value_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        leaves, x, total = leaves_of(self.parameters()), self.functionals.points, 0.0
        moved = self.with_parameters(leaves)
        for rows, near in self._scored_blocks():
            solved = moved.solved_at(x[rows], near)
            error, spread = moved._misfit(rows, solved)
            total += float(log_normal(error, spread).sum())
            # A linear function with the gradient of the score.
            alpha, beta = solved.alpha, solved.beta
            by_error = (-error / spread)[:, None]
            by_spread = 0.5 * (by_error**2 - 1 / spread[:, None])
            both = by_spread * alpha + by_error * beta
            variance, mean = moved.kernel.variance, torch.as_tensor(moved.mean)
            noise = moved.noise + moved.jitter * variance
            linear = (
                by_spread.sum() * variance
                - ((both + by_spread * alpha) * solved.across).sum()
                + ((solved.among @ both[..., None])[..., 0] * alpha).sum()
                + noise * (by_spread.sum() + (alpha * both).sum())
                - mean * (by_error * (1 - alpha.sum(dim=1, keepdim=True))).sum()
            )
            linear.backward()
        return total, gradients_of(leaves)

    @property
    def _width(self) -> int:
        return self.count

    def _moments(self, part: Functionals) -> tuple[Tensor, Tensor]:
        assert self.index is not None
        places = _points(part)
        near = self.index.nearest(places, self.count)
        blocks = neighbour_blocks(places, near)
        solved = [self.solved_at(at, some) for at, some in blocks]
        mean, variance = ([getattr(s, n) for s in solved] for n in ("mean", "variance"))
        return torch.cat(mean), torch.cat(variance)

    def _scored_blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        assert self.near is not None
        return neighbour_blocks(self.scored, self.near)

    def solved_at(self, places: Places, near: Near) -> Solved:
        """Solve neighbourhoods; only their covariances carry gradients."""
        kernel = self.kernel
        x = self.functionals.points[near] / kernel.lengthscale
        at = (places / kernel.lengthscale)[:, None]
        # Coordinate differences, as differences of squared norms lose digits.
        exact = "donot_use_mm_for_euclid_dist"
        among = kernel.variance * kernel.radial(torch.cdist(x, x, compute_mode=exact))
        distance = torch.cdist(at, x, compute_mode=exact)
        across = (kernel.variance * kernel.radial(distance))[:, 0]
        with torch.no_grad():
            right = torch.stack([across, self.residual[near]], dim=1)
            noise = self.noise_variance[near]
            alpha, beta = solve_neighbourhoods(among, noise, right).unbind(1)
            mean = (across * beta).sum(dim=1)
            variance = kernel.variance - (across * alpha).sum(dim=1)
        return Solved(among, across, alpha, beta, mean, variance)

    @torch.no_grad()
    def _misfit(self, rows: Tensor, solved: Solved) -> tuple[Tensor, Tensor]:
        """Return prediction errors of rows, and their variances."""
        error = self.residual[rows] - solved.mean
        return error, solved.variance + self.noise_variance[rows]


def _points(functionals: Functionals) -> Points:
    if isinstance(functionals, PointValues):
        return functionals.points
    raise ValueError(
        f"neighbours need values at points, got {type(functionals).__name__}: use "
        "ExactGP or SGPR"
    )


def scored_across_scales(
    points: Points, count: int, rows: int, generator: torch.Generator
) -> tuple[Int[Tensor, " s"], Int[Tensor, "s k"]]:
    """Return rows to score, and ``count`` neighbours of each at all scales.

    In a random order rows are conditioned on their nearest earlier rows (Vecchia 1988,
    JRSS B 50, 297): the first rows on distant neighbours, the last on adjacent ones.
    Every octave of this order contributes the same number of rows, conditioned on all
    rows before the octave. In a uniform sample almost all rows would have adjacent
    neighbours, which do not constrain long lengthscales.
    """
    size = len(points)
    order = torch.randperm(size, generator=generator)
    starts = [count]
    while 2 * starts[-1] < size:
        starts.append(2 * starts[-1])
    scored, near = [], []
    for number, start in enumerate(starts):
        # Later octaves make up for rows that an octave lacks.
        taken = sum(map(len, scored))
        share = (rows - taken) // (len(starts) - number)
        own = order[start : min(2 * start, size)][:share]
        found = nearest(points[order[:start]], points[own], count)
        scored.append(own)
        near.append(order[found])
    return torch.cat(scored), torch.cat(near)


def neighbour_blocks(places: Tensor, near: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield places and their neighbours, block by block."""
    # Covariances of a block of neighbourhoods fit into the processor's cache.
    limit = 2**20 if places.device.type == "cpu" else 2**27
    size = min(rows_within(8 * near.shape[1] ** 2, limit), 2**15)
    return zip(places.split(size), near.split(size), strict=True)
