"""Five ways to predict the extinction and density at stars that were not seen.

Whatever does not depend on the noise is done once at construction, so that every noise
seed pays for its own solve alone. All share one kernel and a zero mean; the dense GP
and ``svi`` share their quadrature as well.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from dense_covariance import cross_covariance, symmetric_covariance
from jaxtyping import Float
from scipy.spatial import KDTree
from torch import Tensor

from dustmap.covariance import functional_variance
from dustmap.functionals import (
    FixedStep,
    Functionals,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Rule,
    Stack,
)
from dustmap.grid import Grid
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.svi import (
    HipSettings,
    NaturalGaussian,
    fit_svi,
    solve_mean,
)
from dustmap.inference.svi.bound import Observations, predict
from dustmap.kernels import Radial
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.posterior import Posterior
from dustmap.whitening import ToeplitzWhitening, TorusWhitening, padded_torus

_MEAN_SOLVER = ConjugateGradients(rtol=1e-6, max_steps=2000)
# The paper stops early as well; rows this good widen no v_n by more than 4e-5 of it.
_ROW_SOLVER = ConjugateGradients(rtol=1e-5, max_steps=500)

# Of the covariance of the inducing values, relative, where the embedding is clipped.
_EMBEDDING_ERROR = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """What all engines share.

    Parameters
    ----------
    train, test
        Positions of the stars [kpc], shape (n, 3).
    kernel
        Of the density [mag²/kpc²].
    fine_grid, grid
        Inducing points [kpc] of the full-batch engine and of svi.
    embedding
        Shape of svi's circulant, whose negative modes are then set to zero and
        counted; ``None`` lets it grow until it has none.
    nodes
        Gauss–Legendre nodes on every ray.
    samples
        Posterior samples of the full-batch engine.
    epochs
        Of minibatch SVI.
    draws
        Prior draws behind the full-batch engine's conditional variances.
    """

    train: Float[Tensor, "n 3"]
    test: Float[Tensor, "t 3"]
    kernel: Radial
    fine_grid: Grid
    grid: Grid
    embedding: tuple[int, int, int] | None
    nodes: int
    samples: int
    epochs: int
    draws: int

    def targets(self, rule: Rule) -> Functionals:
        """The test stars' extinctions, then their densities."""
        return Stack([LineIntegrals(self.test, rule), PointValues(self.test)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Moments at the test stars, [mag] and [mag/kpc]; ``None`` where there are none."""

    extinction_mean: np.ndarray
    extinction_std: np.ndarray | None = None
    density_mean: np.ndarray | None = None
    density_std: np.ndarray | None = None
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)


class Engine(ABC):
    """Made once for the stars; predicts for every set of noisy values.

    ``setup_seconds`` is what construction took, ``facts`` what it found.
    """

    setup_seconds = 0.0
    facts: dict[str, Any]

    @abstractmethod
    def predict(self, values: Tensor, variance: Tensor) -> dict[str, Prediction]:
        """Predictions, by a name for each way of making them."""


@contextmanager
def _stopwatch() -> Iterator[list[float]]:
    taken = [0.0]
    started = time.perf_counter()
    yield taken
    taken[0] = time.perf_counter() - started


def _prediction(
    mean: Tensor, std: Tensor, seconds: float, facts: dict[str, Any] | None = None
) -> Prediction:
    """Split moments of :meth:`Problem.targets`."""
    count = len(mean) // 2
    moments = [part.numpy() for part in (mean, std)]
    return Prediction(
        extinction_mean=moments[0][:count],
        extinction_std=moments[1][:count],
        density_mean=moments[0][count:],
        density_std=moments[1][count:],
        seconds=seconds,
        facts=facts or {},
    )


class DenseGP(Engine):
    """The exact GP by a float64 Cholesky factor of the N × N covariance."""

    def __init__(self, problem: Problem) -> None:
        with _stopwatch() as taken:
            rule = GaussLegendre(count=problem.nodes)
            seen = LineIntegrals(problem.train, rule)
            wanted = problem.targets(rule)
            kernel = problem.kernel
            self.covariance = symmetric_covariance(kernel, seen)
            self.cross = cross_covariance(kernel, wanted, seen)
            self.prior = functional_variance(kernel, wanted)
        self.setup_seconds = taken[0]
        self.facts = {}

    def predict(self, values: Tensor, variance: Tensor) -> dict[str, Prediction]:
        with _stopwatch() as taken:
            factor = torch.linalg.cholesky(self.covariance + variance.diag())
            weights = torch.cholesky_solve(values[:, None], factor)[:, 0]
            half = torch.linalg.solve_triangular(factor, self.cross.mT, upper=False)
            left = self.prior - (half**2).sum(dim=0)
        std = left.sqrt()
        return {"dense GP": _prediction(self.cross @ weights, std, taken[0])}


class FullBatchMap(Engine):
    """The torus, cubic weights and exact samples, with sub-grid noise."""

    def __init__(self, problem: Problem, *, refinement: int = 2) -> None:
        with _stopwatch() as taken:
            self._problem = problem
            grid = problem.fine_grid
            self._rule = FixedStep(step=0.5 * min(grid.spacing) / refinement)
            torus = padded_torus(grid, problem.kernel, 1e-3)
            self._model = TorusGaussian(
                TorusWhitening(problem.kernel, torus, refinement=refinement),
                LineIntegrals(problem.train, self._rule),
                interpolation="cubic",
                residual_refinement=2 * refinement,
                residual_count=problem.draws,
                generator=torch.Generator().manual_seed(1),
            )
            subgrid = float(self._model.variance.sqrt().median())
        self.setup_seconds = taken[0]
        self.facts = {
            "torus": list(torus.shape),
            "wrap_error": self._model.whitening.report.wrap_error,
            "refinement": refinement,
            "median_subgrid_std": subgrid,
        }

    def predict(self, values: Tensor, variance: Tensor) -> dict[str, Prediction]:
        problem = self._problem
        with _stopwatch() as taken:
            result = infer(
                self._model,
                values,
                variance,
                settings=FullBatch(solver=_MEAN_SOLVER, samples=problem.samples),
                generator=torch.Generator().manual_seed(2),
            )
            posterior = Posterior(
                model=self._model, mean=result.mean, samples=result.samples
            )
            moments = posterior.moments(problem.targets(self._rule))
        facts = {"mean": result.mean_solution.message, "converged": result.converged}
        return {"full-batch": _prediction(moments.mean, moments.std, taken[0], facts)}


class HierarchicalMap(Engine):
    """HIP-GP's whitening: the optimum S2–S5 of two families, and its minibatches."""

    def __init__(self, problem: Problem) -> None:
        with _stopwatch() as taken:
            self._problem = problem
            # Minibatches cost as much as all the rest: one seed has to do.
            self._first = True
            rule = GaussLegendre(count=problem.nodes)
            kernel = problem.kernel
            whitening = ToeplitzWhitening(
                kernel,
                problem.grid,
                lengthscales=kernel.lengthscale.expand(3).tolist(),
                solver=_ROW_SOLVER,
                shape=problem.embedding,
                limits=EmbeddingLimits(
                    clip=problem.embedding is not None, max_error=_EMBEDDING_ERROR
                ),
            )
            self._model = RowwiseGaussian(whitening, LineIntegrals(problem.train, rule))
            self._wanted = self._model.at(problem.targets(rule))
            self._model.keep_rows()
            self._wanted.keep_rows()
        self.setup_seconds = taken[0]
        conditional = self._model.variance.sqrt()
        self.facts = {
            "embedding": list(whitening.report.shape),
            "embedding_covariance_error": whitening.report.covariance_error,
            "embedding_modes_set_to_zero": whitening.report.negative_modes,
            "rows": str(self._model.report),
            "median_subgrid_std": float(conditional.median()),
        }

    def predict(self, values: Tensor, variance: Tensor) -> dict[str, Prediction]:
        data = Observations.of(self._model, values, variance)
        predictions = {
            "svi, blocks, optimum": self._optimum(data),
        }
        if self._first:
            predictions |= self._minibatches(data)
        self._first = False
        return predictions

    def _optimum(self, data: Observations) -> Prediction:
        """One natural step of length 1 with all stars, and the mean solved."""
        settings = HipSettings(
            block=2, batch_size=len(data), epochs=1, natural_rate=1.0
        )
        with _stopwatch() as taken:
            run = fit_svi(self._model, data, settings, generator=torch.Generator())
        return self._judged(run.q, taken[0], {"bound": run.bound})

    def _minibatches(self, data: Observations) -> dict[str, Prediction]:
        settings = HipSettings(
            family="block", block=2, epochs=self._problem.epochs, solve_mean=False
        )
        with _stopwatch() as taken:
            generator = torch.Generator().manual_seed(3)
            run = fit_svi(self._model, data, settings, generator=generator)
        facts = {"bound": run.bound, "cut_steps": run.steps.limited}
        with _stopwatch() as finish:
            mean = solve_mean(
                self._model, data, solver=_MEAN_SOLVER, start=run.q.mean
            ).value[0]
        assert isinstance(run.q, NaturalGaussian)
        solved, seconds = run.q.with_mean(mean), taken[0] + finish[0]
        return {
            "svi, blocks, minibatches (1 seed)": self._judged(solved, seconds, {}),
            "svi, blocks, steps alone (1 seed)": self._judged(run.q, taken[0], facts),
        }

    def _judged(
        self, q: NaturalGaussian, seconds: float, facts: dict[str, Any]
    ) -> Prediction:
        with _stopwatch() as taken:
            moments = predict(self._wanted, q)
        std = moments.variance.sqrt()
        return _prediction(moments.mean, std, seconds + taken[0], facts)


class Neighbours(Engine):
    """The mean extinction of the nearest stars in (direction, log distance).

    How many is chosen by leaving one out among the training stars.
    """

    choices = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

    def __init__(self, problem: Problem) -> None:
        with _stopwatch() as taken:
            train, test = (self._features(x) for x in (problem.train, problem.test))
            tree = KDTree(train)
            most = min(max(self.choices), len(train) - 1)
            # The nearest of a training star is the star itself.
            self._others = np.asarray(tree.query(train, most + 1)[1])[:, 1:]
            self._near = np.asarray(tree.query(test, most)[1])
        self.setup_seconds = taken[0]
        self.facts = {"space": "direction (unit vector), log distance"}

    @staticmethod
    def _features(positions: Tensor) -> np.ndarray:
        x = positions.numpy()
        distance = np.linalg.norm(x, axis=1, keepdims=True)
        return np.concatenate([x / distance, np.log(distance)], axis=1)

    def predict(self, values: Tensor, variance: Tensor) -> dict[str, Prediction]:
        with _stopwatch() as taken:
            y = values.numpy()
            errors = {
                count: np.mean((y[self._others[:, :count]].mean(axis=1) - y) ** 2)
                for count in self.choices
            }
            count = min(errors, key=lambda k: errors[k])
            mean = y[self._near[:, :count]].mean(axis=1)
        return {
            "nearest neighbours": Prediction(
                extinction_mean=mean, seconds=taken[0], facts={"neighbours": count}
            )
        }
