"""One problem by 1, 2 and 4 ranks of one thread each: compute and communication.

A fixed number of conjugate-gradient iterations for the mean of a Gaussian field on
simulated stars, float32, W shared out by rows. Communication is the time within
collectives, waiting for the slowest rank included; compute is the rest of an
iteration. The model of larger machines is one of their cost, not measured: an
iteration's all-reduce of a grid vector by a ring, beside its products, by stated
speeds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from cost import DENSITY, LENGTHSCALE, NOISE, STD, catalogue, shape_of
from matplotlib.figure import Figure
from report import Report, Row, parser
from simulated import HALF

from dustmap.distributed.group import Group
from dustmap.functionals import FixedStep, LineIntegrals
from dustmap.grid import Grid
from dustmap.inference.full_batch import Precision
from dustmap.inference.full_batch.noise_covariance import Independent
from dustmap.kernels import Matern32
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening, padded_torus

# Stated, not measured: bytes per second of one GPU's memory, and of the slowest link
# of a ring within a node (up to 8 GPUs) and between nodes; seconds of a step of it.
MEMORY, WITHIN, BETWEEN, LATENCY = 2e12, 200e9, 25e9, 10e-6
# Passes over a vector of the torus by two transforms, and bytes per entry of W and
# product (value, column, and the vector's own, half of it from caches).
PASSES, ENTRY = 24, 12.0


def one_rank(options: argparse.Namespace) -> Row:
    """This rank's times, bytes and peak memory."""
    torch.set_num_threads(1)
    ends, extinction = catalogue(options.stars, options.seed)
    shape = shape_of(options.points)
    spacing = tuple(2 * h / (n - 1) for h, n in zip(HALF, shape, strict=True))
    grid = Grid(shape=shape, spacing=spacing, origin=tuple(-h for h in HALF))
    kernel = Matern32(lengthscale=LENGTHSCALE, variance=STD**2)
    torus = padded_torus(grid, kernel, 1e-2)
    group = Group(connected=dist.is_initialized())
    model = TorusGaussian(
        TorusWhitening(kernel, torus, dtype=torch.float32),
        LineIntegrals(ends, FixedStep(step=0.5 * min(spacing))),
        mean=ConstantMean(value=DENSITY),
        residual_refinement=1,
        generator=torch.Generator().manual_seed(options.seed),
        group=group,
    )
    noise = torch.full((options.stars,), NOISE**2)
    rhs = model.operator.rmatvec((extinction.to(noise) - model.offset) / noise)
    product = Precision(model.operator, Independent(noise)).matvec
    # The first products load compiled loops; they are not counted.
    product(rhs[None])
    group.meet()
    before = {k: dict(getattr(group.traffic, k)) for k in ("bytes", "seconds")}
    fixed = ConjugateGradients(rtol=1e-30, max_steps=options.iterations, restarts=0)
    start, used = time.perf_counter(), time.process_time()
    solution = fixed.solve(product, rhs[None])
    wall, used = time.perf_counter() - start, time.process_time() - used
    kinds = group.traffic.seconds
    sent = sum(n - before["bytes"].get(k, 0) for k, n in group.traffic.bytes.items())
    waited = sum(s - before["seconds"].get(k, 0.0) for k, s in kinds.items())
    # The residual at the end takes a product, too.
    products = options.iterations + 1
    return {
        "rank": group.rank,
        "M of the torus": torus.size,
        "entries of W": model.weights.nonzeros,
        "own W [MiB]": model.weights.bytes / 2**20,
        "wall": wall / products,
        "cpu": used / products,
        "waited": waited / products,
        "sent": sent / products,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "residual": float(solution.residual[0]),
    }


def by_ranks(options: argparse.Namespace, size: int) -> Row:
    """One row: the mean over ranks."""
    folder = options.output / "work" / f"{size}"
    folder.mkdir(parents=True, exist_ok=True)
    rendezvous = folder / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *sys.argv, "--of", str(size), "--rank"]
    processes = [
        subprocess.Popen([*command, str(rank)], env=environment) for rank in range(size)
    ]
    failed = [process.wait(options.limit) for process in processes]
    if any(failed):
        raise RuntimeError(f"ranks ended with {failed}")
    found = [json.loads((folder / f"{k}.json").read_text()) for k in range(size)]

    def mean(name: str) -> float:
        return sum(one[name] for one in found) / size

    return {
        "ranks": size,
        "M of the torus": found[0]["M of the torus"],
        "entries of W": found[0]["entries of W"],
        "own W, largest [MiB]": max(one["own W [MiB]"] for one in found),
        "iteration [s]": mean("wall"),
        "compute [s]": mean("wall") - mean("waited"),
        "processor [s]": mean("cpu"),
        "communication [s]": mean("waited"),
        "sent per iteration [bytes]": mean("sent"),
        "peak memory, largest [MiB]": max(one["peak"] for one in found) / 2**20,
        "residual": found[0]["residual"],
    }


def with_efficiency(rows: list[Row]) -> list[Row]:
    """Speed-up over one rank, and what share of the ranks' number it is."""
    alone = rows[0]["iteration [s]"]
    found = []
    for row in rows:
        gain = alone / row["iteration [s]"]
        found.append({**row, "speed-up": gain, "efficiency": gain / row["ranks"]})
    return found


def model_rows(points: float, entries: float) -> list[Row]:
    """What an iteration would take on GPUs, by bytes and stated speeds."""
    rows = []
    for ranks in (1, 8, 16, 32, 64):
        link = WITHIN if ranks <= 8 else BETWEEN
        vector = 4 * points
        transforms = PASSES * vector / MEMORY
        products = 2 * entries / ranks * ENTRY / MEMORY
        ring = 2 * (ranks - 1) * (vector / ranks / link + LATENCY)
        total = transforms + products + ring
        alone = transforms + 2 * entries * ENTRY / MEMORY
        rows.append(
            {
                "GPUs": ranks,
                "W per GPU [GiB]": 2 * 8 * entries / ranks / 2**30,
                "transforms [s]": transforms,
                "products with W [s]": products,
                "all-reduce [s]": ring,
                "iteration [s]": total,
                "efficiency": alone / total / ranks,
                "measured": "no: a model",
            }
        )
    return rows


def main() -> None:
    options = arguments()
    if options.rank is not None:
        _as_rank(options)
        return
    report = Report.of("ranks", __doc__, options)
    rows = with_efficiency([by_ranks(options, size) for size in options.ranks])
    per_star = rows[0]["entries of W"] / options.stars
    scale = (1e8 / options.points) ** (1 / 3)
    report.tables = {
        "Measured": rows,
        "Model: 1e8 stars, 1e8 points of the torus": model_rows(
            1e8, 1e8 * per_star * scale
        ),
    }
    cores = os.cpu_count() or 1
    report.notes = [
        f"This machine has {cores} cores: more ranks than that share them, and times "
        "with other programs beside them are those programs', too. `processor` is what "
        "a rank's thread worked, sending and receiving included.",
        "The vector that all ranks add up is as large as the torus whatever their "
        "number: 4 bytes a point and iteration in float32, beside nothing over stars.",
        "Residuals so early say nothing of the ranks: they hang on rounding, with one "
        "process in float64 on the number of its threads.",
        f"The model states {MEMORY:.2g} B/s of GPU memory, links of {WITHIN:.2g} B/s "
        f"up to 8 GPUs and {BETWEEN:.2g} B/s beyond, {LATENCY:.0e} s a step. "
        "Transforms are replicated: they and the all-reduce bound the gain. GPUs: "
        "not measured.",
    ]
    report.write(options.output, lambda figure: draw(figure, rows))


def _as_rank(options: argparse.Namespace) -> None:
    folder = options.output / "work" / f"{options.of}"
    if options.of > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{(folder / 'rendezvous').resolve()}",
            rank=options.rank,
            world_size=options.of,
        )
    found = one_rank(options)
    (folder / f"{options.rank}.json").write_text(json.dumps(found))
    if options.of > 1:
        dist.destroy_process_group()


def draw(figure: Figure, rows: list[Row]) -> None:
    """Seconds of an iteration by part, against ranks."""
    axes = figure.subplots()
    places = range(len(rows))
    compute = [row["compute [s]"] for row in rows]
    axes.bar(places, compute, 0.6, label="compute")
    sent = [row["communication [s]"] for row in rows]
    axes.bar(places, sent, 0.6, bottom=compute, label="communication and waiting")
    axes.set_xticks(list(places), [str(row["ranks"]) for row in rows])
    axes.set(xlabel="ranks of one thread", ylabel="wall time of an iteration [s]")
    axes.legend(frameon=False)


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--stars", type=int, default=100_000)
    options.add_argument("--points", type=int, default=62_500, help="of the grid")
    options.add_argument("--iterations", type=int, default=50)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options.add_argument(
        "--limit", type=float, default=1800.0, help="of the ranks' time [s]"
    )
    options.add_argument("--rank", type=int, help="of this process: for itself only")
    options.add_argument("--of", type=int, default=1, help="ranks: for itself only")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.stars, chosen.points, chosen.iterations = 300, 2_000, 3
        chosen.ranks = [1, 2]
    return chosen


if __name__ == "__main__":
    main()
