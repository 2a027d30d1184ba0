"""Fits by normal equations, against those with rows of all stars."""

from __future__ import annotations

import pytest
import torch

from dustmap.functionals import (
    DistanceMarginalizedIntegrals,
    FixedStep,
    LineIntegrals,
    PointValues,
)
from dustmap.grid import Grid
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.kernels import KERNELS
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.sparse import SparseMatrix
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.nested_grids import NestedGrids
from dustmap.noise import Normal, StudentT
from dustmap.projection.corner_weights import Lattice
from dustmap.projection.ray_tree import Ends, RayIntegrals, ray_tree
from dustmap.projection.star_rows import StarRows
from dustmap.whitening import TorusWhitening, nested_tori

GRID = Grid(shape=(15, 15, 9), spacing=(20.0,) * 3, origin=(-140.0, -140.0, -80.0))
COUNT = 300


@pytest.fixture(scope="module")
def sky():
    """A model with a tree of rays, these rays, observations, and lines of blur."""
    generator = torch.Generator().manual_seed(3)
    kernel = KERNELS["matern12"](lengthscale=[60.0] * 3, variance=1.0)
    tori = nested_tori((GRID,), kernel, 0.05)
    whitening = TorusWhitening(kernel, tori.tori[0])
    low, high = (torch.tensor(x, dtype=torch.float64) for x in (GRID.lower, GRID.upper))
    share = torch.rand(COUNT, 3, generator=generator, dtype=torch.float64)
    ends = 0.8 * (low + share * (high - low))
    rule = FixedStep(step=10.0, grids=NestedGrids(grids=(GRID,)))
    error = 0.05 * ends.norm(dim=1)
    lines = DistanceMarginalizedIntegrals(ends, error, 1.2 * ends.norm(dim=1), rule)
    blur = LineIntegrals(1.05 * ends, rule, start=0.95 * ends)
    model = LogNormal(whitening, lines, mean=ConstantMean(value=1e-3))
    lattice = Lattice.make(tori, 1, False)
    place = {"dtype": torch.float64, "device": torch.device("cpu")}
    blocks = [Ends.of(lines), Ends.of(blur)]
    rays = RayIntegrals.needed(blocks, lattice, **place)
    model.weights = ray_tree(blocks[0], lattice, **place)
    truth = torch.randn(model.latent_size, generator=generator, dtype=torch.float64)
    white = torch.randn(COUNT, generator=generator, dtype=torch.float64)
    clean = model.apply(truth)
    sigma = 0.1 * clean + 0.01
    return model, rays, clean + sigma * white, sigma**2, blur


def star_rows(rays, lines):
    """Rows of sight lines, from two blocks."""
    both = lines.select(torch.arange(77)), lines.select(torch.arange(77, COUNT))
    return StarRows(rays, Ends.blocks(both), COUNT)


def fitted(sky, noise, *, rows=False, **options):
    model, rays, y, _, _ = sky
    if not rows:
        model = model.along(star_rows(rays, model.functionals))
    settings = FullBatch(
        samples=4,
        preconditioner_rank=20,
        newton_tolerance=1e-6,
        sample_rtol=1e-6,
        solver=ConjugateGradients(rtol=1e-8, max_steps=500),
    )
    generator = torch.Generator().manual_seed(8)
    given = {"settings": settings, "generator": generator}
    return infer(model, y, noise, **given, **options)


@pytest.mark.parametrize("kind", ["normal", "outliers", "shared errors"])
def test_a_fit_is_that_by_rows(sky, kind) -> None:
    _, rays, y, variance, blur = sky
    options, both = {}, 2 * [Normal(stated=variance)]
    if kind == "outliers":
        scale = torch.full_like(y, 0.5)
        both = [
            StudentT(stated=variance, blur=form, blur_scale=scale)
            for form in (blur, star_rows(rays, blur))
        ]
    if kind == "shared errors":
        options["shared_errors"] = torch.full((COUNT, 2), 0.01).double()
    by_rows = fitted(sky, both[0], rows=True, **options)
    found = fitted(sky, both[1], **options)
    assert by_rows.converged and found.converged
    # Rows of blur have exact rays, and integrals the tree's.
    error = 3e-3 if kind == "outliers" else 1e-4
    tight = {"rtol": error, "atol": error}
    torch.testing.assert_close(found.mean, by_rows.mean, **tight)
    torch.testing.assert_close(found.samples, by_rows.samples, **tight)
    torch.testing.assert_close(found.prediction, by_rows.prediction, **tight)
    torch.testing.assert_close(found.noise_variance, by_rows.noise_variance, **tight)
    torch.testing.assert_close(found.weights, by_rows.weights, **tight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (3,), (2, 6)])
def test_rows_made_anew_are_those_stored(sky, batch, dtype) -> None:
    model, _, _, _, blur = sky
    generator = torch.Generator().manual_seed(1)
    for lines in (model.functionals, blur):
        lattice = Lattice.make(model.whitening.tori, 1, False)
        place = {"dtype": dtype, "device": torch.device("cpu")}
        rays = RayIntegrals.needed([Ends.of(lines)], lattice, **place)
        anew, count = star_rows(rays, lines), rays.shape[0]
        stored = SparseMatrix.of_rows(rays.rows(Ends.of(lines)), count)
        x = torch.rand(*batch, count, generator=generator, dtype=dtype)
        y = torch.rand(*batch, COUNT, generator=generator, dtype=dtype)
        weights = torch.rand(COUNT, generator=generator, dtype=dtype)
        # Depths have 26 bits below a step here.
        tight = {"rtol": 1e-5, "atol": 1e-4}
        torch.testing.assert_close(anew.matvec(x), stored.matvec(x), **tight)
        torch.testing.assert_close(anew.rmatvec(y), stored.rmatvec(y), **tight)
        found = anew.gram(x, weights)
        torch.testing.assert_close(found, stored.gram(x, weights), **tight)


def test_rows_of_another_form_are_refused() -> None:
    lines = LineIntegrals(torch.ones(2, 3), FixedStep(step=1.0))
    both = [lines, PointValues(torch.zeros(2, 3))]
    with pytest.raises(ValueError, match="rows 2 to 4"):
        list(Ends.blocks(both))
