r"""Regression of all rows at once on the grid points of a torus.

Rows are :math:`y = H\beta + W f + \eta`, where W interpolates between the points of a
grid, f has the kernel's covariance C on the torus, H has a column of ones and, for a
linear mean, one of every input, and β has a flat prior. With
:math:`A = W C W^\top + \Sigma` (Σ holds the noise, and the variance that interpolation
leaves out),

.. math::
   \beta = V H^\top A^{-1} y, \quad V = (H^\top A^{-1} H)^{-1}, \quad
   E f = C W^\top \alpha, \quad \alpha = A^{-1} (y - H \beta)

(Rasmussen & Williams 2006, ch. 2.7). A product with A takes two Fourier transforms.
Conjugate gradients solve with it, preconditioned by the inverse of A in which every row
is conditioned on its nearest earlier ones in a random order (Vecchia 1988, JRSS B 50,
297). Of 105,569 rows with holes 22 iterations leave 8e-7. The inverse of A on a torus
without holes, a product in Fourier space, took 355 to 1e-6 (lengthscales of 40 steps).

Functionals of other kinds have no such preconditioner. Their system is solved on the
torus, with :math:`\Lambda = I + \Phi^\top \Sigma^{-1} \Phi`,
:math:`\Phi = W C^{1/2}`.

A sample of the posterior is a sample of the prior plus the solution for its difference
from the data (Matheron's rule). Variances at points are variances given the nearest
rows, times a factor: the ratio of the variance of samples to it, at random places of
similar variance. In the holes of 105,569 rows, the variance given 32 nearest rows is up
to 20% larger than given all rows. Other variances are estimated by samples.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import Functionals, PointValues
from dustmap.gp.neighbours import NeighbourGP, neighbour_blocks
from dustmap.gp.regression import Regression
from dustmap.grid import Grid, Torus, smooth_size
from dustmap.inference.full_batch.gauss_newton import Precision
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Radial
from dustmap.keyed_noise import Purpose, stream
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.linalg.sparse import SparseMatrix
from dustmap.memory import rows_within
from dustmap.models.gaussian import TorusGaussian
from dustmap.noise import Normal
from dustmap.residual.neighbours import nearest_earlier
from dustmap.shapes import Draws, EpsDraws, Points, Vector
from dustmap.whitening import TorusWhitening
from dustmap.whitening.bands import correlated_to

# Grid steps per lengthscale where rows do not lie on a lattice, and the fewest at which
# a grid resolves the field.
_STEPS = 8.0
_FEWEST_STEPS = 2.0
MOST_POINTS = 1_000_000
"""Points of a grid."""
LEFT_OUT = 0.1
"""Part of the noise's variance that interpolation may leave."""
# Variances that rounding may leave, for their logarithm.
_TINY = 1e-12
# Right-hand sides solved at once.
_TOGETHER = 8


class Rows(NamedTuple):
    """``A⁻¹ y`` and ``ε = Φᵀ A⁻¹ y`` of rows of data, with ``W C Wᵀ = Φ Φᵀ``."""

    weights: Draws
    eps: EpsDraws
    solution: Solution


class _Data(NamedTuple):
    """Rows, one for each place, and the diagonal of Σ."""

    functionals: Functionals
    observations: Vector
    noise: Vector


@dataclass(eq=False)
class TorusGP(Regression):
    """Functionals of a field, predicted from all rows.

    Values at one place are merged: their mean has the same posterior. Where all rows
    are values, places beyond the grid are predicted from their nearest rows. β replaces
    the ``mean``, which is not used.

    Parameters
    ----------
    torus
        Torus of the grid that contains all nodes of the functionals.
    count
        Nearest rows for variances.
    linear
        True if the mean has a slope along every input.
    solver
        Solver of the systems with A, or with Λ.

    Raises
    ------
    ValueError
        Also if a node lies outside the grid, or no functional depends on the level of
        the field.
    """

    kernel: Radial
    _: KW_ONLY
    torus: Torus
    count: int
    linear: bool = True
    solver: ConjugateGradients = field(
        default_factory=lambda: ConjugateGradients(rtol=1e-6, max_steps=500)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not bool((self.ones != 0).any()):
            raise ValueError(
                "the level of the field is undetermined: expected a value or an "
                "integral among the observations"
            )

    @property
    def of_values(self) -> bool:
        """True if all rows are values at points."""
        return isinstance(self.functionals, PointValues)

    def basis(self, functionals: Functionals) -> Float[Tensor, "n b"]:
        """Return the columns of H: functionals of one and of every input."""
        nodes, columns = functionals.nodes(), []
        axes = nodes.rows.new_tensor(-1) if nodes.axes is None else nodes.axes
        columns = [torch.where(axes < 0, torch.ones_like(nodes.weights), 0.0)]
        for axis, x in enumerate(nodes.points.T if self.linear else ()):
            columns.append(torch.where(axes < 0, x, (axes == axis).to(x)))
        return torch.stack([nodes.sum_rows(column) for column in columns], dim=1)

    @cached_property
    def merged(self) -> NeighbourGP:
        """Values, one for each place, and the variance of their noise."""
        nodes = self.functionals.nodes()
        points, place = torch.unique(nodes.points, dim=0, return_inverse=True)
        weight = 1 / self.noise_variance

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros(len(points)).index_add_(0, place, values)

        variance = 1 / summed(weight)
        # Neighbours of the preconditioner. With 20 and 30 of them 105,569 rows took 22
        # and 17 iterations; the weights of 30 cost three times as much.
        return NeighbourGP(
            self.kernel,
            PointValues(points),
            summed(weight * self.observations) * variance,
            noise=variance.min(),
            known_noise=variance - variance.min(),
            count=20,
            scored=torch.empty(0, dtype=torch.int64),
            jitter=0.0,
        )

    @cached_property
    def near(self) -> NeighbourGP:
        """Regression of values minus the mean on their nearest rows."""
        return NeighbourGP(
            self.kernel,
            PointValues(self.functionals.nodes().points),
            self.observations - self.basis(self.functionals) @ self.trend,
            noise=self.noise,
            known_noise=self.known_noise,
            count=self.count,
            scored=torch.empty(0, dtype=torch.int64),
        )

    @cached_property
    def model(self) -> TorusGaussian:
        """The field on the torus, observed at the (merged) rows."""
        functionals = self.merged.functionals if self.of_values else self.functionals
        return _observed(self.kernel, self.torus, functionals)

    @cached_property
    def data(self) -> _Data:
        """The (merged) rows; Σ includes the variance that interpolation leaves out."""
        if self.of_values:
            rows, points = self.merged, self.merged.functionals.points
            left = interpolation_variance(self.kernel, self.torus.grid, points)
        else:
            rows, left = self, self.model.variance
        return _Data(rows.functionals, rows.observations, rows.noise_variance + left)

    @property
    def left_out(self) -> float:
        """Median variance that interpolation leaves, relative to the noise."""
        rows = self.merged if self.of_values else self
        return float((self.data.noise / rows.noise_variance).median()) - 1

    @cached_property
    def preconditioner(self) -> SparseMatrix:
        """L with ``A⁻¹ ≈ Lᵀ L``, for rows that are values."""
        # A fixed order: every answer of this model has the same rounding.
        order = np.random.default_rng(0).permutation(len(self.merged))
        return inverse_root(self.merged, torch.from_numpy(order))

    @cached_property
    def precision(self) -> Precision:
        """Λ, for functionals of any kind."""
        return Precision(self.model.operator, Normal(stated=self.data.noise))

    @cached_property
    def torus_preconditioner(self) -> NystromPreconditioner:
        """Preconditioner of Λ."""
        size = self.model.latent_size
        return NystromPreconditioner.build(
            self.precision.data_term,
            size,
            min(200, len(self), size),
            torch.Generator().manual_seed(0),
            dtype=torch.float64,
        )

    def solve(self, data: Draws) -> Rows:
        """Solve ``A x = y`` for data at the merged rows."""
        features, noise, parts = self.model.operator, self.data.noise, []

        def product(x: Tensor) -> Tensor:
            return features.matvec(features.rmatvec(x)) + noise * x

        def precondition(x: Tensor) -> Tensor:
            return self.preconditioner.rmatvec(self.preconditioner.matvec(x))

        for part in data.split(_TOGETHER):
            if self.of_values:
                solution = self.solver.solve(product, part, preconditioner=precondition)
                weights = solution.value
                eps = features.rmatvec(weights)
            else:
                solution = self.precision.solve(
                    features.rmatvec(part / noise),
                    self.solver,
                    preconditioner=self.torus_preconditioner,
                )
                eps = solution.value
                weights = (part - features.matvec(eps)) / noise
            parts.append(Rows(weights, eps, solution))
        weights, eps, solutions = zip(*parts, strict=True)
        return Rows(torch.cat(weights), torch.cat(eps), Solution.joined(solutions))

    @cached_property
    def solved(self) -> Rows:
        """Solutions for the observations, and for every column of H."""
        H = self.basis(self.data.functionals)
        return self.solve(torch.cat([self.data.observations[None], H.mT]))

    @cached_property
    def trend_covariance(self) -> Float[Tensor, "b b"]:
        """V, the covariance of β. Slopes that no row depends on are zero."""
        information = self.solved.weights[1:] @ self.basis(self.data.functionals)
        symmetric = (information + information.mT) / 2
        return torch.linalg.pinv(symmetric, rtol=1e-12, hermitian=True)

    @cached_property
    def trend(self) -> Float[Tensor, " b"]:
        """β, in the order of the columns of H."""
        return self._trends(self.solved.weights[:1])[0]

    def _trends(self, weights: Draws) -> Float[Tensor, "s b"]:
        return weights @ self.basis(self.data.functionals) @ self.trend_covariance

    @torch.no_grad()
    def predict(self, functionals: Functionals) -> LatentMoments:
        H, (first, *columns) = self.basis(functionals), self.solved.eps
        eps = first - self.trend @ torch.stack(columns)
        if not (self.of_values and isinstance(functionals, PointValues)):
            # The root of a variance by 64 samples is accurate to 9%.
            drawn = self.samples(functionals, 64, 0, Purpose.VARIANCE)
            model = self.model.at(functionals)
            mean = model.apply(eps) + H @ self.trend
            return LatentMoments(mean, drawn.var(dim=0) + model.variance)
        near = self.near.predict(functionals)
        inside = self.torus.grid.contains(functionals.points)
        mean, variance = near.mean + H @ self.trend, near.variance.clone()
        # W and its making take some 512 bytes for each place.
        rows = rows_within(512)
        for part in torch.nonzero(inside)[:, 0].split(rows):
            model = self.model.at(functionals.select(part))
            mean[part] = model.apply(eps) + H[part] @ self.trend
            given = near.variance[part].clamp_min(_TINY).log().numpy()
            factors = np.interp(given, *self._known_factors[:2])
            variance[part] *= torch.from_numpy(factors)
        # The factors hold the variance of β; beyond the grid it grows with distance.
        far, known = functionals.select(torch.nonzero(~inside)[:, 0]), self.functionals
        if len(far):
            parts = [replace(self.near, observations=h) for h in self.basis(known).T]
            left = H[~inside] - torch.stack([p.predict(far).mean for p in parts], dim=1)
            variance[~inside] += ((left @ self.trend_covariance) * left).sum(dim=1)
        return LatentMoments(mean, variance)

    @cached_property
    def _known_factors(self) -> tuple[list[float], list[float], Solution]:
        """Logarithms of variances given the nearest rows, factors on these, and status.

        They are learnt from 16 samples at 4,000 random places. Bins of 250 places,
        4,000 squares, give factors to 2%.
        """
        generator = np.random.default_rng(0)
        grid = self.torus.grid
        unit = torch.from_numpy(generator.random((4_000, grid.dimension)))
        low, high = (unit.new_tensor(end) for end in (grid.lower, grid.upper))
        points = low + unit * (high - low)
        there = PointValues(points)
        near = self.near.predict(there).variance.clamp_min(_TINY)
        drawn, solution = self._drawn(there, 16, 0, Purpose.VARIANCE)
        left = interpolation_variance(self.kernel, grid, points)
        square = drawn.var(dim=0) + left
        order = near.argsort()
        bins = [(near[own], square[own]) for own in order.split(250)]
        known = [float(each.log().mean()) for each, _ in bins]
        factors = [float(other.sum() / each.sum()) for each, other in bins]
        return known, factors, solution

    @property
    def solution(self) -> Solution:
        """Status of all solves that predictions need: data, columns of H, samples."""
        if not self.of_values:
            return self.solved.solution
        return Solution.joined([self.solved.solution, self._known_factors[2]])

    def samples(
        self,
        functionals: Functionals,
        count: int,
        seed: int,
        purpose: Purpose = Purpose.SAMPLES,
    ) -> Draws:
        """Draw functionals in the grid's box from their joint posterior.

        Sample i depends on the seed, the purpose and i alone.

        Raises `ValueError` if a node lies outside the box; `FloatingPointError` if a
        solve has not converged.
        """
        points = functionals.nodes().points
        if outside := int((~self.torus.grid.contains(points)).sum()):
            raise ValueError(f"{outside} of {len(points)} points lie outside the grid")
        drawn, solution = self._drawn(functionals, count, seed, purpose)
        if not bool(solution.converged.all()):
            raise FloatingPointError(f"samples: {solution.message}")
        return drawn

    def _drawn(
        self, functionals: Functionals, count: int, seed: int, purpose: Purpose
    ) -> tuple[Draws, Solution]:
        """Draw samples as in `samples`; also return the status of their solves."""
        model, drawn, solutions = self.model.at(functionals), [], []
        H, columns = self.basis(functionals), self.solved.eps[1:]
        data = self.data
        for part in torch.arange(count).split(_TOGETHER):
            prior, errors = [], []
            for number in part.tolist():
                white = stream(seed, purpose, number)
                prior.append(self.model.white_noise(white))
                errors.append(torch.from_numpy(white.standard_normal(len(data.noise))))
            eps = torch.stack(prior)
            noise = data.noise.sqrt() * torch.stack(errors)
            rows = self.solve(data.observations - self.model.apply(eps) - noise)
            solutions.append(rows.solution)
            trends = self._trends(rows.weights)
            drawn.append(model.apply(eps + rows.eps - trends @ columns) + trends @ H.mT)
        return torch.cat(drawn), Solution.joined(solutions)


def interpolation_variance(kernel: Radial, grid: Grid, points: Points) -> Vector:
    """Return the variance that linear interpolation on the grid leaves of values.

    ``v = k(0) − 2 wᵀ k_g + wᵀ K_gg w`` with the weights w of the corners g of the
    point's cell; zero on the grid.
    """
    spacing = points.new_tensor(grid.spacing)
    place = (points - points.new_tensor(grid.origin)) / spacing
    cell = torch.minimum(place.floor(), points.new_tensor(grid.shape) - 2)
    share = (place - cell)[:, None]
    ends = [torch.arange(2.0, dtype=points.dtype)] * grid.dimension
    corners = torch.cartesian_prod(*ends).reshape(-1, grid.dimension)
    weights = torch.where(corners > 0, share, 1 - share).prod(dim=-1)
    across = kernel((share - corners) * spacing)
    among = kernel((corners[:, None] - corners) * spacing)
    left = kernel.variance - 2 * (weights * across).sum(dim=1)
    left = left + ((weights @ among) * weights).sum(dim=1)
    # On the grid rounding may leave it below zero.
    return left.detach().clamp_min(0.0)


@torch.no_grad()
def inverse_root(model: NeighbourGP, order: Int[Tensor, " n"]) -> SparseMatrix:
    """Return L with ``(K + Σ)⁻¹ ≈ Lᵀ L``, each row conditioned on earlier rows.

    Row i has ``(e_i − α_i) / √s_i``: the weights α of its nearest earlier rows in this
    order, as many as the model takes, and the variance s that they leave, with noise.
    """
    x, count = model.functionals.points, min(model.count, len(model) - 1)
    first, later = order[:count], order[count:]
    K = model.kernel(x[first][:, None] - x[first])
    K.diagonal().add_(model.noise_variance[first])
    dense = torch.linalg.inv(torch.linalg.cholesky(K))
    columns = [first.repeat(count), later]
    values = [dense.flatten()]
    if count:
        near = nearest_earlier(x[order] / model.kernel.lengthscale, count)
        near, weights, spread = order[near], [], []
        for own, some in neighbour_blocks(later, near):
            solved = model.solved_at(x[own], some)
            weights.append(solved.alpha)
            spread.append(solved.variance + model.noise_variance[own])
        std = torch.cat(spread).sqrt()
        columns.append(near.flatten())
        values += [1 / std, -(torch.cat(weights) / std[:, None]).flatten()]
    rows = [first.repeat_interleave(count), later, later.repeat_interleave(count)]
    entries, *places = (torch.cat(each).numpy() for each in (values, rows, columns))
    size = len(model), len(model)
    return SparseMatrix(scipy.sparse.csr_matrix((entries, places), shape=size))


def lattice_of(points: Points) -> Grid | None:
    """Return the grid of at most `MOST_POINTS` that holds all points, or ``None``."""
    axes = []
    for column in points.T:
        values = torch.unique(column)
        extent = float(values[-1] - values[0])
        steps = values.diff()
        # Closer values count as equal.
        steps = steps[steps > 1e-7 * extent]
        if not len(steps):
            return None
        # Longer differences span several steps.
        count = round(extent / float(steps[steps < 1.5 * steps.min()].mean()))
        if count >= MOST_POINTS:
            return None
        place = (values - values[0]) / (extent / count)
        # Coordinates of few digits are a little off, and interpolated where they are.
        if float((place - place.round()).abs().max()) > 0.05:
            return None
        axes.append((count + 1, extent / count, float(values[0])))
    shape, spacing, origin = zip(*axes, strict=True)
    if math.prod(shape) > MOST_POINTS:
        return None
    return Grid(shape=shape, spacing=spacing, origin=origin)


def torus_for(
    functionals: Functionals, kernel: Radial, noise: float | Tensor = math.inf
) -> Torus:
    """Return a torus around a grid that contains all nodes and resolves the kernel.

    The grid is the lattice of the points, if they have one. Otherwise it has eight
    steps a lengthscale, or more, until interpolation leaves at most a tenth of the
    variance ``noise`` (of every row, or common) or there are `MOST_POINTS`. The gap of
    the torus is four lengthscales of an exponential kernel, but at most four, two or
    one times the box, as memory allows.

    Raises `ValueError` if an axis has fewer than two steps a lengthscale.
    """
    points, noise = functionals.nodes().points, torch.as_tensor(noise)
    scales = kernel.lengthscale.detach().expand(points.shape[1])
    values = isinstance(functionals, PointValues)
    if values and (grid := lattice_of(points)) is not None:
        return _with_gap(grid, kernel)
    low, high = points.min(dim=0).values, points.max(dim=0).values
    # An input that does not vary has one step.
    high = torch.where(high > low, high, low + scales / _STEPS)
    steps = (high - low) * _STEPS / scales
    while True:
        most = MOST_POINTS / float(steps.clamp_min(1.0).prod())
        whole = (steps * min(1.0, most ** (1 / len(steps)))).ceil().clamp_min(1.0)
        grid = Grid(
            shape=tuple(int(n) + 1 for n in whole),
            spacing=tuple(((high - low) / whole).tolist()),
            origin=tuple(low.tolist()),
        )
        if values:
            middle = (low + (high - low) / whole / 2)[None]
            left = interpolation_variance(kernel, grid, middle)
            most_left = noise.median()
        else:
            left = _observed(kernel, _with_gap(grid, kernel), functionals).variance
            most_left = noise
        if most <= 1 or bool((left <= LEFT_OUT * most_left).all()):
            break
        steps = 2 * steps
    across = scales / points.new_tensor(grid.spacing)
    if float(across.min()) < _FEWEST_STEPS:
        raise ValueError(
            f"a grid of {MOST_POINTS:,} points has {float(across.min()):.2g} steps a "
            f"lengthscale, at least {_FEWEST_STEPS:g} are needed"
        )
    return _with_gap(grid, kernel)


def _with_gap(grid: Grid, kernel: Radial) -> Torus:
    """Return a torus of the grid whose gap is as wide as memory allows."""
    # Across the gap the correlation is 2%: four lengthscales of an exponential kernel.
    reach, scales = correlated_to(kernel, 0.02), kernel.lengthscale.detach()
    scales = scales.expand(grid.dimension).tolist()
    for boxes in (4, 2, 1):
        shape = tuple(
            smooth_size(n + min(boxes * (n - 1), math.ceil(reach * scale / h)))
            for n, h, scale in zip(grid.shape, grid.spacing, scales, strict=True)
        )
        # Room for a box in three inputs with gaps as wide as itself.
        if math.prod(shape) <= 8 * MOST_POINTS:
            break
    return Torus(grid=grid, shape=shape)


def _observed(kernel: Radial, torus: Torus, functionals: Functionals) -> TorusGaussian:
    """Return the field on the torus, observed by functionals."""
    return TorusGaussian(
        TorusWhitening(kernel, torus),
        functionals,
        # What linear interpolation leaves of values has a closed form; derivatives of
        # it are constant in a cell.
        interpolation="linear" if isinstance(functionals, PointValues) else "cubic",
        residual_refinement=2,
        generator=torch.Generator().manual_seed(0),
    )
