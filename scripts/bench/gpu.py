"""How fast dustmap is on a GPU: the tables of GPU.md, row by row as they are measured.

    python scripts/bench/gpu.py [--parts NAME ...] [--device cpu] [--minutes 3]

Every part runs in a process of its own, which ends after so many minutes: a fault, or
what takes too long, leaves the others alone. It needs no installation, only torch,
numpy, scipy, numba and jaxtyping; on a CPU sizes are a hundred times smaller. Whether
results are right is checked by ``pytest tests/gpu --device cuda``.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dustmap.covariance import inducing_covariance
from dustmap.distributed.group import Group
from dustmap.functionals import FixedStep, LineIntegrals, StepsOutwards
from dustmap.grid import Grid, Torus, smooth_size
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.full_batch.gauss_newton import Precision
from dustmap.inference.scales.neighbour_likelihood import NeighbourLikelihood
from dustmap.inference.scales.prior_scales import PriorScales
from dustmap.kernels import Matern12
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.noise import Normal
from dustmap.projection import projection
from dustmap.residual.covariance import SubgridCovariance, rays_to
from dustmap.residual.cube import DensityCube
from dustmap.residual.field import ResidualField
from dustmap.residual.kriging import Neighbourhoods
from dustmap.residual.neighbours import nearest, without_self
from dustmap.whitening import (
    LevelWhitening,
    ToeplitzWhitening,
    TorusWhitening,
    nested_tori,
    padded_torus,
)

Row = dict[str, Any]
# What a row is of, and the function that measures it.
Rows = Iterator[tuple[str, Callable[[], Row]]]
CPU = torch.device("cpu")
# HIP-GP on a V100: seconds for 200 observations at 10⁶ points (Wu et al. 2021).
PUBLISHED = 1.46
# Passes over a real vector by two transforms in three dimensions, each axis read and
# written, and by the spectrum between them.
PASSES = 14
KERNEL = Matern12(lengthscale=4.0)


def roots(device: torch.device, small: int) -> Rows:
    """The prior's square root"""
    bandwidth = copy_speed(device, small)
    yield "copy (read + write)", lambda: {"GB/s": bandwidth}
    for points in (10**6, 10**7, 10**8):
        torus = torus_of(points // small)
        for dtype in (torch.float32, torch.float64):
            yield "A ε", partial(root, device, torus, dtype, bandwidth)


def root(
    device: torch.device, torus: Torus, dtype: torch.dtype, bandwidth: float
) -> Row:
    start = time.perf_counter()
    A = TorusWhitening(KERNEL, torus, dtype=dtype, device=device)
    made = time.perf_counter() - start
    eps = torch.randn(1, A.size, dtype=dtype, device=device)
    took = seconds(lambda: A.colour(eps), device)
    moved = PASSES * dtype.itemsize * torus.size / took / 1e9
    return {
        "GB/s": moved,
        "points": torus.size,
        "dtype": str(dtype).removeprefix("torch."),
        "made in [s]": made,
        "product [ms]": 1e3 * took,
        "share of copy": moved / bandwidth,
        "200 observations [s]": 200 * took,
        f"published {PUBLISHED} s at 1e6, times": PUBLISHED / (200 * took),
    }


def levels(device: torch.device, small: int) -> Rows:
    """Nested grids"""
    for points in (10**7, 10**8):
        count = points // small
        yield f"{count} points on six grids", partial(level, device, count)


def level(device: torch.device, points: int) -> Row:
    # Cubes of about so many points with their tori, each in the middle of one.
    quarter = max(3, round(((points / 6) ** (1 / 3) - 13) / 4))
    count = 4 * quarter + 1
    grids = [
        Grid(shape=(count,) * 3, spacing=(h,) * 3, origin=(-h * (count - 1) / 2,) * 3)
        for h in (2.0**-n for n in range(6))
    ]
    start = time.perf_counter()
    tori = nested_tori(grids, KERNEL, 0.05)
    A = LevelWhitening(KERNEL, tori, dtype=torch.float32, device=device)
    made = time.perf_counter() - start
    # As many stars from each distance to its double, in all directions.
    generator = torch.Generator().manual_seed(1)
    shape = points // 100, 3
    octaves = 6 * torch.rand(shape[0], 1, generator=generator, dtype=torch.float64)
    places = torch.randn(shape, generator=generator, dtype=torch.float64)
    ends = grids[0].upper[0] * torch.nn.functional.normalize(places) / 2**octaves
    steps = StepsOutwards(step=0.5 * grids[0].spacing[0], grids=A.tori.grids)
    model = LogNormal(A, LineIntegrals(ends, steps), mean=ConstantMean(value=0.01))
    eps = torch.randn(8, model.latent_size, dtype=torch.float32, device=device)
    noise = torch.full((len(ends),), 1e-3, device=device)
    tangent = model.linearise(0.1 * eps[0]).operator
    precision = Precision(tangent, Normal(stated=noise))
    one = seconds(lambda: precision.matvec(eps[:1]), device)
    eight = seconds(lambda: precision.matvec(eps), device)
    peak = peak_memory(device)
    return {
        "made in [s]": made,
        "unknowns": model.latent_size,
        "stars": len(ends),
        "density [ms]": 1e3 * seconds(lambda: model.density(eps[0]), device),
        "Λ x [ms]": 1e3 * one,
        "each of eight [ms]": 1e3 * eight / 8,
        "W [GB]": float(getattr(model.weights, "bytes", 0)) / 1e9,
        "peak [GiB]": peak,
        "bytes per unknown": peak * 2**30 / model.latent_size,
    }


def sight_lines(device: torch.device, small: int) -> Rows:
    """Sight lines, 4·10⁶ points"""
    # Compiles the loops, which is no part of what a row needs.
    for tree in (True, False):
        line_products(device, torus_of(1_000), 100, tree)
    torus = torus_of(4 * 10**6 // small)
    for count, tree in (
        *((10**5, True), (10**5, False), (10**6, True), (10**6, False)),
        # Its rows are ten times those of a million.
        (10**7, True),
    ):
        count //= small
        what = f"{'tree' if tree else 'rows'}, {count} lines"
        yield what, partial(line_products, device, torus, count, tree)


def line_products(device: torch.device, torus: Torus, count: int, tree: bool) -> Row:
    lines = rays_in(torus.grid, count)
    start = time.perf_counter()
    W = projection(torus, lines, dtype=torch.float32, device=device, tree=tree)
    made = time.perf_counter() - start
    x = torch.rand(1, W.shape[1], device=device)
    y = torch.rand(1, W.shape[0], device=device)
    forward = seconds(lambda: W.matvec(x), device)
    return {
        "form": type(W).__name__,
        "held [GB]": W.bytes / 1e9,
        "made in [s]": made,
        "forward [ms]": 1e3 * forward,
        "transpose [ms]": 1e3 * seconds(lambda: W.rmatvec(y), device),
        "gram [ms]": 1e3 * seconds(lambda: W.gram(x, y[0]), device),
        "forward [GB/s]": W.bytes / forward / 1e9,
    }


def iterations(device: torch.device, small: int) -> Rows:
    """One iteration of conjugate gradients"""
    for points, count in ((62_500, 10**5), (10**6, 10**6), (8 * 10**6, 10**6)):
        points, count = points // small, count // small
        what = f"{points} points, {count} stars"
        yield what, partial(iteration, device, small, points, count)


def iteration(device: torch.device, small: int, points: int, count: int) -> Row:
    torus = torus_of(points)
    A = TorusWhitening(KERNEL, torus, dtype=torch.float32, device=device)
    lines = rays_in(torus.grid, count)
    model = LogNormal(A, lines, mean=ConstantMean(value=0.01))
    tangent = model.linearise(torch.randn(A.size, device=device)).operator
    noise = torch.full((count,), 1e-3, device=device)
    precision = Precision(tangent, Normal(stated=noise))
    nystrom = NystromPreconditioner.build(
        precision.data_term,
        A.size,
        min(100, A.size // 2),
        torch.Generator().manual_seed(1),
        dtype=torch.float32,
        device=device,
    )
    x = torch.randn(1, A.size, device=device)
    W = model.weights
    density = torch.ones(1, W.shape[1], device=device)
    times = {
        "FFTs": 2 * seconds(lambda: A.colour(x), device),
        "W": seconds(lambda: W.gram(density, 1 / noise), device),
        "preconditioner": seconds(lambda: nystrom(x), device),
    }
    whole = seconds(lambda: nystrom(precision.matvec(x)), device)
    # Two products with A, the entries of W once, the basis twice, some vectors.
    numbers = 2 * PASSES * A.size + 2 * nystrom.basis.numel() + 10 * A.size
    moved = 4.0 * numbers + getattr(W, "bytes", 0)
    return {
        **{f"{name} [ms]": 1e3 * took for name, took in times.items()},
        "rest [ms]": 1e3 * (whole - sum(times.values())),
        "whole [ms]": 1e3 * whole,
        "memory's own time [ms]": moved / copy_speed(device, small) / 1e6,
    }


def stages(device: torch.device, small: int) -> Rows:
    """Stages that solve neighbourhoods"""
    for stage in (scales, noise, weights, held_out):
        name = (stage.__doc__ or "").rstrip(".")
        yield name, partial(beside_the_cpu, stage, device, small)


def beside_the_cpu(stage: Callable, device: torch.device, small: int) -> Row:
    count, action = stage(device, small)
    took = seconds(action, device)
    row: Row = {"neighbourhoods": count, "device [ms]": 1e3 * took}
    if device.type == "cuda":
        row |= {"waits": waits(action), "peak [GiB]": peak_memory(device)}
        beside = seconds(stage(CPU, small)[1], CPU)
        row |= {"CPU [ms]": 1e3 * beside, "CPU / device": beside / took}
    return row


def waits(action: Callable) -> int:
    """How often the host waits for the device in one call."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            action()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in seen)


def scales(device: torch.device, small: int) -> tuple[int, Callable]:
    """Learning of scales, one likelihood."""
    field = shared_dust(max(4_000 // small, 200))
    ends = field.rays.directions * field.rays.lengths[:, None]
    extinction = field.rays.density * field.rays.lengths
    likelihood = NeighbourLikelihood(
        ends, field.noise, kernel=Matern12, positive=True, device=device
    )
    prior = PriorScales(
        lengthscale=torch.full((3,), 60.0, dtype=torch.float64),
        std=1.0,
        mean=ConstantMean(value=2e-3),
        common_noise=0.0,
    )
    return len(likelihood), lambda: likelihood.conditionals(prior).log_density(
        extinction
    )


def noise(device: torch.device, small: int) -> tuple[int, Callable]:
    """Precision of the noise, 30 neighbours."""
    field, near = with_neighbours(200_000 // small, device)
    return len(near), lambda: field.krige(field.rays, near)


def weights(device: torch.device, small: int) -> tuple[int, Callable]:
    """Learning of weights, one step."""
    field, near = with_neighbours(max(3_000 // small, 100), device)
    hoods = Neighbourhoods.of(field.covariance, field.rays, field.rays, near)

    def step() -> Tensor:
        learnt = field.weights.clone().requires_grad_()
        mean, variance = hoods.predict(learnt, field.noise, field.residuals[0])
        return torch.autograd.grad(mean.sum() + variance.sum(), learnt)[0]

    return len(near), step


def held_out(device: torch.device, small: int) -> tuple[int, Callable]:
    """Held-out stars, extinction and density from 128 neighbours."""
    field = replace(shared_dust(max(200_000 // small, 1_000)), device=device)
    ends = places_seen(20_000 // small, 5)
    both = torch.cat([ends, ends])
    values = torch.full((len(field.residuals), len(both)), 0.3, dtype=torch.float64)
    return len(both), lambda: field.correct(both, values, points=len(ends))


def with_neighbours(count: int, device: torch.device) -> tuple[ResidualField, Tensor]:
    field = replace(shared_dust(count), device=device)
    points = field.rays.coordinates(field.stretch)
    return field, without_self(nearest(points, points, 31))


def places_seen(count: int, seed: int) -> Tensor:
    """Places within some degrees, at 60 to 380 pc."""
    one, other = (torch.Generator().manual_seed(n) for n in (seed, seed + 1))
    turned = torch.randn(count, 3, generator=one, dtype=torch.float64)
    unit = torch.nn.functional.normalize(turned / 20 + torch.eye(3)[0])
    far = torch.rand(count, 1, generator=other, dtype=torch.float64)
    return unit * (60 + 320 * far)


def shared_dust(count: int) -> ResidualField:
    """Residuals of stars within some degrees, behind dust on two nested grids."""
    ends = places_seen(count, 1)
    lengths = torch.linalg.vector_norm(ends, dim=1)
    seen = rays_to(ends, 2e-3 * lengths, 0.0)
    grids = tuple(
        Grid(shape=(9,) * 3, origin=(-4 * step,) * 3, spacing=(step,) * 3)
        for step in (100.0, 50.0)
    )
    white = torch.Generator().manual_seed(3)
    points = seen.coordinates(20.0)
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
    )


def inferences(device: torch.device, small: int) -> Rows:
    """Mode and eight samples"""
    # At the small sizes lines are shorter than a lengthscale: little is to be seen.
    cells = ((50, 50, 25), (200, 200, 200))
    counts = 100_000, 500_000, 1_000_000
    if small > 1:
        cells, counts = ((10, 10, 6), (12, 12, 12)), (500, 2_000, 3_000)
    wanted = [(cells[0], counts[0], device), (cells[0], counts[1], device)]
    if device.type != "cpu":
        wanted.append((cells[0], counts[0], CPU))
    for shape, count, place in (*wanted, (cells[1], counts[2], device)):
        points = torch.Size(shape).numel()
        what = f"{count} stars, {points} points, {place.type}"
        yield what, partial(inference, shape, count, place)


def inference(shape: tuple[int, ...], count: int, device: torch.device) -> Row:
    """A map of sight lines through a log-normal density on a grid twice as fine."""
    grid, mean = centred(shape), ConstantMean(value=0.05)
    generator = torch.Generator().manual_seed(1)
    field = mean.value * drawn_density(grid.refined(2), generator, device)
    rays = rays_in(grid, count, generator)
    truth, density = extinctions(field, rays.end), field[::2, ::2, ::2].reshape(-1)
    fitted = torch.arange(count) % 10 > 0
    start = time.perf_counter()
    torus = padded_torus(grid, KERNEL, 0.05)
    A = TorusWhitening(KERNEL, torus, dtype=torch.float32, device=device)
    model = LogNormal(A, rays.select(fitted.nonzero()[:, 0]), mean=mean)
    white = torch.randn(int(fitted.sum()), generator=torch.Generator().manual_seed(2))
    # A fraction of the scatter of extinctions, as that of real stars.
    error = 0.04 * float(truth.std())
    synchronise(device)
    made = time.perf_counter() - start
    start = time.perf_counter()
    result = infer(
        model,
        truth[fitted.to(device)] + error * white.to(device),
        torch.full((len(white),), error**2),
        settings=FullBatch(
            samples=8,
            preconditioner_rank=min(100, A.size // 4),
            newton_tolerance=1e-2,
            solver=ConjugateGradients(rtol=1e-3, max_steps=1000),
        ),
        generator=torch.Generator().manual_seed(3),
    )
    synchronise(device)
    took = time.perf_counter() - start
    others = model.at(rays.select((~fitted).nonzero()[:, 0]))
    known = truth[~fitted.to(device)]
    predicted = torch.stack([others.apply(eps) for eps in result.samples]).mean(dim=0)
    drawn = torch.stack([model.density(eps) for eps in result.samples]).mean(dim=0)
    block = tuple(slice(0, n) for n in shape)
    pair = torch.stack([drawn.reshape(torus.shape)[block].reshape(-1), density])
    return {
        "model made in [s]": made,
        "mode and 8 samples [s]": took,
        "RMSE [mag]": float((predicted - known).square().mean().sqrt()),
        "scatter [mag]": float(known.std()),
        "density r": float(torch.corrcoef(pair)[0, 1]),
        "Newton steps": result.newton_steps,
        "residual": float(result.mean_solution.residual.max()),
        "converged": "yes" if result.converged else "no",
        "W": type(model.weights).__name__,
    }


def drawn_density(
    grid: Grid, generator: torch.Generator, device: torch.device
) -> Tensor:
    """A log-normal field at the points of a grid, its median one."""
    shape = tuple(smooth_size(n + 4 * int(KERNEL.lengthscale)) for n in grid.shape)
    torus = Torus(grid=grid, shape=shape)
    A = TorusWhitening(KERNEL, torus, dtype=torch.float32, device=device)
    block = tuple(slice(0, n) for n in grid.shape)
    return A.prior_draw(generator)[0][0].exp().reshape(shape)[block]


def extinctions(field: Tensor, ends: Tensor) -> Tensor:
    """Line integrals of a trilinear field of half the spacing, from its middle.

    They are summed by torch's own interpolation, independently of the map's W, at the
    midpoints of steps of at most half a spacing.
    """
    steps = 2 * max(field.shape) - 2
    middle = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    half = (torch.tensor(field.shape, dtype=torch.float64) - 1) / 4
    values = []
    for part in ends.split(2**24 // steps):
        # Places are in units of half the box, those along its last axis first.
        places = (part / half)[:, None].flip(-1) * middle[:, None]
        seen = torch.nn.functional.grid_sample(
            field[None, None], places[None, None].to(field), align_corners=True
        )
        values.append(seen[0, 0, 0].mean(dim=-1) * part.norm(dim=1).to(field))
    return torch.cat(values)


def rows(device: torch.device, small: int) -> Rows:
    """The published solve for every star"""
    for count in (16, 64, 256):
        yield f"{count} rows together", partial(row_solves, device, small, count)


def row_solves(device: torch.device, small: int, count: int) -> Row:
    """The published features, one PCG solve for every star (float64, 20 iterations)."""
    shape, scale = ((50, 50, 25), 4.0) if small == 1 else ((12, 12, 8), 1.0)
    grid, kernel = centred(shape), Matern12(lengthscale=scale)
    R = ToeplitzWhitening(
        kernel,
        grid,
        lengthscales=(scale,) * 3,
        limits=EmbeddingLimits(max_points=2**23),
        solver=ConjugateGradients(rtol=1e-12, max_steps=20, restarts=0),
        device=device,
    )
    cross = inducing_covariance(kernel, rays_in(grid, count), R.points)
    took = seconds(lambda: R.features(cross), device, least=1.0)
    return {
        "inducing points": grid.size,
        "embedding": R.size,
        "rows per second": count / took,
        "200 observations [s]": 200 * took / count,
        "median residual": float(R.features(cross)[-1].residual.median()),
    }


def ranks(device: torch.device, small: int) -> Rows:
    """Several processes"""
    # As many as there are devices, two on a CPU; torchrun's own, where rows are said.
    devices = torch.cuda.device_count() if device.type == "cuda" else 2
    for count in (n for n in (1, 2, 4, 8) if n <= devices):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={count}", __file__, "--parts", "rank"]
        command += ["--device", device.type, "--smaller", str(small)]
        subprocess.run(command, check=True)
    yield from ()


def one_rank(device: torch.device, small: int) -> None:
    """The same product on every rank, which share out the stars; the first says it."""
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=120))
    group = Group(connected=True)
    torus = torus_of(10**6 // small)
    model = TorusGaussian(
        TorusWhitening(KERNEL, torus, dtype=torch.float32, device=device),
        rays_in(torus.grid, 10**6 // small),
        residual_refinement=1,
        generator=torch.Generator().manual_seed(2),
        group=group,
    )
    noise = torch.full((10**6 // small,), 1e-3, device=device)
    precision = Precision(model.operator, Normal(stated=noise))
    x = torch.ones(1, model.latent_size, device=device)
    # As many times on every rank: a collective waits for all.
    times = sorted(
        seconds(lambda: precision.matvec(x), device, least=0.0) for _ in range(5)
    )
    row = {
        "what": f"{group.size} ranks, {dist.get_backend()}",
        "points": torus.size,
        "stars": len(noise),
        "product of Λ [ms]": 1e3 * times[2],
        "bytes sent per product": 4 * torus.size if group.size > 1 else 0,
    }
    if group.first:
        say(row, [])
    dist.destroy_process_group()


PARTS = {
    part.__name__: part
    for part in (
        roots,
        levels,
        sight_lines,
        iterations,
        stages,
        inferences,
        rows,
        ranks,
    )
}


def centred(shape: tuple[int, ...]) -> Grid:
    """A box of unit cells around the observer."""
    origin = tuple(-(n - 1) / 2 for n in shape)
    return Grid(shape=shape, spacing=(1.0,) * 3, origin=origin)


def torus_of(points: int) -> Torus:
    """A torus of about so many points, and the box that is three quarters of it."""
    side = points ** (1 / 3)
    shape = tuple(smooth_size(round(side * f)) for f in (1.0, 1.0, points / side**3))
    return Torus(grid=centred(tuple(max(2, 3 * n // 4) for n in shape)), shape=shape)


def rays_in(
    grid: Grid, count: int, generator: torch.Generator | None = None
) -> LineIntegrals:
    """Sight lines from the middle of the box to places in it."""
    generator = generator or torch.Generator().manual_seed(1)
    unit = torch.rand(count, 3, generator=generator, dtype=torch.float64) - 0.5
    size = torch.tensor([n - 1.0 for n in grid.shape], dtype=torch.float64)
    return LineIntegrals(0.999 * unit * size, FixedStep(step=0.5))


def copy_speed(device: torch.device, small: int) -> float:
    """Bytes read and written by a copy [GB/s]."""
    x = torch.zeros(2**28 if small == 1 else 2**25, device=device)
    y = torch.empty_like(x)
    return 2 * 4 * x.numel() / seconds(lambda: y.copy_(x), device) / 1e9


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(
    action: Callable[[], Any], device: torch.device, *, least: float = 0.3
) -> float:
    """The median time of an action, of as many as fit into ``least`` seconds (3 to 50).

    The first, which compiles and plans, is not counted.
    """
    action()
    synchronise(device)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < least and len(times) < 50):
        start = time.perf_counter()
        action()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def peak_memory(device: torch.device) -> float:
    """Bytes at the peak since the last call [GiB]; of the device where it counts."""
    if device.type != "cuda":
        import resource

        # Kilobytes, but bytes on macOS.
        unit = 2**30 if sys.platform == "darwin" else 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def say(row: Row, names: list[str]) -> list[str]:
    """Print a row, under a new head if it has other columns than those of ``names``."""
    if not set(row) <= set(names):
        names = list(row)
        print(f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}")
    values = (row.get(name, "") for name in names)
    said = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in values)
    print(f"| {' | '.join(said)} |", flush=True)
    return names


def one_part(name: str, device: torch.device, small: int) -> None:
    """Measure and print the rows of a part; exit status 1 if any failed."""
    part, names, failed = PARTS[name], [], False
    print(f"\n## {part.__doc__}", flush=True)
    for what, measure in part(device, small):
        try:
            row = measure()
            row.setdefault("peak [GiB]", peak_memory(device))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            row = {"note": "not enough memory"}
        except Exception as error:
            row = {"note": f"{type(error).__name__}: {error}".replace("\n", " ")[:200]}
            failed = True
        names = say({"what": what, **row}, names)
    sys.exit(failed)


def facts(device: torch.device) -> Row:
    """The device, versions, load and commit."""

    def told(*command: str) -> str:
        try:
            return subprocess.run(
                command, capture_output=True, text=True
            ).stdout.strip()
        except OSError:
            return "unknown"

    machine: Row = {
        "device": platform.processor() or platform.machine(),
        "commit": told(
            "git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"
        ),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(0)
        machine["device"] = f"{torch.cuda.device_count()} x {properties.name}"
        machine["memory [GiB]"] = properties.total_memory / 2**30
        machine["CUDA"] = torch.version.cuda
        query = ("--query-gpu=driver_version", "--format=csv,noheader")
        machine["driver"] = told("nvidia-smi", *query)
    return machine


def main() -> int:
    """Exit status: 0 all measured, 1 a part failed or took too long, 2 no CUDA."""
    parser = argparse.ArgumentParser(description=__doc__)
    # The last is the program of a process of torchrun.
    parser.add_argument("--parts", nargs="*", choices=[*PARTS, "rank"])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=3.0, help="for each part")
    parser.add_argument("--smaller", type=int, help="divides points and stars")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here: --device cpu runs it smaller")
    device = torch.device(options.device)
    small = options.smaller or (1 if options.device == "cuda" else 100)
    if options.parts == ["rank"]:
        one_rank(device, small)
        return 0
    for name, value in facts(device).items():
        print(f"- {name}: {value}", flush=True)
    failed = []
    for part in options.parts or PARTS:
        process = get_context("spawn").Process(
            target=one_part, args=(part, device, small)
        )
        process.start()
        process.join(60 * options.minutes)
        if process.exitcode != 0:
            failed.append(part)
            process.kill()
            process.join()
    if failed:
        print(f"failed or out of time: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
