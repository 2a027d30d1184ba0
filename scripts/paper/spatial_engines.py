"""Ways to fit a plane field on M inducing points: full batch, svi and SVGP.

All share the kernel, the noise and a zero mean. HIP-GP's engine stops PCG early, as the
paper does: after 20 iterations in training and 50 in evaluation unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from paper_report import stopwatch
from spatial_data import Spatial
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.sgpr import SGPR
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.svi import HipSettings, fit_svi, solve_mean
from dustmap.inference.svi.bound import Observations
from dustmap.kernels import Radial
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening, TorusWhitening, padded_torus

FULL_BATCH, STEPS, SOLVED = "full batch", "svi, steps alone", "svi, mean solved"
SVGP = "SVGP (dense)"
TRAINING, EVALUATION = 20, 50
# Bytes of rows that are kept; beyond, they are solved anew in every epoch.
_ROWS = 2**31
# The paper's blocks: 10 points per axis.
_BLOCK = 10
_BATCH = 200
_MEAN = ConjugateGradients(rtol=1e-6, max_steps=3_000)
# Of what the covariance may change, relative, where an embedding has to be clipped.
_CLIP = EmbeddingLimits(max_points=2**20, clip=True, max_error=1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Kernel and noise variance, shared by all engines."""

    kernel: Radial
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """What one engine predicted, and what it took.

    Parameters
    ----------
    mean
        At the test points.
    epoch
        Seconds of one pass through all observations: its steps, and its rows once
        (which are kept where memory allows); of the whole fit without passes.
    converged
        Whether every solve for the mean did; ``None`` where there is none.
    dropped
        Negative modes of the circulant embedding that were set to zero; ``None`` where
        there is no embedding.
    """

    mean: Float[Tensor, " t"]
    epoch: float
    converged: bool | None = None
    dropped: int | None = None


def _dropped(whitening: ToeplitzWhitening) -> int:
    """Count the modes that were set to zero beyond rounding."""
    report = whitening.embedding.report
    return report.negative_modes if report.clipped else 0


def full_batch(data: Spatial, model: Model, side: int, seed: int) -> Fit:
    """The solve-free engine on a torus, cubic weights on half the spacing."""
    with stopwatch() as taken:
        torus = padded_torus(data.grid(side), model.kernel, 1e-3)
        forward = TorusGaussian(
            TorusWhitening(model.kernel, torus, refinement=2),
            PointValues(data.train),
            interpolation="cubic",
            residual_refinement=4,
            residual_count=8,
            generator=torch.Generator().manual_seed(seed),
        )
        result = infer(
            forward,
            data.values,
            torch.full_like(data.values, model.noise),
            settings=FullBatch(solver=_MEAN, samples=0),
            generator=torch.Generator().manual_seed(seed),
        )
    mean = forward.at(PointValues(data.test)).apply(result.mean)
    return Fit(mean=mean, epoch=taken[0], converged=result.converged)


def whitening_of(
    data: Spatial, model: Model, side: int, iterations: int
) -> ToeplitzWhitening:
    """HIP-GP's whitening with PCG stopped after so many iterations."""
    scale = float(model.kernel.lengthscale)
    return ToeplitzWhitening(
        model.kernel,
        data.grid(side),
        lengthscales=(scale, scale),
        solver=ConjugateGradients(rtol=1e-8, max_steps=iterations, restarts=0),
        limits=_CLIP,
    )


def svi(
    data: Spatial,
    model: Model,
    side: int,
    seed: int,
    *,
    epochs: int,
    training: int = TRAINING,
    evaluation: int = EVALUATION,
) -> dict[str, Fit]:
    """Natural-gradient steps with blocks of 10 × 10, and the exact mean after them."""
    whitening = whitening_of(data, model, side, training)
    rows = RowwiseGaussian(whitening, PointValues(data.train))
    seen = Observations.of(rows, data.values, torch.full_like(data.values, model.noise))
    with stopwatch() as solving:
        if rows.kept_bytes <= _ROWS:
            rows.keep_rows()
    settings = HipSettings(
        family="block",
        block=_BLOCK,
        batch_size=_BATCH,
        epochs=epochs,
        solve_mean=False,
        row_memory=_ROWS,
    )
    with stopwatch() as stepping:
        generator = torch.Generator().manual_seed(seed)
        run = fit_svi(rows, seen, settings, generator=generator)
    solution = solve_mean(rows, seen, solver=_MEAN, start=run.q.mean)
    evaluating = rows.on(whitening_of(data, model, side, evaluation))
    stepped, solved = _predicted(evaluating, data, [run.q.mean, solution.value[0]])
    epoch = solving[0] + stepping[0] / epochs
    converged = bool(solution.converged.all())
    return {
        STEPS: Fit(mean=stepped, epoch=epoch, dropped=_dropped(whitening)),
        SOLVED: Fit(
            mean=solved, epoch=epoch, converged=converged, dropped=_dropped(whitening)
        ),
    }


def _predicted(
    model: RowwiseGaussian, data: Spatial, means: Sequence[Tensor]
) -> Float[Tensor, "s t"]:
    """``k_*ᵀ m`` at the test points for every m, each row solved once."""
    wanted = model.at(PointValues(data.test))
    stacked = torch.stack(list(means), dim=1)
    parts = [wanted.rows(index).features @ stacked for index in wanted.batches()]
    return torch.cat(parts).mT


def stopped_early(data: Spatial, model: Model, side: int, iterations: int) -> Fit:
    """The optimal mean with all rows, of training and test, stopped after so many."""
    whitening = whitening_of(data, model, side, iterations)
    rows = RowwiseGaussian(whitening, PointValues(data.train))
    seen = Observations.of(rows, data.values, torch.full_like(data.values, model.noise))
    with stopwatch() as taken:
        rows.keep_rows()
        solution = solve_mean(rows, seen, solver=_MEAN)
    (mean,) = _predicted(rows, data, [solution.value[0]])
    converged = bool(solution.converged.all())
    dropped = _dropped(whitening)
    return Fit(mean=mean, epoch=taken[0], converged=converged, dropped=dropped)


def svgp(data: Spatial, model: Model, side: int) -> Fit:
    """The optimum of SVGP's bound on the same points, dense (Titsias 2009)."""
    with stopwatch() as taken:
        fitted = SGPR(
            model.kernel,
            PointValues(data.train),
            data.values,
            data.grid(side).points(),
            noise=model.noise,
        )
        mean = fitted.predict(PointValues(data.test)).mean
    return Fit(mean=mean, epoch=taken[0])
