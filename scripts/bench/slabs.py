"""Grids in slabs: what each rank holds, and what it sends in every iteration.

A log-normal density on a torus is solved for by conjugate gradients, a fixed number of
iterations at the prior's mean, by processes with one thread each that hand each other
their parts through gloo. Memory is the peak of a rank's resident set above what it was
when it had imported everything and joined its group. A whole grid in one process, as
fits have it by default, stands beside it. Bytes are those that a rank hands over, of
which it keeps one share; the formula knows the shapes alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from report import Report, parser

from dustmap.distributed.group import Group
from dustmap.distributed.slab_fft import SlabFFT
from dustmap.distributed.slabs import Slabs
from dustmap.functionals import FixedStep, LineIntegrals
from dustmap.grid import Grid, Torus
from dustmap.inference.full_batch.gauss_newton import Precision
from dustmap.inference.full_batch.noise_covariance import Independent
from dustmap.kernels import Matern32
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.models.slab import SlabLogNormal
from dustmap.whitening import SlabTorusWhitening, TorusWhitening

# Points of the box over those of the torus, per axis.
_BOX = 0.9
_MIB = 2**20
_TIMEOUT = 3600.0
# glibc keeps freed blocks of up to 32 MiB for later use, which adds up to a multiple of
# what is held; the vectors of a grid that needs slabs are larger than these.
_LARGE_BLOCK = str(2**20)


def main() -> None:
    options = arguments()
    os.environ["MALLOC_MMAP_THRESHOLD_"] = _LARGE_BLOCK
    report = Report.of("slabs", __doc__, options)
    rows = [{"grid": "whole", **worst(measured(1, options, whole=True))}]
    for size in options.ranks:
        rows.append({"grid": "slabs", **worst(measured(size, options, whole=False))})
    base = next(row for row in rows if row["grid"] == "slabs")
    for row in rows:
        row["of one rank's"] = row["peak [MiB]"] / base["peak [MiB]"]
    report.tables = {"The rank that holds most": rows}
    points = options.shape[0] * options.shape[1] * options.shape[2]
    report.notes = [
        f"{points:,} points, {options.stars:,} stars, {options.iterations} iterations, "
        f"{options.dtype}",
        "one grid vector has "
        f"{points * dtype_of(options).itemsize / _MIB:.4g} MiB; held are that many "
        "over the number of ranks, and beside them some ten numbers a star and rank",
        "W is uneven: sight lines crowd around the observer, in the middle planes",
        "processes share this machine's cores: seconds say nothing of a cluster's",
        "freed blocks above 1 MiB go back to the system (MALLOC_MMAP_THRESHOLD_): kept "
        "ones would count among the smaller vectors of several ranks alone",
    ]
    report.write(options.output, lambda figure: draw(figure, rows[1:]))


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """The peak of the rank that holds most, beside an even share of one rank's."""
    axes = figure.add_subplot(xlabel="ranks", ylabel="peak of a rank [MiB]")
    ranks = [row["ranks"] for row in rows]
    axes.loglog(ranks, [row["peak [MiB]"] for row in rows], "o-", label="measured")
    share = [rows[0]["peak [MiB]"] * ranks[0] / rank for rank in ranks]
    axes.loglog(ranks, share, "--", label="of one rank, over their number")
    axes.minorticks_off()
    axes.set_xticks(ranks, [str(rank) for rank in ranks])
    axes.legend()


def dtype_of(options: argparse.Namespace) -> torch.dtype:
    return getattr(torch, options.dtype)


def measured(
    size: int, options: argparse.Namespace, *, whole: bool
) -> list[dict[str, Any]]:
    """What every rank says of itself."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=run, args=(rank, size, folder, options, whole))
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit(f"a rank of {size} failed, see its message")
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(size)]


def run(
    rank: int, size: int, folder: str, options: argparse.Namespace, whole: bool
) -> None:
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=_TIMEOUT),
        )
    group = Group(connected=size > 1, timeout=_TIMEOUT)
    torch.save(solved(group, options, whole=whole), f"{folder}/{rank}.pt")
    if size > 1:
        dist.destroy_process_group()


def solved(group: Group, options: argparse.Namespace, *, whole: bool) -> dict[str, Any]:
    """Model and solve on one rank; compiled loops and the library are there before."""
    model_of(group, options, (12, 10, 8), 10, whole=whole)
    base = start_peak()
    started = time.perf_counter()
    model = model_of(group, options, options.shape, options.stars, whole=whole)
    built, built_peak = time.perf_counter() - started, status("VmHWM") - base
    tangent = model.linearise(
        torch.zeros(model.latent_size, dtype=model.dtype, device=model.device)
    )
    noise = torch.full_like(tangent.prediction, 1e-4)
    precision = Precision(tangent.operator, Independent(noise))
    rhs = tangent.operator.rmatvec(torch.ones_like(noise) / noise)[None]
    before = dict(group.traffic.bytes), dict(group.traffic.seconds)
    started = time.perf_counter()
    # Restarts would ask for further products.
    solver = ConjugateGradients(rtol=1e-30, max_steps=options.iterations, restarts=0)
    found = solver.solve(precision.matvec, rhs, space=precision.domain)
    seconds = time.perf_counter() - started
    sent = difference(group.traffic.bytes, before[0])
    waited = difference(group.traffic.seconds, before[1])
    # One product more: that of the true residual.
    products = int(found.iterations[0]) + 1
    expected = 0 if whole else formula(group, options, model.dtype)
    return {
        "ranks": group.size,
        "peak [MiB]": (status("VmHWM") - base) / _MIB,
        "peak while building [MiB]": built_peak / _MIB,
        "W [MiB]": model.weights.bytes / _MIB,
        "building [s]": built,
        "an iteration [s]": seconds / products,
        "of it exchanging [s]": sum(waited.values()) / products,
        "bytes an iteration": sum(sent.values()) / products,
        "by formula": expected,
    }


def formula(group: Group, options: argparse.Namespace, dtype: torch.dtype) -> int:
    """Two transforms there and back, a vector over stars, three inner products."""
    if group.size == 1:
        return 0
    slabs = Slabs.even(options.shape, group)
    fft = SlabFFT(slabs)
    planes = slabs.counts[group.rank] * fft.cuts[-1]
    columns = options.shape[0] * (fft.columns.stop - fft.columns.start)
    complex_size = 2 * dtype.itemsize
    stars = options.stars * dtype.itemsize
    return 2 * (planes + columns) * complex_size + stars + 3 * 8


def model_of(
    group: Group,
    options: argparse.Namespace,
    shape: tuple[int, int, int],
    stars: int,
    *,
    whole: bool,
) -> LogNormal:
    box = tuple(int(_BOX * n) for n in shape)
    spacing = (10.0, 10.0, 10.0)
    half = torch.tensor([(n - 1) * 5.0 for n in box], dtype=torch.float64)
    grid = Grid(shape=box, spacing=spacing, origin=tuple((-half).tolist()))
    torus = Torus(grid=grid, shape=tuple(shape))
    generator = torch.Generator().manual_seed(options.seed)
    unit = torch.rand(stars, 3, generator=generator, dtype=torch.float64) * 2 - 1
    rays = LineIntegrals(0.999 * unit * half, FixedStep(step=10.0))
    kernel = Matern32(lengthscale=25.0, variance=1.0)
    dtype = dtype_of(options)
    mean = ConstantMean(value=1e-3)
    if whole:
        return LogNormal(TorusWhitening(kernel, torus, dtype=dtype), rays, mean=mean)
    whitening = SlabTorusWhitening(kernel, torus, group=group, dtype=dtype)
    return SlabLogNormal(whitening, rays, mean=mean)


def start_peak() -> int:
    """The resident set now, from which on its peak is counted anew [bytes]."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return status("VmRSS")


def status(name: str) -> int:
    """A line of the process' status [bytes]."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def difference(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {kind: value - before.get(kind, 0) for kind, value in after.items()}


def worst(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest of every number; sent bytes and formula are those of one rank."""
    most = max(ranks, key=lambda found: found["bytes an iteration"])
    sent = ("bytes an iteration", "by formula")
    return {
        key: most[key] if key in sent else max(found[key] for found in ranks)
        for key in ranks[0]
    }


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--shape", type=int, nargs=3, default=(208, 200, 200))
    options.add_argument("--stars", type=int, default=10_000)
    options.add_argument("--iterations", type=int, default=4)
    options.add_argument("--ranks", type=int, nargs="+", default=(1, 2, 4))
    options.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    found = options.parse_args()
    if found.quick:
        found.shape, found.stars, found.iterations = (32, 24, 20), 300, 2
    found.shape = tuple(found.shape)
    return found


if __name__ == "__main__":
    main()
