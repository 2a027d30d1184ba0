"""Λ by several processes that share out the stars: ``gpu_ranks.py ranks DEVICE SECONDS
FOLDER`` starts ``torch.distributed.run`` on itself, one process for each device."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from gpu_parts import Part, main, torus_of
from gpu_table import Row, Table, seconds

from dustmap.distributed.group import Group
from dustmap.functionals import FixedStep, LineIntegrals
from dustmap.inference.full_batch.gauss_newton import Precision
from dustmap.kernels import Matern12
from dustmap.models.gaussian import TorusGaussian
from dustmap.noise import Normal
from dustmap.whitening import TorusWhitening

POINTS, STARS = 10**6, 10**6


def ranks(part: Part) -> bool:
    """1, 2, 4, 8 processes, as many as there are devices (two on a CPU)."""
    devices = torch.cuda.device_count() if part.device.type == "cuda" else 2
    good = True
    for count in (n for n in (1, 2, 4, 8) if n <= devices):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(count), __file__, "one", part.device.type]
        command += [f"{part.left:.0f}", str(part.table.data.parent)]
        try:
            good &= subprocess.run(command, timeout=max(5.0, part.left)).returncode == 0
        except subprocess.TimeoutExpired:
            part.table.add("ranks", {"what": f"{count} ranks", "note": "no time"})
            return False
    return good


def one_rank() -> None:
    """The same product on every rank; the first writes the row."""
    _, kind, _, folder = sys.argv[1:]
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=120))
    group = Group(connected=True)
    row = _product(group, device)
    if group.first:
        Table(Path(folder)).add("ranks", row)
    dist.destroy_process_group()


def _product(group: Group, device: torch.device) -> Row:
    small = 1 if device.type == "cuda" else 100
    torus, kernel = torus_of(POINTS // small), Matern12(lengthscale=4.0)
    unit = torch.rand(
        STARS // small,
        3,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    size = torch.tensor([n - 1.0 for n in torus.grid.shape], dtype=torch.float64)
    model = TorusGaussian(
        TorusWhitening(kernel, torus, dtype=torch.float32, device=device),
        LineIntegrals(0.999 * (unit - 0.5) * size, FixedStep(step=0.5)),
        residual_refinement=1,
        generator=torch.Generator().manual_seed(2),
        group=group,
    )
    noise = torch.full((len(unit),), 1e-3, device=device)
    precision = Precision(model.operator, Normal(stated=noise))
    x = torch.ones(1, model.latent_size, device=device)
    # As many times on every rank: a collective waits for all.
    times = sorted(
        seconds(lambda: precision.matvec(x), device, least=0.0) for _ in range(5)
    )
    return {
        "what": f"{group.size} ranks, {dist.get_backend()}",
        "points": torus.size,
        "stars": len(unit),
        "product of Λ [ms]": 1e3 * times[2],
        "bytes sent per product": 4 * torus.size if group.size > 1 else 0,
    }


if __name__ == "__main__":
    if sys.argv[1] == "one":
        one_rank()
    else:
        main({"ranks": ranks})
