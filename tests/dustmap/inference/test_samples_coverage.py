"""Where the truth lies among samples of a log-normal density's posterior."""

from __future__ import annotations

import functools

import dense_torus
import numpy as np
import pytest
import torch

from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues, Stack
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.linalg.cg import ConjugateGradients
from dustmap.posterior import Posterior
from dustmap.projection import projection

RULE = GaussLegendre(count=6)


def rng(seed):
    return torch.Generator().manual_seed(seed)


CATALOGUES, PLACES, FINER = 12, 40, 4


def own_truth(model, targets, generator):
    """What stars and targets see of a draw of the model itself, unresolved part too."""
    eps = torch.randn(1, model.latent_size, generator=generator, dtype=torch.float64)
    parts = [model, model.at(targets)]
    return [(m.apply(eps) + m.residual_draws(eps, generator))[0] for m in parts]


def fine_truth(model, targets, generator):
    """The same of a field on a finer torus, whose rays share what is not resolved."""
    field, _ = model.whitening.refined(FINER).prior_draw(generator)
    density = 0.6 * torch.exp(field[0])
    return [
        projection(model.whitening.torus, part, refinement=FINER).matvec(density)
        for part in (model.functionals, targets)
    ]


@functools.cache
def calibration(drawn):
    """Where the truth lies in the posteriors of 12 catalogues.

    Probabilities ``(2, catalogues, places)`` of densities anywhere and of extinctions;
    data have noise, the truth has none.
    """
    levels = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    solver = ConjugateGradients(rtol=1e-5, max_steps=500)
    ranks = []
    for seed in range(CATALOGUES):
        model, generator = dense_torus.log_normal(1.0, 150, seed=200 + seed), rng(seed)
        points, ends = (
            dense_torus.inside(2, PLACES, first + seed) for first in (400, 500)
        )
        targets = Stack([PointValues(points), LineIntegrals(ends, RULE)])
        clean, exact = drawn(model, targets, generator)
        sigma = 0.05 * float(clean.mean())
        white = torch.randn(len(clean), generator=generator, dtype=torch.float64)
        result = infer(
            model,
            clean + sigma * white,
            torch.full_like(clean, sigma**2),
            settings=FullBatch(solver=solver, samples=32),
            generator=rng(seed),
        )
        posterior = Posterior(model=model, mean=result.mean, samples=result.samples)
        moments = posterior.moments(targets)
        quantiles = torch.stack([moments.quantile(float(p)) for p in levels])
        ranks.append((quantiles < exact).double().mean(dim=0).reshape(2, PLACES))
    return torch.stack(ranks, dim=1).numpy()


def coverage(drawn, kind, level):
    """Pooled over catalogues, which alone are independent, with its standard error."""
    inside = np.abs(calibration(drawn)[kind] - 0.5) < level / 2
    each = inside.mean(axis=1)
    return each.mean(), each.std(ddof=1) / np.sqrt(CATALOGUES)


LEVELS = (0.50, 0.68, 0.95)
KINDS = pytest.mark.parametrize("kind", [0, 1], ids=["density", "extinction"])


@pytest.mark.slow
@KINDS
def test_intervals_hold_what_they_promise(kind):
    for level in LEVELS:
        found, error = coverage(own_truth, kind, level)
        assert error < 0.035
        assert abs(found - level) < 0.06


@pytest.mark.slow
@KINDS
def test_intervals_of_a_field_with_structure_below_the_grid_hold_enough(kind):
    # Rays share what the grid cannot resolve; the model takes it for independent, and
    # its intervals of the extinction are wider than needed.
    for level in LEVELS:
        found, error = coverage(fine_truth, kind, level)
        assert error < 0.035
        assert found > level - 0.06
        if kind == 0:
            assert found < level + 0.06
