"""What several experiments fit their data with.

Hyperparameters of largest evidence of a subset, the full batch on a torus, and the
optimum of the published bound of HIP-GP and SVGP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
import torch
from data import Split
from jaxtyping import Float
from torch import Tensor

from dustmap.covariance import functional_covariance
from dustmap.functionals import FixedStep, Functionals, Rule
from dustmap.gp.inducing import clustered_subset, kmeans_points
from dustmap.gp.sgpr import SGPR
from dustmap.grid import Grid
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.svi import HipSettings, fit_svi
from dustmap.inference.svi.bound import Observations, predict
from dustmap.inference.svi.settings import Family
from dustmap.kernels import Radial
from dustmap.likelihoods import Gaussian
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.posterior import Posterior
from dustmap.whitening import ToeplitzWhitening, TorusWhitening, Whitening, padded_torus

FULL_BATCH, HIPGP, SVGP, EXACT = "full batch", "HIP-GP", "SVGP", "exact GP"
# Of the logarithms of both variances.
_FIRST_STEP = 2.0
# Bytes of kept rows and of q's covariance.
_MEMORY = 2**33


class Scales(NamedTuple):
    """Kernel, and the variance of the noise that all observations have."""

    kernel: Radial
    noise: float = 0.0


class Fit(NamedTuple):
    """What one engine predicted at the test rows, and what it took.

    Moments are of the noise-free functionals, of which some engines have the mean
    alone, and ``noise`` is the variance of a noise that all observations have.
    ``converged`` is of the solve or the search, ``dropped`` counts negative modes of
    HIP-GP's embedding that were set to zero, ``jitter`` is what SVGP's Cholesky factor
    needed beside K's diagonal, relative to it; ``None`` where there is no such thing.
    ``seconds`` are of an epoch, one pass through all observations with their rows once,
    or of the whole fit without passes.
    """

    mean: Float[Tensor, " t"]
    variance: Float[Tensor, " t"] | None = None
    noise: float = 0.0
    converged: bool | None = None
    dropped: int | None = None
    jitter: float | None = None
    seconds: float | None = None

    @property
    def std(self) -> Float[Tensor, " t"]:
        """Standard deviation; zero where rounding makes the variance negative."""
        assert self.variance is not None
        return self.variance.clamp(min=0).sqrt()

    def log_density(self, data: Split) -> float:
        """Mean logarithm of the density of the noisy test values."""
        assert self.variance is not None
        noise = Gaussian(variance=self.noise, known=data.test.noise)
        found = noise.predictive_log_density(data.test.values, self.mean, self.variance)
        return float(found.mean())


def centres(data: Split, count: int, seed: int) -> Float[Tensor, "m d"]:
    """Return centres of clusters of the training inputs."""
    generator = torch.Generator().manual_seed(seed)
    return kmeans_points(data.train.inputs, count, generator, rows=10_000)


def best_scales(
    families: Sequence[type[Radial]],
    data: Split,
    lengthscales: Sequence[float],
    *,
    count: int,
    seed: int,
    rule: Rule | None = None,
) -> Scales:
    """Return the scales of largest evidence of ``count`` rows, with zero mean.

    ``log N(y | 0, s² K̂ + diag(σ²))`` of every family and lengthscale at its best s²; a
    common ``τ²`` is optimised as well where no noise is known.
    """
    generator = torch.Generator().manual_seed(seed)
    few = data.train[clustered_subset(data.train.inputs, count, 8, generator)]
    seen = few.functionals(rule)
    found: list[tuple[float, Scales]] = []
    for family in families:
        for lengthscale in lengthscales:
            unit = family(lengthscale=lengthscale)
            covariance = functional_covariance(unit, seen, seen).numpy()
            evidence, variance, noise = best_variances(
                covariance, few.values.numpy(), few.noise.numpy()
            )
            kernel = family(lengthscale=lengthscale, variance=variance)
            found.append((evidence, Scales(kernel, noise)))
    return max(found, key=lambda pair: pair[0])[1]


def best_variances(
    covariance: np.ndarray, values: np.ndarray, known: np.ndarray
) -> tuple[float, float, float]:
    """Return the largest evidence, and the variances ``s²`` and ``τ²`` that have it.

    Steps are relative to the scatter of the values, so that none depends on their unit.
    """
    scatter = float(np.mean((values - values.mean()) ** 2))
    size = float(np.mean(np.diag(covariance)))
    learnt = not known.any()

    def variances(theta: np.ndarray) -> tuple[float, float]:
        noise = math.exp(theta[1]) * scatter if learnt else 0.0
        return math.exp(theta[0]) * scatter / size, noise

    def log_evidence(theta: np.ndarray) -> float:
        variance, noise = variances(theta)
        total = variance * covariance + np.diag(known + noise)
        try:
            factor = scipy.linalg.cholesky(total, lower=True)
        except scipy.linalg.LinAlgError:
            return -math.inf
        white = scipy.linalg.solve_triangular(factor, values, lower=True)
        determinant = 2.0 * float(np.log(np.diag(factor)).sum())
        constant = len(values) * math.log(2 * math.pi)
        return -0.5 * (float(white @ white) + determinant + constant)

    start = np.array([0.0, -6.0] if learnt else [0.0])
    # The steps are given: by itself the method starts 0.00025 away from a zero and
    # takes the flatness of so small a simplex for the maximum.
    simplex = np.vstack([start, start + _FIRST_STEP * np.eye(len(start))])
    limits = {"xatol": 0.02, "fatol": 0.02, "maxiter": 150}
    best = scipy.optimize.minimize(
        lambda theta: -log_evidence(theta),
        start,
        method="Nelder-Mead",
        bounds=[(-30.0, 10.0)] * len(start),
        options={"initial_simplex": simplex, **limits},
    ).x
    return log_evidence(best), *variances(best)


def full_batch(
    data: Split,
    scales: Scales,
    grid: Grid,
    *,
    solver: ConjugateGradients,
    samples: int,
    seed: int,
    wrap: float = 1e-3,
    fine: float = math.inf,
    draws: int = 16,
    rank: int = 200,
) -> Fit:
    """Predict by the solve-free engine on a torus, with cubic weights.

    A torus of no more than ``fine`` points has them on half its spacing. Variances are
    of exact posterior samples, with ``draws`` behind conditional variances. With a
    preconditioner of rank 200, 441 instead of 1,174 iterations at 36,000 points.
    """
    torus = padded_torus(grid, scales.kernel, wrap)
    refinement = 2 if torus.size <= fine else 1
    rule = FixedStep(step=0.5 * min(grid.spacing) / refinement)
    generator = torch.Generator().manual_seed(seed)
    model = TorusGaussian(
        TorusWhitening(scales.kernel, torus, refinement=refinement),
        data.train.functionals(rule),
        interpolation="cubic",
        residual_refinement=2 * refinement,
        residual_count=draws,
        generator=generator,
    )
    result = infer(
        model,
        data.train.values,
        data.train.noise + scales.noise,
        settings=FullBatch(
            solver=solver,
            samples=samples,
            sample_rtol=1e-2,
            preconditioner_rank=min(rank, torus.size // 2),
        ),
        generator=generator,
    )
    posterior = Posterior(model=model, mean=result.mean, samples=result.samples)
    moments = posterior.moments(data.test.functionals(rule))
    return Fit(moments.mean, moments.std**2, scales.noise, result.converged)


def embedded(
    kernel: Radial,
    grid: Grid,
    solver: ConjugateGradients | None = None,
    limits: EmbeddingLimits | None = None,
) -> ToeplitzWhitening:
    """HIP-GP's whitening: PCG on a circulant embedding of the grid."""
    return ToeplitzWhitening(
        kernel,
        grid,
        lengthscales=kernel.lengthscale.expand(grid.dimension).tolist(),
        solver=solver or ConjugateGradients(),
        limits=limits,
    )


def dropped(whitening: Whitening) -> int | None:
    """Count an embedding's negative modes that were set to zero beyond rounding."""
    if not isinstance(whitening, ToeplitzWhitening):
        return None
    report = whitening.embedding.report
    return report.negative_modes if report.clipped else 0


def optimum(
    whitening: Whitening,
    seen: tuple[Functionals, Tensor, Tensor],
    wanted: Functionals,
    family: Family,
    *,
    common: float = 0.0,
    evaluating: Whitening | None = None,
) -> Fit:
    """Predict by q at the optimum S4–S5 of the published bound.

    One natural step of length 1 with all observations (functionals, values and noise
    variances) makes S, a solve m. Rows come from PCG on a circulant embedding (HIP-GP)
    or from Cholesky's factor (SVGP).
    """
    functionals, values, noise = seen
    model = RowwiseGaussian(whitening, functionals)
    settings = HipSettings(
        family=family,
        batch_size=len(values),
        epochs=1,
        natural_rate=1.0,
        mean_tolerance=1e-12,
        row_memory=_MEMORY,
        covariance_memory=_MEMORY,
    )
    observations = Observations.of(model, values, noise, common_noise=common)
    q = fit_svi(model, observations, settings, generator=torch.Generator()).q
    evaluating = evaluating or whitening
    moments = predict(model.on(evaluating).at(wanted), q)
    jitter = getattr(evaluating, "jitter", None)
    return Fit(*moments, common, dropped=dropped(evaluating), jitter=jitter)


def collapsed(
    data: Split,
    scales: Scales,
    points: Float[Tensor, "m d"],
    *,
    jitter: float = 1e-8,
    rule: Rule | None = None,
) -> SGPR:
    """SVGP at the optimum of its bound, dense (Titsias 2009)."""
    return SGPR(
        scales.kernel,
        data.train.functionals(rule),
        data.train.values,
        points,
        noise=scales.noise,
        known_noise=data.train.noise,
        jitter=jitter,
    )
