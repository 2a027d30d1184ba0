"""Every operator, model and solver on a device against the CPU.

``python -m pytest tests/gpu --device cuda`` checks a GPU; it imports torch, numpy,
scipy, numba, jaxtyping and pytest alone. Without the option a stand-in for a device is
checked. Tolerances are relative to the size of the result: 1e-10 in float64, 1e-4 in
float32, where nothing else is stated.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from linear_operators import check_linear_operator
from small_models import box, gaussian, log_normal, nested, rays, rng, rowwise, stars

from dustmap.distributed.group import Group
from dustmap.functionals import FixedStep, LineIntegrals, PointValues, Stack
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.full_batch.gauss_newton import Precision
from dustmap.inference.svi import HipSettings, SvgpSettings, fit_svgp, fit_svi
from dustmap.inference.svi.bound import Observations
from dustmap.kernels import Matern12, Matern32
from dustmap.likelihoods import StudentT as StudentNoise
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.noise import Normal, StudentT
from dustmap.projection import projection
from dustmap.residual.covariance import RayCovariance
from dustmap.residual.kriging import (
    TABLE_ERROR,
    Neighbourhoods,
    krige_rays,
    predict_rays,
    solve_neighbourhoods,
)
from dustmap.residual.neighbours import nearest, without_self
from dustmap.whitening import (
    CholeskyWhitening,
    ToeplitzWhitening,
    TorusWhitening,
    padded_torus,
)

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "bench"))
from gpu import shared_dust

CPU = torch.device("cpu")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request):
    return request.param


def agree(there, here, tolerance):
    """Compare tensors, by their differences over their sizes."""
    for found, expected in zip(there, here, strict=True):
        found, expected = (x.detach().cpu().double() for x in (found, expected))
        gap, size = (torch.linalg.vector_norm(x) for x in (found - expected, expected))
        assert gap <= tolerance * size


def same(results, device, tolerance):
    """Compare what a function of the place yields on the device and on the CPU."""
    agree(results(device), results(CPU), tolerance)


def white(seed, *shape, of):
    """Normal numbers, the same ones in the precision and at the place of a model."""
    numbers = torch.randn(shape, generator=rng(seed), dtype=of.dtype)
    return numbers.to(of.device)


def products(A):
    """``A x``, ``Aᵀ y`` and ``Aᵀ W A x``."""
    x, y = white(5, 3, A.shape[1], of=A), white(6, 3, A.shape[0], of=A)
    w = torch.rand(A.shape[0], generator=rng(7), dtype=A.dtype)
    return A.matvec(x), A.rmatvec(y), A.gram(x, w.to(A.device))


@pytest.mark.parametrize(
    "kernel", [Matern12(lengthscale=1.5), Matern32(lengthscale=1.5)]
)
@pytest.mark.parametrize(("dimension", "fine"), [(1, 1), (2, 2), (3, 1), (3, 2)])
def test_a_whitening_and_its_draws(device, dtype, dimension, fine, kernel):
    torus = padded_torus(box(dimension), kernel, 0.05)

    def results(place):
        A = TorusWhitening(kernel, torus, refinement=fine, dtype=dtype, device=place)
        yield A.colour(white(1, 2, A.size, of=A))
        yield A.colour_transpose(white(2, 2, math.prod(A.fine_shape), of=A))
        yield from A.prior_draw(rng(3))
        yield torch.tensor(A.report.dropped_modes)

    same(results, device, TOLERANCE[dtype])


@pytest.mark.slow
def test_a_density_on_nested_grids(device, dtype):
    def results(place):
        model = nested(place, dtype)
        eps = white(1, 2, model.latent_size, of=model)
        tangent = model.linearise(eps[0])
        yield from (model.density(eps), model.apply(eps), tangent.variance)
        yield from products(tangent.operator)
        yield model.white_noise(np.random.default_rng(6))

    same(results, device, TOLERANCE[dtype])


@pytest.mark.parametrize("tree", [False, True])
def test_sight_lines(device, dtype, tree):
    torus = padded_torus(box(), Matern12(lengthscale=1.5), 0.05)
    seen = rays() if tree else Stack([rays(), PointValues(0.9 * stars())])

    def weights(place):
        return projection(
            torus, seen, dtype=dtype, device=place, tree=tree, group=Group()
        )

    W = weights(device)
    assert W.device.type == device.type
    check_linear_operator(W, generator=rng(1))
    same(lambda place: products(weights(place)), device, TOLERANCE[dtype])
    if tree and dtype == torch.float32:
        y = white(8, len(seen), of=W)
        assert torch.equal(W.rmatvec(y), W.rmatvec(y))


@pytest.mark.slow
@pytest.mark.parametrize("make", [log_normal, gaussian])
def test_predictions_tangents_and_residuals(device, dtype, make):
    def results(place):
        model = make(place, dtype)
        eps = white(4, 2, model.latent_size, of=model)
        tangent = model.linearise(eps[0])
        if place == device:
            check_linear_operator(tangent.operator, generator=rng(1))
        yield from (model.apply(eps), tangent.variance, *products(tangent.operator))
        yield model.residual_draws(eps, rng(5))

    same(results, device, TOLERANCE[dtype])


@pytest.mark.slow
def test_conjugate_gradients_do_not_wait_between_looks(device, dtype, no_waiting):
    double = dtype == torch.float64
    solver = ConjugateGradients(rtol=1e-9 if double else 1e-4, max_steps=400)

    def results(place):
        model = log_normal(place, dtype)
        eps = torch.zeros(model.latent_size, dtype=dtype, device=place)
        noise = torch.full((len(model.functionals),), 1e-3, dtype=dtype, device=place)
        precision = Precision(model.linearise(eps).operator, Normal(stated=noise))
        size, kind = precision.shape[0], {"dtype": dtype, "device": place}
        nystrom = NystromPreconditioner.build(
            precision.data_term, size, 8, rng(2), **kind
        )
        steps = [precision.matvec, nystrom]
        if place == device:
            steps = [no_waiting(step) for step in steps]
        b = white(3, 3, size, of=model)
        solution = solver.solve(steps[0], b, preconditioner=steps[1])
        assert bool(solution.converged.all()), solution.message
        yield solution.value

    same(results, device, 1e-6 if double else 1e-2)


def test_a_wait_for_the_device_is_seen(device, no_waiting):
    x = torch.ones(3, device=device)
    assert float(x.sum()) == 3
    for wait in (
        *(lambda: x.cpu(), lambda: x.tolist(), lambda: x.sum().item()),
        *(lambda: float(x.sum()), lambda: bool(x.any()), lambda: x.nonzero()),
    ):
        with pytest.raises((AssertionError, RuntimeError), match=r"wait|synchroniz"):
            no_waiting(wait)()
    assert len(no_waiting(lambda: 2 * x)()) == 3


def data_of(model):
    """Noisy data of a known field, and what a noise may consist of."""
    clean = model.apply(white(4, model.latent_size, of=model))
    count, ends = len(clean), stars()
    noise = StudentT(
        stated=torch.full((count,), 0.05**2, dtype=torch.float64),
        degrees=4.0,
        learn_common=True,
        blur=LineIntegrals(1.02 * ends, FixedStep(step=0.5), start=0.98 * ends),
        blur_scale=torch.full((count,), 0.5, dtype=torch.float64),
        neighbours=torch.randint(count, (count, 5), generator=rng(2)),
    )
    return clean + 0.05 * white(6, count, of=model), noise


@pytest.mark.slow
@pytest.mark.parametrize(("make", "learns"), [(log_normal, True), (gaussian, False)])
def test_one_seed_gives_the_same_samples(device, dtype, make, learns):
    double = dtype == torch.float64
    settings = FullBatch(
        samples=4,
        preconditioner_rank=8,
        solver=ConjugateGradients(rtol=1e-5, max_steps=400),
        newton_tolerance=1e-5 if double else 1e-4,
    )

    def results(place):
        model = make(place, dtype)
        y, noise = data_of(model)
        noise = noise if learns else Normal(stated=noise.stated)
        found = infer(model, y, noise, settings=settings, generator=rng(9))
        assert found.converged
        return found.mean, found.samples

    here, there, again = map(results, (CPU, device, device))
    agree(there, here, 1e-4 if double else 5e-2)
    agree(again, there, 1e-4 if double else 5e-2)


def test_published_features(device):
    def results(place):
        R = ToeplitzWhitening(
            Matern32(lengthscale=1.5),
            box(),
            lengthscales=(1.5,) * 3,
            solver=ConjugateGradients(rtol=1e-10),
            device=place,
        )
        cross = torch.randn(4, box().size, generator=rng(1), dtype=torch.float64)
        found, _, status = R.features(cross.to(place))
        assert bool(status.converged.all()), status.message
        yield found

    same(results, device, 1e-7)


def test_published_rows(device):
    def results(place):
        model = rowwise(place)
        assert model.device.type == place.type
        eps = white(4, 2, model.latent_size, of=model)
        yield from model.rows(torch.arange(len(model.functionals)))
        yield from (model.apply(eps), model.residual_draws(eps, rng(5)))

    same(results, device, 1e-8)


def fitted_rows(place, family):
    """A short fit of q, kernel and noise."""
    model = rowwise(place)
    y = torch.randn(len(model.functionals), generator=rng(6), dtype=torch.float64)
    settings = HipSettings(
        family=family,
        batch_size=16,
        epochs=2,
        learn=("kernel", "likelihood"),
        rest=0.0,
        lengthscale_range=1.1,
    )
    data = Observations.of(model, y, torch.full_like(y, 0.1))
    return fit_svi(model, data, settings, generator=rng(9))


def fitted_points(place):
    """The same of free points and heavy-tailed noise."""
    seen, points = PointValues(stars(24)), stars(8, seed=4).to(place)
    return fit_svgp(
        seen,
        torch.randn(len(seen), generator=rng(6), dtype=torch.float64),
        CholeskyWhitening(Matern32(lengthscale=1.5), points, nugget=1e-4),
        StudentNoise(scale=0.3),
        generator=rng(9),
        settings=SvgpSettings(batch_size=12, steps=4, rest=0.0, family="full"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mean-field", "block", "full", "points"])
def test_stochastic_fits(device, kind):
    def results(place):
        fit = fitted_points(place) if kind == "points" else fitted_rows(place, kind)
        yield from (fit.q.mean, fit.q.sample(1, np.random.default_rng(7)))
        yield torch.tensor(fit.bound, dtype=torch.float64)
        yield from fit.learnt.values()
        lines = LineIntegrals(0.4 * stars(8), FixedStep(step=0.5))
        yield torch.stack(fit.model.predict(lines))

    same(results, device, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dust on the grids", "constant density"])
def test_neighbourhoods(device, kind):
    # On the CPU covariances along rays are sums in single precision.
    field = shared_dust(200)
    seen, noise, residuals = field.rays, field.noise, field.residuals
    covariance, last = field.covariance, 30
    if kind == "constant density":
        weights = torch.tensor([0.2, 0.5, 1.0, 0.1]).double()
        covariance, last = RayCovariance(weights=weights), 0
    places, points = seen[:90], seen.coordinates(20.0)
    near = nearest(points[90:], points[:90], 12) + 90
    given = noise, residuals, places, last, near[:4]
    blocks = torch.randint(4, (90,), generator=rng(3))

    def results(place):
        each = replace(covariance, device=place)
        kriged = krige_rays(each, seen, noise, places, near)
        yield from (kriged.mean(residuals), kriged.variance, kriged.prior)
        yield from predict_rays(each, seen, *given, blocks)
        weights = each.weights.clone().requires_grad_()
        hoods = Neighbourhoods.of(each, seen, places, near)
        moments = hoods.predict(weights, noise, residuals[0])
        yield from moments
        yield from torch.autograd.grad(moments[0].sum() + moments[1].sum(), weights)

    same(results, device, 1e-6)


def test_systems_of_neighbourhoods(device):
    root = torch.randn(7, 5, 5, generator=rng(3), dtype=torch.float64)
    system = root @ root.mT, torch.ones(7, 5).double(), root[:, :2]

    def results(place):
        yield solve_neighbourhoods(*(part.to(place) for part in system))

    same(results, device, 1e-6)


@pytest.mark.slow
def test_batches_stay_below_the_limits_of_batched_routines(device, monkeypatch):
    # With more than 65,535 systems some of them failed or were wrong on CUDA.
    field, sizes, factors = shared_dust(70_000), [], torch.linalg.cholesky_ex
    points = field.rays.coordinates(20.0)
    near = without_self(nearest(points, points, 3))

    def counted(matrices):
        sizes.append(len(matrices))
        return factors(matrices)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted)
    here = field.krige(field.rays, near)
    there = replace(field, device=device).krige(field.rays, near)
    assert sum(sizes) == 70_000 and max(sizes) <= 65_535
    torch.testing.assert_close(there.variance, here.variance, rtol=1e-5, atol=0)


def test_stars_at_one_place_without_noise_are_solved_as_on_the_cpu(device):
    field = shared_dust(40)
    seen = field.rays[torch.zeros(40, dtype=torch.int64)]
    field = replace(field, rays=seen, noise=torch.zeros_like(field.noise))
    near = torch.arange(20).expand(3, 20)
    here = field.krige(seen[:3], near)
    there = replace(field, device=device).krige(seen[:3], near)
    torch.testing.assert_close(there.variance, here.variance, rtol=1e-5, atol=0)
    assert bool((there.variance >= TABLE_ERROR * there.prior).all())
    bad = replace(field, device=device, noise=field.noise - 1e3)
    with pytest.raises(FloatingPointError, match="3 of 3"):
        bad.krige(seen[:3], near)


def test_a_factor_of_nan_without_a_status_is_an_error(device, monkeypatch):
    # Batched factorisations of some libraries return NaN for large matrices.
    field, factors = shared_dust(60), torch.linalg.cholesky_ex
    ends = field.rays.directions * field.rays.lengths[:, None]
    values = torch.full((3, 60), 0.5, dtype=torch.float64)

    def spoilt(matrices):
        factor, status = factors(matrices)
        return factor * float("nan"), status

    there = replace(field, device=device)
    assert bool(there.correct(ends, values)[0].isfinite().all())
    monkeypatch.setattr(torch.linalg, "cholesky_ex", spoilt)
    with pytest.raises(FloatingPointError, match="60 of 60"):
        there.krige(field.rays, torch.arange(12).expand(60, 12))
    with pytest.raises(FloatingPointError):
        there.correct(ends, values)
