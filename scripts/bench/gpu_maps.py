"""Whole inferences, and the published rows: ``gpu_maps.py PART DEVICE SECONDS FOLDER``.

Stars are simulated here: sight lines from the middle of a box through a log-normal
density on a grid twice as fine as the map's, with a known kernel.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from gpu_parts import PUBLISHED, Part, main
from gpu_table import Row, peak_memory, seconds, synchronise
from torch import Tensor

from dustmap.covariance import inducing_covariance
from dustmap.functionals import FixedStep, LineIntegrals
from dustmap.grid import Grid, Torus, smooth_size
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.kernels import Matern12
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.whitening import ToeplitzWhitening, TorusWhitening, padded_torus

# At the small sizes lines are shorter than a lengthscale, and little is to be seen.
# The noise is a fraction of the scatter of extinctions, as that of real stars.
NOISE, DENSITY, LENGTHSCALE, VARIANCE = 0.04, 0.05, 4.0, 1.0
HELD_OUT = 10
# Inducing points along the axes, and stars.
SIZES = (
    ((50, 50, 25), 100_000),
    ((50, 50, 25), 500_000),
    ((200, 200, 200), 1_000_000),
)
SMALL = (((10, 10, 6), 500), ((10, 10, 6), 2_000), ((12, 12, 12), 3_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sky:
    """Stars, their true extinctions, and the true density at the map's points."""

    ends: Tensor
    extinction: Tensor
    density: Tensor


def inference(part: Part) -> bool:
    """Mode and eight samples, on the device and the smallest on the CPU as well."""
    good = True
    sizes = SIZES if part.small == 1 else SMALL
    wanted = [(shape, count, part.device) for shape, count in sizes]
    if part.device.type != "cpu":
        wanted.append((*sizes[0], torch.device("cpu")))
    took = 0.0
    for shape, count, device in wanted:
        points = torch.Size(shape).numel()
        start = time.perf_counter()
        good &= part.attempt(
            f"{count} stars, {points} points, {device.type}",
            lambda shape=shape, count=count, device=device: _map(shape, count, device),
            needs=took,
        )
        took = time.perf_counter() - start
    return good


def _map(shape: tuple[int, ...], count: int, device: torch.device) -> Row:
    kernel = Matern12(lengthscale=LENGTHSCALE, variance=VARIANCE)
    origin = tuple(-(n - 1) / 2 for n in shape)
    grid = Grid(shape=shape, spacing=(1.0,) * 3, origin=origin)
    sky = _sky(grid, kernel, count, device)
    fitted = torch.arange(count) % HELD_OUT > 0
    start = time.perf_counter()
    A = TorusWhitening(
        kernel, padded_torus(grid, kernel, 0.05), dtype=torch.float32, device=device
    )
    rays = LineIntegrals(sky.ends[fitted], FixedStep(step=0.5))
    model = LogNormal(A, rays, mean=ConstantMean(value=DENSITY))
    white = torch.randn(len(rays), generator=torch.Generator().manual_seed(2))
    noise = NOISE * float(sky.extinction.std())
    synchronise(device)
    made = time.perf_counter() - start
    start = time.perf_counter()
    result = infer(
        model,
        sky.extinction[fitted.to(device)] + noise * white.to(device),
        torch.full((len(rays),), noise**2),
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
    others = model.at(LineIntegrals(sky.ends[~fitted], FixedStep(step=0.5)))
    truth = sky.extinction[~fitted.to(device)]
    predicted = torch.stack([others.apply(eps) for eps in result.samples]).mean(dim=0)
    mean = sum(model.density(eps) for eps in result.samples) / len(result.samples)
    assert isinstance(mean, Tensor)
    block = tuple(slice(0, n) for n in shape)
    seen = mean.reshape(A.torus.shape)[block].reshape(-1)
    pair = torch.stack([seen, sky.density.to(seen)])
    return {
        "model made in [s]": made,
        "mode and 8 samples [s]": took,
        "peak [GiB]": peak_memory(device),
        "RMSE [mag]": float((predicted - truth).square().mean().sqrt()),
        "scatter [mag]": float(truth.std()),
        "density r": float(torch.corrcoef(pair)[0, 1]),
        "Newton steps": result.newton_steps,
        "residual": float(result.mean_solution.residual.max()),
        "converged": result.converged,
        "W": type(model.weights).__name__,
    }


def _sky(grid: Grid, kernel: Matern12, count: int, device: torch.device) -> Sky:
    """A draw of the density on a grid twice as fine, and stars in the box."""
    fine = grid.refined(2)
    shape = tuple(smooth_size(n + 4 * int(LENGTHSCALE)) for n in fine.shape)
    torus = Torus(grid=fine, shape=shape)
    generator = torch.Generator().manual_seed(1)
    A = TorusWhitening(kernel, torus, dtype=torch.float32, device=device)
    density = DENSITY * torch.exp(A.prior_draw(generator)[0][0])
    unit = torch.rand(count, 3, generator=generator, dtype=torch.float64) - 0.5
    size = torch.tensor([n - 1.0 for n in grid.shape], dtype=torch.float64)
    ends = 0.999 * unit * size
    field = density.reshape(shape)[tuple(slice(0, n) for n in fine.shape)]
    every = tuple(slice(0, n, 2) for n in fine.shape)
    return Sky(
        ends=ends,
        extinction=_integrals(field, ends / size),
        density=density.reshape(shape)[every].reshape(-1).cpu(),
    )


def _integrals(field: Tensor, ends: Tensor) -> Tensor:
    """Line integrals of a trilinear field from its middle to ``ends`` [its sizes].

    They are summed by torch's own interpolation, independently of the map's W, at the
    midpoints of steps of at most half a spacing.
    """
    sizes = torch.tensor(field.shape, dtype=torch.float64) - 1
    steps = int(2 * sizes.max())
    middle = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    values = []
    for block in ends.split(2**24 // steps):
        # Places are in units of half the field, those along its last axis first.
        places = 2 * block[:, None].flip(-1) * middle[:, None]
        seen = torch.nn.functional.grid_sample(
            field[None, None], places[None, None].to(field), align_corners=True
        )
        # The map's spacing is one, and that of the field half of it.
        length = (block * sizes / 2).norm(dim=1).to(field)
        values.append(seen[0, 0, 0].mean(dim=-1) * length)
    return torch.cat(values)


def rows(part: Part) -> bool:
    """The published features, one PCG solve for every star (float64, 20 iterations)."""
    good = True
    shape = (50, 50, 25) if part.small == 1 else (12, 12, 8)
    grid = Grid(
        shape=shape, spacing=(1.0,) * 3, origin=tuple(-(n - 1) / 2 for n in shape)
    )
    scale = 4.0 if part.small == 1 else 1.0
    kernel = Matern12(lengthscale=scale)
    for count in (16, 64, 256):

        def measure(count=count) -> Row:
            R = ToeplitzWhitening(
                kernel,
                grid,
                lengthscales=(scale,) * 3,
                limits=EmbeddingLimits(max_points=2**23),
                solver=ConjugateGradients(rtol=1e-12, max_steps=20, restarts=0),
                device=part.device,
            )
            unit = torch.rand(count, 3, generator=torch.Generator().manual_seed(1))
            size = torch.tensor([n - 1.0 for n in shape])
            seen = LineIntegrals(0.9 * (unit - 0.5) * size, FixedStep(step=0.5))
            cross = inducing_covariance(kernel, seen, R.points)
            took = seconds(lambda: R.features(cross), part.device, least=1.0)
            residual = float(R.features(cross)[-1].residual.median())
            return {
                "inducing points": grid.size,
                "embedding": R.size,
                "rows per second": count / took,
                "200 observations [s]": 200 * took / count,
                "published [s]": f"{PUBLISHED} at 1e6 points on a V100",
                "median residual": residual,
                "peak [GiB]": peak_memory(part.device),
            }

        good &= part.attempt(f"{count} rows together", measure, needs=2.0)
    return good


if __name__ == "__main__":
    main({f.__name__: f for f in (inference, rows)})
