#!/usr/bin/env python3
"""The prior's square root on the points of six nested grids: levels beside GraphGP.

GraphGP gives each point its nearest preceding points (a Vecchia prior; k of them, after
1,000 that are exact); levels are transforms on six tori. Both have one thread, float32
and a Matérn-1/2 covariance with a lengthscale of four of the coarsest cells. Products
are timed after compilation. Rows of A Aᵀ at twenty points, as many from each distance
to its double, are compared with the covariance up to two lengthscales away; errors are
relative to the variance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from gpu_parts import nested_cubes
from peers_run import Machine
from report import Report, parser

from dustmap.grid import Grid
from pipelines.base.errors import InputError
from pipelines.base.table import Row

_HERE = Path(__file__).resolve().parent
_SIZES, _QUICK = (10**6, 10**7), (10**5,)
_NEIGHBOURS = (5, 10, 20)
# Of the lengthscale, in the coarsest cells.
LENGTHSCALE = 4.0
_ROWS = 20


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--peers-python", default=sys.executable, metavar="PYTHON")
    options.add_argument("--limit", type=float, default=20.0, help="of one [minutes]")
    chosen = options.parse_args()
    report = Report.of("prior_roots", __doc__, chosen)
    machine = Machine(
        threads=1, limit=60 * chosen.limit, peers_python=chosen.peers_python
    )
    machine.pin()
    generator, rows = np.random.default_rng(chosen.seed), []
    for size in _QUICK if chosen.quick else _SIZES:
        folder = chosen.output / "work" / str(size)
        folder.mkdir(exist_ok=True)
        count = _problem(size, folder, generator)
        rows.append(_measured(machine, folder, "levels", sys.executable, count))
        for k in _NEIGHBOURS:
            name = f"graphgp {k}"
            rows.append(_measured(machine, folder, name, chosen.peers_python, count))
    report.tables = {"Square roots": rows}
    report.write(chosen.output)


def seen_points(grids: tuple[Grid, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Points of each grid outside the next finer one, and which of all they are."""
    places, kept = [], []
    for grid, finer in zip(grids, (*grids[1:], None), strict=True):
        points = grid.points()
        outside = torch.ones(len(points), dtype=torch.bool)
        if finer is not None:
            outside = ~finer.contains(points)
        places.append(points[outside].numpy())
        kept.append(outside.numpy())
    return np.concatenate(places), np.concatenate(kept)


def _problem(size: int, folder: Path, generator: np.random.Generator) -> int:
    """Write ``problem.npz``: points, lengthscale, rows; the number of points."""
    # Seven eighths of all grids but the finest are seen; a torus has 13 points more.
    along = (size / (1 + 5 * 7 / 8)) ** (1 / 3)
    tori = round(6 * (along + 13) ** 3)
    grids = nested_cubes(tori)
    points, _ = seen_points(grids)
    distance = np.linalg.norm(points, axis=1)
    far = grids[0].upper[0] / 2 ** generator.uniform(0, 5, _ROWS)
    nearest = [int(np.abs(distance - d).argmin()) for d in far]
    np.savez(
        folder / "problem.npz",
        points=points.astype(np.float32),
        lengthscale=LENGTHSCALE * max(grids[0].spacing),
        rows=nearest,
        tori=tori,
    )
    return len(points)


def _measured(
    machine: Machine, folder: Path, method: str, python: str, count: int
) -> Row:
    """The row of a method, or why there is none."""
    row: Row = {"method": method, "points": count}
    output = folder / f"{method.replace(' ', '_')}.json"
    output.unlink(missing_ok=True)
    worker = str(_HERE / "prior_roots_worker.py")
    command = [python, worker, method, str(folder / "problem.npz"), str(output)]
    try:
        machine.run(command, output.with_suffix(".log"))
    except InputError as error:
        return {**row, "note": str(error)[:200].replace("|", "/")}
    found = json.loads(output.read_text(encoding="utf-8"))
    print(method, found, file=sys.stderr, flush=True)
    return {**row, **found}


if __name__ == "__main__":
    main()
