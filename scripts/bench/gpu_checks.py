"""Every operator, model and solver on a device against the CPU.

Each check takes the device and a precision, and returns the largest error it found as
a share of what is allowed; an ``AssertionError`` says what is wrong. Tolerances are
relative to the size of the result: 1e-10 in float64, 1e-4 in float32, where nothing
else is stated. The mathematics alone is imported, no pytest.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.functionals import (
    Derivatives,
    DistanceMarginalizedIntegrals,
    FixedStep,
    Functionals,
    LineIntegrals,
    PointValues,
    Stack,
    StepsOutwards,
)
from dustmap.grid import Grid, Torus
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.full_batch.gauss_newton import Precision
from dustmap.inference.svi import (
    HipSettings,
    SvgpResult,
    SvgpSettings,
    fit_svgp,
    fit_svi,
)
from dustmap.inference.svi.bound import Observations
from dustmap.inference.svi.settings import Family
from dustmap.kernels import Matern12, Matern32, Matern52, Radial
from dustmap.likelihoods import StudentT as StudentNoise
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.operator import LinearOperator
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.noise import Normal, StudentT
from dustmap.projection import projection
from dustmap.residual.covariance import RayCovariance, SubgridCovariance, rays_to
from dustmap.residual.cube import DensityCube
from dustmap.residual.field import ResidualField
from dustmap.residual.kriging import (
    Neighbourhoods,
    krige_rays,
    predict_rays,
    solve_neighbourhoods,
)
from dustmap.residual.neighbours import nearest
from dustmap.whitening import (
    CholeskyWhitening,
    LevelWhitening,
    ToeplitzWhitening,
    TorusWhitening,
    nested_tori,
    padded_torus,
)

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from linear_operators import check_linear_operator

CPU = torch.device("cpu")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
MEAN = ConstantMean(value=0.1)
FAMILIES: tuple[Family, ...] = ("mean-field", "block", "full")


def rng(seed: int) -> torch.Generator:
    """Random numbers of the CPU, the same on every device."""
    return torch.Generator().manual_seed(seed)


def box(dimension: int = 3) -> Grid:
    """A small box around the observer."""
    shape = (8, 9, 6)[:dimension]
    return Grid(
        shape=shape,
        spacing=(1.0,) * dimension,
        origin=tuple(-(n - 1) / 2 for n in shape),
    )


def stars(count: int = 80, seed: int = 3) -> Tensor:
    """Where sight lines end."""
    places = torch.rand(count, 3, generator=rng(seed), dtype=torch.float64) - 0.5
    return places * torch.tensor([6.5, 7.5, 4.5], dtype=torch.float64)


def rays(count: int = 80, seed: int = 3) -> LineIntegrals:
    """Sight lines to these stars."""
    return LineIntegrals(stars(count, seed), FixedStep(step=0.5))


@dataclass(slots=True)
class Comparison:
    """Errors relative to size and tolerance, the largest of which is kept."""

    tolerance: float
    worst: float = 0.0

    def add(self, what: str, found: Tensor, expected: Tensor) -> None:
        """Compare a result of the device with the CPU's."""
        expected = expected.to(torch.float64)
        gap = torch.linalg.vector_norm(found.cpu().to(torch.float64) - expected)
        size = torch.linalg.vector_norm(expected)
        share = float(gap / (self.tolerance * size)) if size > 0 else float(gap)
        if not share <= 1:
            raise AssertionError(
                f"{what}: differs from the CPU by {share * self.tolerance:.2g} of its "
                f"size, {self.tolerance:.0e} is allowed"
            )
        self.worst = max(self.worst, share)


def _both(
    device: torch.device, make: Callable[[torch.device], LinearOperator]
) -> tuple[LinearOperator, LinearOperator]:
    here, there = make(CPU), make(device)
    if there.device.type != device.type:
        raise AssertionError(f"the operator is on {there.device}, not on {device}")
    check_linear_operator(there, generator=rng(1))
    return here, there


def _compare_products(
    compare: Comparison, here: LinearOperator, there: LinearOperator
) -> None:
    x = torch.randn(3, here.shape[1], generator=rng(5), dtype=here.dtype)
    y = torch.randn(3, here.shape[0], generator=rng(6), dtype=here.dtype)
    w = torch.rand(here.shape[0], generator=rng(7), dtype=here.dtype)
    place = there.device
    compare.add("A x", there.matvec(x.to(place)), here.matvec(x))
    compare.add("Aᵀ y", there.rmatvec(y.to(place)), here.rmatvec(y))
    compare.add("Aᵀ W A x", there.gram(x.to(place), w.to(place)), here.gram(x, w))


def torus_whitening(device: torch.device, dtype: torch.dtype) -> float:
    """``A``, ``Aᵀ`` and prior draws in one to three dimensions."""
    compare = Comparison(TOLERANCE[dtype])
    kernels: list[Radial] = [Matern12(lengthscale=1.5), Matern32(lengthscale=1.5)]
    for dimension, refinement in ((1, 1), (2, 2), (3, 1), (3, 2)):
        for kernel in kernels:
            torus = padded_torus(box(dimension), kernel, 0.05)

            def make(place: torch.device, kernel=kernel, torus=torus, r=refinement):
                return TorusWhitening(
                    kernel, torus, refinement=r, dtype=dtype, device=place
                )

            here, there = make(CPU), make(device)
            eps = torch.randn(2, here.size, generator=rng(1), dtype=dtype)
            field = torch.randn(
                2, math.prod(here.fine_shape), generator=rng(2), dtype=dtype
            )
            compare.add("A ε", there.colour(eps.to(device)), here.colour(eps))
            back = here.colour_transpose(field)
            compare.add("Aᵀ g", there.colour_transpose(field.to(device)), back)
            drawn = zip(there.prior_draw(rng(3)), here.prior_draw(rng(3)), strict=True)
            for found, expected in drawn:
                compare.add("a prior draw", found, expected)
            if there.report.dropped_modes != here.report.dropped_modes:
                raise AssertionError("other modes are dropped than on the CPU")
    return compare.worst


def level_whitening(device: torch.device, dtype: torch.dtype) -> float:
    """Products, predictions and tangents of a log-normal density on three grids."""
    compare = Comparison(TOLERANCE[dtype])
    here, there = nested(CPU, dtype), nested(device, dtype)
    eps = torch.randn(2, here.latent_size, generator=rng(1), dtype=dtype)
    compare.add("ρ", there.density(eps.to(device)), here.density(eps))
    tangents = there.linearise(eps[0].to(device)), here.linearise(eps[0])
    compare.add("v_n", tangents[0].variance, tangents[1].variance)
    _compare_products(compare, tangents[1].operator, tangents[0].operator)
    compare.add(
        "T ξ", *(m.white_noise(np.random.default_rng(6)) for m in (there, here))
    )
    compare.add("apply", there.apply(eps.to(device)), here.apply(eps))
    return compare.worst


def toeplitz_whitening(device: torch.device, dtype: torch.dtype) -> float:
    """The published features ``Rᵀ K⁻¹ k`` by PCG, in float64."""
    compare = Comparison(1e-7)
    kernel = Matern32(lengthscale=1.5)

    def make(place: torch.device) -> ToeplitzWhitening:
        solver = ConjugateGradients(rtol=1e-10)
        return ToeplitzWhitening(
            kernel, box(), lengthscales=(1.5,) * 3, solver=solver, device=place
        )

    here, there = make(CPU), make(device)
    cross = torch.randn(4, len(here.points), generator=rng(1), dtype=torch.float64)
    found, _, status = there.features(cross.to(device))
    if not bool(status.converged.all()):
        raise AssertionError(status.message)
    compare.add("Rᵀ K⁻¹ k", found, here.features(cross)[0])
    return compare.worst


def row_by_row(device: torch.device, dtype: torch.dtype) -> float:
    """Rows of the published engine, and whole fits that learn, in float64."""
    compare = Comparison(1e-8)
    here, there = rowwise(CPU), rowwise(device)
    if there.device.type != device.type:
        raise AssertionError(f"the model is on {there.device}, not on {device}")
    eps = torch.randn(2, here.latent_size, generator=rng(4), dtype=torch.float64)
    every = torch.arange(len(here.functionals))
    for found, expected in zip(there.rows(every), here.rows(every), strict=True):
        compare.add("k_n and v_n", found, expected)
    compare.add("apply", there.apply(eps.to(device)), here.apply(eps))
    drawn = here.residual_draws(eps, rng(5))
    compare.add("a residual", there.residual_draws(eps.to(device), rng(5)), drawn)
    fits = [functools.partial(_fitted_rows, family=family) for family in FAMILIES]
    for fit in (*fits, _fitted_points):
        expected, found = fit(CPU), fit(device)
        for name, value in expected.items():
            compare.add(name, found[name], value)
    return compare.worst


def sight_lines(device: torch.device, dtype: torch.dtype) -> float:
    """W by rows and as a tree of rays; the same bits twice in float32."""
    compare = Comparison(TOLERANCE[dtype])
    torus = padded_torus(box(), Matern12(lengthscale=1.5), 0.05)
    ends = stars()
    mixed = Stack([rays(), PointValues(0.9 * ends)])
    for seen, tree in ((mixed, False), (rays(), True)):
        make = functools.partial(_weights, torus, seen, dtype, tree)
        here, there = _both(device, make)
        _compare_products(compare, here, there)
        if tree and dtype == torch.float32:
            y = torch.randn(len(seen), generator=rng(8), dtype=dtype).to(device)
            if not torch.equal(there.rmatvec(y), there.rmatvec(y)):
                raise AssertionError("Wᵀ y is not the same twice")
    return compare.worst


def _weights(
    torus: Torus,
    seen: Functionals,
    dtype: torch.dtype,
    tree: bool,
    device: torch.device,
) -> LinearOperator:
    return projection(torus, seen, dtype=dtype, device=device, tree=tree, group=Group())


def models(device: torch.device, dtype: torch.dtype) -> float:
    """Predictions, tangents, unresolved variances and draws of models."""
    compare = Comparison(TOLERANCE[dtype])
    for make in (log_normal, gaussian):
        here, there = make(CPU, dtype), make(device, dtype)
        eps = torch.randn(2, here.latent_size, generator=rng(4), dtype=dtype)
        moved = eps.to(device)
        compare.add("apply", there.apply(moved), here.apply(eps))
        tangents = there.linearise(moved[0]), here.linearise(eps[0])
        check_linear_operator(tangents[0].operator, generator=rng(1))
        compare.add("v_n", tangents[0].variance, tangents[1].variance)
        _compare_products(compare, tangents[1].operator, tangents[0].operator)
        drawn = here.residual_draws(eps, rng(5))
        compare.add("a residual", there.residual_draws(moved, rng(5)), drawn)
    return compare.worst


def solvers(device: torch.device, dtype: torch.dtype) -> float:
    """Preconditioned conjugate gradients, without a wait for the device between looks.

    float32 solves stop at a residual of 1e-4.
    """
    compare = Comparison(1e-6 if dtype == torch.float64 else 1e-2)
    answers = []
    for place in (CPU, device):
        model = log_normal(place, dtype)
        eps = torch.zeros(model.latent_size, dtype=dtype, device=place)
        noise = torch.full((len(model.functionals),), 1e-3, dtype=dtype, device=place)
        precision = Precision(model.linearise(eps).operator, Normal(stated=noise))
        nystrom = NystromPreconditioner.build(
            precision.data_term,
            precision.shape[0],
            8,
            rng(2),
            dtype=dtype,
            device=place,
        )
        white = torch.randn(3, model.latent_size, generator=rng(3), dtype=dtype)
        rtol = 1e-9 if dtype == torch.float64 else 1e-4
        with no_waiting(place) as watched:
            solution = ConjugateGradients(rtol=rtol, max_steps=400).solve(
                watched(precision.matvec),
                white.to(place),
                preconditioner=watched(nystrom),
            )
        if not bool(solution.converged.all()):
            raise AssertionError(solution.message)
        answers.append(solution.value)
    compare.add("Λ⁻¹ b", answers[1], answers[0])
    return compare.worst


def whole_inference(device: torch.device, dtype: torch.dtype) -> float:
    """Mode and samples; the same seed gives the same samples."""
    compare = Comparison(1e-4 if dtype == torch.float64 else 5e-2)
    for make, learns in ((log_normal, True), (gaussian, False)):
        results = [_inferred(make(p, dtype), learns) for p in (CPU, device, device)]
        for result in results:
            if not result.converged:
                raise AssertionError("an inference did not converge")
        compare.add("the mean", results[1].mean, results[0].mean)
        compare.add("samples", results[1].samples, results[0].samples)
        compare.add("samples, again", results[2].samples, results[1].samples.cpu())
    return compare.worst


def neighbourhoods(device: torch.device, dtype: torch.dtype) -> float:
    """Kriging, predictions and the learning of weights; in float64 for either dtype.

    On the CPU covariances along rays are sums in single precision.
    """
    compare, field, white = Comparison(1e-6), shared_dust(200), rng(3)
    places, points = field.rays[:90], field.rays.coordinates(20.0)
    near = nearest(points[90:], points[:90], 12) + 90
    blocks = torch.randint(4, (90,), generator=white)
    free = RayCovariance(weights=torch.tensor([0.2, 0.5, 1.0, 0.1]).double())
    seen, noise, residuals = field.rays, field.noise, field.residuals
    for covariance, last in ((field.covariance, 30), (free, 0)):
        found = []
        for each in (covariance, replace(covariance, device=device)):
            kriged = krige_rays(each, seen, noise, places, near)
            given = noise, residuals, places, last, near[:4], blocks
            mean, variance = predict_rays(each, seen, *given)
            weights = each.weights.clone().requires_grad_()
            hoods = Neighbourhoods.of(each, seen, places, near)
            moments = hoods.predict(weights, noise, residuals[0])
            slope = torch.autograd.grad(moments[0].sum() + moments[1].sum(), weights)
            rows = kriged.mean(residuals), kriged.variance, kriged.prior
            found.append([*rows, mean, variance, *moments, *slope])
        for here, there in zip(*found, strict=True):
            compare.add("a prediction from neighbours", there.detach(), here.detach())
    root = torch.randn(7, 5, 5, generator=white, dtype=torch.float64)
    system = root @ root.mT, torch.ones(7, 5).double(), root[:, :2]
    there = solve_neighbourhoods(*(part.to(device) for part in system))
    compare.add("a neighbourhood", there, solve_neighbourhoods(*system))
    return compare.worst


CHECKS = (
    torus_whitening,
    level_whitening,
    toeplitz_whitening,
    row_by_row,
    sight_lines,
    models,
    solvers,
    neighbourhoods,
    whole_inference,
)


def shared_dust(count: int, device: torch.device = CPU) -> ResidualField:
    """Residuals of stars within some degrees, behind dust on two nested grids."""
    directions = torch.randn(count, 3, generator=rng(1), dtype=torch.float64)
    directions = torch.nn.functional.normalize(directions / 20 + torch.eye(3)[0])
    lengths = 60 + 320 * torch.rand(count, generator=rng(2), dtype=torch.float64)
    seen = rays_to(directions * lengths[:, None], 2e-3 * lengths, 0.0)
    grids = tuple(
        Grid(shape=(9,) * 3, origin=(-4 * step,) * 3, spacing=(step,) * 3)
        for step in (100.0, 50.0)
    )
    white, points = rng(3), seen.coordinates(20.0)
    slopes = torch.randn(3, 4, generator=white, dtype=torch.float64)
    residuals = 0.03 * (slopes @ (points - points.mean(0)).T)
    residuals += 0.05 * torch.randn(3, count, generator=white, dtype=torch.float64)
    values = torch.randn(2 * 9**3, generator=white, dtype=torch.float64).exp() / 1e3
    prior = Matern12(lengthscale=120.0, variance=1.2)
    return ResidualField(
        rays=seen,
        residuals=residuals,
        stated=torch.full_like(lengths, 2.5e-3),
        noise=torch.full_like(lengths, 2.5e-3),
        weights=torch.tensor([1.3, 0.6]).double(),
        stretch=20.0,
        cube=DensityCube(values=values, grids=grids),
        subgrid=SubgridCovariance.of("matern12", prior, grids),
        device=device,
    )


def log_normal(device: torch.device, dtype: torch.dtype) -> LogNormal:
    """A positive density along sight lines to uncertain distances."""
    kernel = Matern12(lengthscale=1.5, variance=0.5)
    whitening = TorusWhitening(
        kernel, padded_torus(box(), kernel, 0.05), dtype=dtype, device=device
    )
    ends = stars()
    length = torch.linalg.vector_norm(ends, dim=1)
    seen = DistanceMarginalizedIntegrals(
        ends, 0.05 * length, 1.05 * length, StepsOutwards(step=0.5)
    )
    return LogNormal(whitening, seen, mean=MEAN)


def nested(device: torch.device, dtype: torch.dtype) -> LogNormal:
    """A positive density on three nested grids, with sight lines in steps of each."""
    kernel = Matern12(lengthscale=3.0, variance=0.5)
    grids = [
        Grid(shape=(9, 9, 9), spacing=(h,) * 3, origin=(-4 * h,) * 3)
        for h in (1.0, 0.5, 0.25)
    ]
    whitening = LevelWhitening(
        kernel, nested_tori(grids, kernel, 0.05), dtype=dtype, device=device
    )
    steps = StepsOutwards(step=0.5, grids=whitening.tori.grids)
    ends = 0.9 * stars() * torch.tensor([1.0, 1.0, 1.5], dtype=torch.float64)
    return LogNormal(whitening, LineIntegrals(ends, steps), mean=MEAN)


def gaussian(device: torch.device, dtype: torch.dtype) -> TorusGaussian:
    """A Gaussian field along sight lines, W stored."""
    kernel = Matern52(lengthscale=1.5, variance=1e-3)
    whitening = TorusWhitening(
        kernel, padded_torus(box(), kernel, 0.05), dtype=dtype, device=device
    )
    return TorusGaussian(
        whitening, rays(), mean=MEAN, residual_refinement=2, generator=rng(5)
    )


def rowwise(device: torch.device) -> RowwiseGaussian:
    """The published engine's model of rays, values and slopes, on a tiny box."""
    grid = Grid(shape=(4, 3, 3), spacing=(1.2,) * 3, origin=(-1.8, -1.2, -1.2))
    whitening = ToeplitzWhitening(
        Matern32(lengthscale=1.0, variance=0.3),
        grid,
        lengthscales=(1.0,) * 3,
        nugget=1e-4,
        solver=ConjugateGradients(rtol=1e-11),
        device=device,
    )
    ends = 0.45 * stars(24)
    lines = LineIntegrals(ends, FixedStep(step=0.5))
    seen = Stack([lines, PointValues(0.9 * ends[:4]), Derivatives(ends[:4], 1)])
    return RowwiseGaussian(whitening, seen, mean=MEAN)


def _white_data(model: RowwiseGaussian) -> Observations:
    count = len(model.functionals)
    return Observations.of(
        model,
        torch.randn(count, generator=rng(6), dtype=torch.float64),
        torch.full((count,), 0.1, dtype=torch.float64),
    )


def _fitted_rows(device: torch.device, family: Family) -> dict[str, Tensor]:
    """What a short fit of q, kernel and noise finds."""
    model = rowwise(device)
    settings = HipSettings(
        family=family,
        batch_size=16,
        epochs=2,
        learn=("kernel", "likelihood"),
        rest=0.0,
        lengthscale_range=1.1,
    )
    result = fit_svi(model, _white_data(model), settings, generator=rng(9))
    return _findings(result)


def _fitted_points(device: torch.device) -> dict[str, Tensor]:
    """The same of free points and heavy-tailed noise."""
    kernel, seen = Matern32(lengthscale=1.5), PointValues(stars(24))
    result = fit_svgp(
        seen,
        torch.randn(len(seen), generator=rng(6), dtype=torch.float64),
        CholeskyWhitening(kernel, stars(8, seed=4).to(device), nugget=1e-4),
        StudentNoise(scale=0.3),
        generator=rng(9),
        settings=SvgpSettings(
            batch_size=12,
            steps=4,
            rest=0.0,
            family="full",
        ),
    )
    return _findings(result)


def _findings(result: SvgpResult) -> dict[str, Tensor]:
    moments = result.model.predict(LineIntegrals(0.4 * stars(8), FixedStep(step=0.5)))
    return {
        "the mean of q": result.q.mean,
        "a draw from q": result.q.sample(1, np.random.default_rng(7)),
        "the bound": torch.tensor(result.bound, dtype=torch.float64),
        "predictions": torch.stack(moments),
        **result.learnt,
    }


def observed(model: ForwardModel) -> tuple[Tensor, Normal]:
    """Noisy data of a known field, and what a noise may consist of."""
    eps = torch.randn(model.latent_size, generator=rng(4), dtype=torch.float64)
    clean = model.apply(eps.to(dtype=model.dtype, device=model.device))
    white = torch.randn(len(clean), generator=rng(6), dtype=torch.float64)
    ends, count = stars(), len(clean)
    noise = StudentT(
        stated=torch.full((count,), 0.05**2, dtype=torch.float64),
        degrees=4.0,
        learn_common=True,
        blur=LineIntegrals(1.02 * ends, FixedStep(step=0.5), start=0.98 * ends),
        blur_scale=torch.full((count,), 0.5, dtype=torch.float64),
        neighbours=torch.randint(count, (count, 5), generator=rng(2)),
    )
    return clean + 0.05 * white.to(clean), noise


def _inferred(model: ForwardModel, learns: bool):
    y, noise = observed(model)
    settings = FullBatch(
        samples=4,
        preconditioner_rank=8,
        solver=ConjugateGradients(rtol=1e-5, max_steps=400),
        newton_tolerance=1e-5 if model.dtype == torch.float64 else 1e-4,
    )
    if not learns:
        noise = Normal(stated=noise.stated)
    return infer(model, y, noise, settings=settings, generator=rng(9))


@contextmanager
def no_waiting(device: torch.device) -> Iterator[Callable[[Callable], Callable]]:
    """Functions whose calls may not make the host wait for the device.

    A number, a size or a copy that is asked of the device is an error within them.
    """
    names = ("item", "cpu", "numpy", "tolist", "nonzero", "__bool__", "__float__")
    kept = {name: getattr(torch.Tensor, name) for name in (*names, "__int__")}
    inside = False

    def refusing(name: str, function: Callable) -> Callable:
        def call(self: Tensor, *args, **options):
            if inside and self.device.type != "cpu":
                raise AssertionError(f"Tensor.{name} makes the host wait in a solver")
            return function(self, *args, **options)

        return call

    def watched(function: Callable) -> Callable:
        def call(*args):
            nonlocal inside
            inside = True
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            try:
                return function(*args)
            finally:
                inside = False
                if device.type == "cuda":
                    torch.cuda.set_sync_debug_mode("default")

        return call

    for name, function in kept.items():
        setattr(torch.Tensor, name, refusing(name, function))
    try:
        yield watched
    finally:
        for name, function in kept.items():
            setattr(torch.Tensor, name, function)
