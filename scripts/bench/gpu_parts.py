"""Checks, whitening, nested grids, sight lines and iterations: ``gpu_parts.py PART
DEVICE SECONDS FOLDER SMALLER``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from gpu_checks import CHECKS
from gpu_table import Row, Table, attempted, peak_memory, seconds
from torch import Tensor

from dustmap.functionals import FixedStep, LineIntegrals, StepsOutwards
from dustmap.grid import Grid, Torus, smooth_size
from dustmap.inference.full_batch.gauss_newton import Precision
from dustmap.kernels import Matern12
from dustmap.linalg.operator import LinearOperator
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.gaussian import TorusTangent
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.noise import Normal
from dustmap.projection import projection
from dustmap.whitening import LevelWhitening, TorusWhitening, nested_tori

# HIP-GP on a V100: seconds for 200 observations at 10⁶ points (Wu et al. 2021).
PUBLISHED = 1.46
# Passes over a real vector by two transforms in three dimensions, each axis read and
# written, and by the spectrum between them.
PASSES = 14


class Part:
    """What all parts need: device, deadline, table, and by how much all is smaller."""

    def __init__(
        self, name: str, device: str, limit: float, folder: Path, small: int
    ) -> None:
        self.name, self.device = name, torch.device(device)
        self.table = Table(folder)
        self.small = small
        self._end = time.monotonic() + limit

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def attempt(self, what: str, measure, *, needs: float = 0.0) -> bool:
        """Measure a row if there is time for it."""
        if self.left < needs:
            note = f"no time: about {needs:.0f} s needed, {self.left:.0f} s left"
            self.table.add(self.name, {"what": what, "note": note})
            return True
        return attempted(self.table, self.name, what, measure)


def checks(part: Part) -> bool:
    """Every check in both precisions; a CPU is its own reference, and one will do."""
    good = True
    both = (torch.float64, torch.float32)
    dtypes = both if part.device.type == "cuda" else both[1:]
    for check in CHECKS:
        for dtype in dtypes:

            def measure(check=check, dtype=dtype) -> Row:
                start = time.perf_counter()
                share = check(part.device, dtype)
                took = time.perf_counter() - start
                return {"dtype": _short(dtype), "error / allowed": share, "s": took}

            good &= part.attempt(check.__name__, measure)
    return good


def whitening(part: Part) -> bool:
    """Products with the prior's square root, beside a copy of memory."""
    good = True
    bandwidth = _copy_speed(part)
    part.table.add("whitening", {"what": "copy (read + write)", "GB/s": bandwidth})
    for points in (10**6, 10**7, 10**8):
        torus = torus_of(points // part.small)
        for dtype in (torch.float32, torch.float64):

            def measure(torus=torus, dtype=dtype) -> Row:
                start = time.perf_counter()
                kernel = Matern12(lengthscale=4.0)
                A = TorusWhitening(kernel, torus, dtype=dtype, device=part.device)
                made = time.perf_counter() - start
                eps = torch.randn(1, A.size, dtype=dtype, device=part.device)
                took = seconds(lambda: A.colour(eps), part.device)
                moved = PASSES * dtype.itemsize * torus.size / took / 1e9
                return {
                    "points": torus.size,
                    "dtype": _short(dtype),
                    "made in [s]": made,
                    "product [ms]": 1e3 * took,
                    "GB/s": moved,
                    "share of copy": moved / bandwidth,
                    "200 observations [s]": 200 * took,
                    f"published {PUBLISHED} s at 1e6, times": PUBLISHED / (200 * took),
                    "peak [GiB]": peak_memory(part.device),
                }

            good &= part.attempt("A ε", measure, needs=2.0)
    return good


def levels(part: Part) -> bool:
    """Six nested grids: products with the prior's square root, iterations of Λ."""
    good = True
    for points in (10**7, 10**8):
        count = points // part.small

        def measure(count=count) -> Row:
            grids = nested_cubes(count)
            start = time.perf_counter()
            kernel = Matern12(lengthscale=4.0 * max(grids[0].spacing))
            tori = nested_tori(grids, kernel, 0.05)
            A = LevelWhitening(kernel, tori, dtype=torch.float32, device=part.device)
            made = time.perf_counter() - start
            ends = _stars_of(grids[0], count // 100)
            return {"made in [s]": made, **_nested_products(part, A, ends)}

        good &= part.attempt(f"{count} points on six grids", measure, needs=10.0)
    return good


def _nested_products(part: Part, A: LevelWhitening, ends: Tensor) -> Row:
    grids = A.tori.grids
    steps = StepsOutwards(step=0.5 * grids.box.spacing[0], grids=grids)
    rays = LineIntegrals(ends, steps)
    model = LogNormal(A, rays, mean=ConstantMean(value=0.01))
    place = {"dtype": torch.float32, "device": part.device}
    eps = torch.randn(8, model.latent_size, **place)
    noise = torch.full((len(ends),), 1e-3, device=part.device)
    tangent = model.linearise(0.1 * eps[0]).operator
    precision = Precision(tangent, Normal(stated=noise))
    one = seconds(lambda: precision.matvec(eps[:1]), part.device)
    eight = seconds(lambda: precision.matvec(eps), part.device)
    peak = peak_memory(part.device)
    return {
        "unknowns": model.latent_size,
        "stars": len(ends),
        "density [ms]": 1e3 * seconds(lambda: model.density(eps[0]), part.device),
        "Λ x [ms]": 1e3 * one,
        "each of eight [ms]": 1e3 * eight / 8,
        "W [GB]": float(getattr(model.weights, "bytes", 0)) / 1e9,
        "peak [GiB]": peak,
        "bytes per unknown": peak * 2**30 / model.latent_size,
    }


def nested_cubes(points: int) -> tuple[Grid, ...]:
    """Six cubes of about so many points with their tori, each in the middle of one."""
    quarter = max(3, round(((points / 6) ** (1 / 3) - 13) / 4))
    count = 4 * quarter + 1
    spacings = [2.0**-level for level in range(6)]
    return tuple(
        Grid(shape=(count,) * 3, spacing=(h,) * 3, origin=(-h * (count - 1) / 2,) * 3)
        for h in spacings
    )


def _stars_of(grid: Grid, count: int) -> Tensor:
    """Places in all directions, as many from each distance to its double."""
    generator = torch.Generator().manual_seed(1)
    far = grid.upper[0] * 2.0 ** (
        -6 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    )
    places = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return far * places / torch.linalg.vector_norm(places, dim=1, keepdim=True)


def sight_lines(part: Part) -> bool:
    """W in all its forms."""
    good, torus = True, torus_of(4 * 10**6 // part.small)
    # Compiles the loops, which is no part of what a larger row needs.
    for tree in (True, False):
        _products(part, torus_of(1_000), _rays(torus_of(1_000), 100), tree=tree)
    needed = {"tree": 0.0, "rows": 0.0}
    for count in (10**5, 10**6, 10**7):
        count //= part.small
        seen = _rays(torus, count)
        for form in needed:
            start = time.perf_counter()
            good &= part.attempt(
                f"{form}, {count} lines",
                lambda seen=seen, form=form: _products(
                    part, torus, seen, tree=form == "tree"
                ),
                needs=needed[form],
            )
            needed[form] = 10 * max(time.perf_counter() - start, needed[form])
    return good


def _products(part: Part, torus: Torus, seen: LineIntegrals, *, tree: bool) -> Row:
    start = time.perf_counter()
    W = projection(torus, seen, dtype=torch.float32, device=part.device, tree=tree)
    made = time.perf_counter() - start
    x = torch.rand(1, W.shape[1], device=part.device)
    y = torch.rand(1, W.shape[0], device=part.device)
    times = {
        "forward": seconds(lambda: W.matvec(x), part.device),
        "transpose": seconds(lambda: W.rmatvec(y), part.device),
        "gram": seconds(lambda: W.gram(x, y[0]), part.device),
    }
    held = float(W.bytes)
    return {
        "form": type(W).__name__,
        "held [GB]": held / 1e9,
        "made in [s]": made,
        **{f"{name} [ms]": 1e3 * took for name, took in times.items()},
        "forward [GB/s]": held / times["forward"] / 1e9,
        "peak [GiB]": peak_memory(part.device),
    }


def iteration(part: Part) -> bool:
    """One CG iteration of Λ for a positive density, and its parts."""
    good = True
    for points, count in ((62_500, 10**5), (10**6, 10**6), (8 * 10**6, 10**6)):
        points, count = points // part.small, count // part.small

        def measure(points=points, count=count) -> Row:
            torus = torus_of(points)
            kernel = Matern12(lengthscale=4.0)
            A = TorusWhitening(kernel, torus, dtype=torch.float32, device=part.device)
            model = LogNormal(A, _rays(torus, count), mean=ConstantMean(value=0.01))
            eps = torch.randn(A.size, device=part.device)
            density = model.density(eps)
            tangent = TorusTangent(A, model.weights, density)
            noise = torch.full((count,), 1e-3, device=part.device)
            return _iteration(part, tangent, model.weights, noise)

        good &= part.attempt(f"{points} points, {count} stars", measure, needs=5.0)
    return good


def _iteration(
    part: Part,
    tangent: TorusTangent,
    W: LinearOperator,
    noise: Tensor,
) -> Row:
    A, precision = tangent.whitening, Precision(tangent, Normal(stated=noise))
    nystrom = NystromPreconditioner.build(
        precision.data_term,
        A.size,
        min(100, A.size // 2),
        torch.Generator().manual_seed(1),
        dtype=torch.float32,
        device=part.device,
    )
    x = torch.randn(1, A.size, device=part.device)
    weights = 1 / noise
    density = torch.ones(1, W.shape[1], device=part.device)
    times = {
        "FFTs": 2 * seconds(lambda: A.colour(x), part.device),
        "W": seconds(lambda: W.gram(density, weights), part.device),
        "preconditioner": seconds(lambda: nystrom(x), part.device),
    }

    took = seconds(lambda: nystrom(precision.matvec(x)), part.device)
    # Two products with A, the entries of W once, the basis twice, some vectors.
    held = getattr(W, "bytes", 0)
    size = 4.0 * A.size
    moved = 2 * PASSES * size + held + 2 * nystrom.basis.numel() * 4.0 + 10 * size
    return {
        **{f"{name} [ms]": 1e3 * value for name, value in times.items()},
        "rest [ms]": 1e3 * (took - sum(times.values())),
        "whole [ms]": 1e3 * took,
        "memory's own time [ms]": 1e3 * moved / (_copy_speed(part) * 1e9),
    }


def _copy_speed(part: Part) -> float:
    """Bytes read and written by a copy [GB/s]."""
    x = torch.zeros(2**28 if part.small == 1 else 2**25, device=part.device)
    y = torch.empty_like(x)
    return 2 * 4 * x.numel() / seconds(lambda: y.copy_(x), part.device) / 1e9


def torus_of(points: int) -> Torus:
    """A torus of about so many points, and the box that is three quarters of it."""
    side = points ** (1 / 3)
    shape = tuple(smooth_size(round(side * f)) for f in (1.0, 1.0, points / side**3))
    inner = tuple(max(2, 3 * n // 4) for n in shape)
    origin = tuple(-(n - 1) / 2 for n in inner)
    grid = Grid(shape=inner, spacing=(1.0,) * 3, origin=origin)
    return Torus(grid=grid, shape=shape)


def _rays(torus: Torus, count: int) -> LineIntegrals:
    """Sight lines from the middle of the box to places in it."""
    generator = torch.Generator().manual_seed(1)
    unit = torch.rand(count, 3, generator=generator, dtype=torch.float64) - 0.5
    size = torch.tensor([n - 1.0 for n in torus.grid.shape], dtype=torch.float64)
    return LineIntegrals(0.999 * unit * size, FixedStep(step=0.5))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main(parts: dict) -> None:
    """Run the part that the command line names."""
    name, device, limit, folder, small = sys.argv[1:]
    part = Part(name, device, float(limit), Path(folder), int(small))
    sys.exit(0 if parts[name](part) else 1)


if __name__ == "__main__":
    parts = (checks, whitening, levels, sight_lines, iteration)
    main({f.__name__: f for f in parts})
