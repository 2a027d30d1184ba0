"""Full batch, SGPR and SVGP on one split."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from dense_covariance import symmetric_covariance
from dense_evidence import best_scales
from jaxtyping import Float
from paper_report import Row, root_mean_square
from road3d_data import Split
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.evidence import LBFGS, maximise
from dustmap.gp.inducing import clustered_subset, kmeans_points
from dustmap.gp.sgpr import SGPR
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.svi import SvgpSettings, fit_svgp
from dustmap.kernels import Matern12, Matern32, Matern52, Radial
from dustmap.likelihoods import Gaussian
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.posterior import Posterior
from dustmap.whitening import CholeskyWhitening, TorusWhitening, padded_torus

FULL_BATCH, SGPR_NAME, SVGP_NAME = "full batch (torus)", "SGPR", "SVGP"
FAMILIES: dict[str, type[Radial]] = {
    "Matérn 1/2": Matern12,
    "Matérn 3/2": Matern32,
    "Matérn 5/2": Matern52,
}
_SOLVER = ConjugateGradients(rtol=1e-5, max_steps=2_000)
_WRAP = 1e-2
# Points of the torus up to which weights are taken on half the spacing.
_CHEAP = 100_000
# Of the preconditioner: with 200, 441 instead of 1,174 iterations at 36,000 points.
_RANK = 200
_NUGGET = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Kernel and noise variance."""

    kernel: Radial
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """Latent moments at the test rows, and the noise's variance.

    ``points`` counts the inducing points; ``converged`` is of the solve or the search.
    """

    mean: Float[Tensor, " t"]
    variance: Float[Tensor, " t"]
    noise: float
    points: int
    converged: bool | None = None


def choose_scales(split: Split, count: int, seed: int) -> Scales:
    """Family, lengthscale, variance and noise of the largest evidence of a subset."""
    generator = torch.Generator().manual_seed(seed)
    rows = clustered_subset(split.train, count, 8, generator)
    at, values = PointValues(split.train[rows]), split.values[rows].numpy()
    extent = float((split.train.amax(dim=0) - split.train.amin(dim=0)).max())
    lengthscales = [extent * float(s) for s in np.geomspace(0.003, 0.3, 9)]
    found = {}
    for name, family in FAMILIES.items():
        found[name] = best_scales(
            lambda s, family=family: symmetric_covariance(
                family(lengthscale=s), at
            ).numpy(),
            lengthscales,
            values,
            np.zeros(len(values)),
        )

    name = max(found, key=lambda n: found[n].log_evidence)
    best = found[name]
    kernel = FAMILIES[name](lengthscale=best.lengthscale, variance=best.variance)
    return Scales(kernel=kernel, noise=best.common_noise**2)


def full_batch(
    split: Split, scales: Scales, count: int, seed: int, *, samples: int = 8
) -> Fit:
    """Fit by the solve-free engine on a torus over about ``count`` points."""
    generator = torch.Generator().manual_seed(seed)
    grid = split.roads.grid(count)
    torus = padded_torus(grid, scales.kernel, _WRAP)
    refinement = 2 if torus.size <= _CHEAP else 1
    model = TorusGaussian(
        TorusWhitening(scales.kernel, torus, refinement=refinement),
        PointValues(split.train),
        interpolation="cubic",
        residual_refinement=2 * refinement,
        residual_count=16,
        generator=generator,
    )
    result = infer(
        model,
        split.values,
        torch.full_like(split.values, scales.noise),
        settings=FullBatch(
            solver=_SOLVER,
            samples=samples,
            sample_rtol=1e-2,
            preconditioner_rank=min(_RANK, torus.size // 2),
        ),
        generator=generator,
    )
    posterior = Posterior(model=model, mean=result.mean, samples=result.samples)
    moments = posterior.moments(split.wanted)
    return Fit(
        mean=moments.mean,
        variance=moments.std**2,
        noise=scales.noise,
        points=grid.size,
        converged=result.converged,
    )


def sgpr(
    split: Split, count: int, seed: int, *, rows: int, steps: int
) -> tuple[Fit, Scales]:
    """The collapsed bound; kernel and noise by L-BFGS on some rows, its fit on all.

    The family is that of the largest bound: so few points leave most of a rough field
    over, and what they leave over costs the bound more than noise does.
    """
    generator = torch.Generator().manual_seed(seed)
    points = kmeans_points(split.train, count, generator)
    settings = LBFGS(
        names=("lengthscale", "variance", "noise"),
        max_steps=steps,
        gradient_tolerance=1.0,
    )
    some = slice(0, rows)
    found = {
        name: maximise(
            _collapsed(split, _start(family, split, count), points, some), settings
        )
        for name, family in FAMILIES.items()
    }
    best = max(found, key=lambda name: found[name].log_marginal)
    learnt = found[best]
    kernel = learnt.model.kernel
    assert isinstance(kernel, Radial)
    scales = Scales(kernel=kernel, noise=float(learnt.model.noise))
    model = _collapsed(split, scales, points, slice(None))
    moments = model.predict(split.wanted)
    fit = Fit(
        mean=moments.mean,
        variance=moments.variance,
        noise=scales.noise,
        points=len(points),
        converged=learnt.converged,
    )
    return fit, scales


def _start(family: type[Radial], split: Split, count: int) -> Scales:
    """What so few points can resolve: two of their distances, the rest as noise."""
    extent = float((split.train.amax(dim=0) - split.train.amin(dim=0)).max())
    kernel = family(lengthscale=2 * extent / math.sqrt(count), variance=0.7)
    return Scales(kernel=kernel, noise=0.3)


def _collapsed(split: Split, scales: Scales, points: Tensor, rows: slice) -> SGPR:
    return SGPR(
        scales.kernel,
        PointValues(split.train[rows]),
        split.values[rows],
        points,
        noise=scales.noise,
        jitter=_NUGGET,
    )


def svgp(
    split: Split, start: Scales, count: int, seed: int, *, steps: int, batch: int
) -> Fit:
    """Natural steps and Adam in turn on minibatches, Cholesky whitening."""
    generator = torch.Generator().manual_seed(seed)
    points = kmeans_points(split.train, count, generator)
    nugget = _NUGGET * float(start.kernel.variance)
    result = fit_svgp(
        PointValues(split.train),
        split.values,
        CholeskyWhitening(start.kernel, points, nugget=nugget),
        Gaussian(variance=start.noise),
        generator=generator,
        settings=SvgpSettings(
            batch_size=batch,
            steps=steps,
            natural_rate=0.2,
            learn=("kernel.lengthscale", "kernel.variance", "likelihood.variance"),
            record_every=steps,
        ),
    )
    moments = result.model.predict(split.wanted)
    likelihood = result.model.likelihood
    assert isinstance(likelihood, Gaussian)
    return Fit(
        mean=moments.mean,
        variance=moments.variance,
        noise=float(likelihood.variance),
        points=len(points),
    )


def scores(fit: Fit, split: Split) -> Row:
    """Score by RMSE and mean negative log density of the noisy elevations."""
    error = split.test_values - fit.mean
    total = fit.variance + fit.noise
    density = -0.5 * (torch.log(2 * math.pi * total) + error**2 / total)
    return {
        "M": fit.points,
        "RMSE": root_mean_square(error),
        "NLL": -float(density.mean()),
        "converged": fit.converged,
    }


def averaged(rows: list[Row]) -> list[Row]:
    """Average over splits for every engine and M."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["engine"], row["M"])):
        groups.setdefault((row["engine"], row["M"]), []).append(row)
    return [
        {
            "engine": engine,
            "M": points,
            "splits": len(own),
            **{n: float(np.mean([r[n] for r in own])) for n in ("RMSE", "NLL")},
        }
        for (engine, points), own in groups.items()
    ]
