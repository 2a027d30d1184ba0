"""How long W takes to build and to apply, against torch's sparse matrices.

Writes projection.json and projection.md to the folder ``--output``. Every ratio is of
times from one run; the machine and its load stand above the table.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from report import machine, table
from torch import Tensor

from dustmap.functionals import FixedStep, GaussLegendre, LineIntegrals
from dustmap.grid import Grid, Torus
from dustmap.linalg.sparse import SparseMatrix
from dustmap.projection import Interpolation, projection

# Name: stars, grid points per axis, interpolation.
CASES: dict[str, tuple[int, tuple[int, int, int], Interpolation]] = {
    "build": (100_000, (100, 100, 50), "linear"),
    "build, cubic": (100_000, (100, 100, 50), "cubic"),
    "catalogue": (500_000, (50, 50, 25), "linear"),
    "fine grid": (60_000, (272, 272, 136), "linear"),
}
NODES = 200
COLUMNS = (1, 8, 16)


def rays_in(
    shape: tuple[int, ...], stars: int
) -> tuple[Torus, LineIntegrals, LineIntegrals]:
    """Stars evenly in a box around the observer, seen by two rules of 200 nodes."""
    half = torch.tensor([(n - 1) * 5.0 for n in shape], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    unit = torch.rand(stars, 3, generator=generator, dtype=torch.float64) * 2 - 1
    end = unit * half * 0.999
    grid = Grid(shape=shape, spacing=(10.0,) * 3, origin=tuple((-half).tolist()))
    step = float(torch.linalg.vector_norm(end, dim=1).mean()) / NODES
    return (
        Torus(grid=grid, shape=shape),
        LineIntegrals(end, FixedStep(step=step)),
        LineIntegrals(end, GaussLegendre(count=NODES)),
    )


def seconds(action: Callable[[], object], repeats: int) -> float:
    """The shortest of some runs after a first one that is not counted."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def build_times(name: str, shrink: int) -> dict:
    """Both rules, each for all of its weights."""
    stars, shape, interpolation = CASES[name]
    torus, fixed, gauss = rays_in(shape, stars // shrink)
    found: dict = {"case": name, "stars": len(fixed), "grid": shape}
    for rule, rays in (("fixed step", fixed), ("any rule", gauss)):
        start = time.perf_counter()
        W = projection(torus, rays, interpolation=interpolation, dtype=torch.float32)
        found[f"{rule} [s]"] = time.perf_counter() - start
        found["entries"], found["bytes"] = W.nonzeros, W.bytes
    return found


def torch_products(W: SparseMatrix) -> dict[str, Callable]:
    """Products by torch's compressed rows of W and of its transpose."""
    matrix = W.to_scipy()
    pair = []
    for m in (matrix, matrix.T.tocsr()):
        with warnings.catch_warnings():
            # torch announces the beta state of its CSR layout once per process.
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
            pair.append(
                torch.sparse_csr_tensor(
                    torch.from_numpy(m.indptr.astype("int32")),
                    torch.from_numpy(m.indices.astype("int32")),
                    torch.from_numpy(m.data),
                    size=m.shape,
                    check_invariants=False,
                )
            )

    def product(matrix: Tensor, x: Tensor) -> Tensor:
        return (matrix @ x.mT).mT.contiguous()

    return {
        "matvec": lambda x: product(pair[0], x),
        "rmatvec": lambda y: product(pair[1], y),
        "gram": lambda x, w: product(pair[1], w * product(pair[0], x)),
    }


def product_times(name: str, shrink: int, repeats: int) -> list[dict]:
    """Products of the three forms for every number of columns."""
    stars, shape, interpolation = CASES[name]
    torus, rays, _ = rays_in(shape, stars // shrink)
    make = functools.partial(projection, torus, rays, interpolation=interpolation)
    W, fresh = make(dtype=torch.float32), make(dtype=torch.float32, memory_budget=0.0)
    assert isinstance(W, SparseMatrix)
    weights = torch.rand(W.shape[0])
    reference = torch_products(W)
    rows = []
    for columns in COLUMNS:
        x, y = torch.randn(columns, W.shape[1]), torch.randn(columns, W.shape[0])
        arguments = {"matvec": (x,), "rmatvec": (y,), "gram": (x, weights)}
        for operation, use in arguments.items():
            actions = {
                "torch": lambda o=operation, u=use: reference[o](*u),
                "stored": lambda o=operation, u=use: getattr(W, o)(*u),
                "recomputed": lambda o=operation, u=use: getattr(fresh, o)(*u),
            }
            # The slow form is not repeated as often.
            row: dict = {"case": name, "columns": columns, "product": operation}
            for form, action in actions.items():
                times = 1 if form == "recomputed" else repeats
                row[f"{form} [ms]"] = 1e3 * seconds(action, times)
            row["torch / stored"] = row["torch [ms]"] / row["stored [ms]"]
            # torch holds the transpose too.
            row["torch [MiB]"] = 2 * W.bytes / 2**20
            row["stored [MiB]"] = W.bytes / 2**20
            row["recomputed [MiB]"] = fresh.bytes / 2**20
            rows.append(row)
    return rows


def compile_time() -> float:
    """Seconds until the smallest matrix is built and applied in this process.

    The loops are compiled on the first run on a machine and read from disk later.
    """
    start = time.perf_counter()
    torus, rays, gauss = rays_in((8, 8, 8), 10)
    for kind in (rays, gauss):
        W = projection(torus, kind, dtype=torch.float32)
        for columns in COLUMNS:
            W.gram(torch.ones(columns, W.shape[1]), torch.ones(10))
            W.rmatvec(W.matvec(torch.ones(columns, W.shape[1])))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--shrink", type=int, default=1, help="take 1 in so many stars")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    report: dict = {"before": machine(), "compile or load [s]": compile_time()}
    report["build"] = [
        build_times(name, options.shrink) for name in ("build", "build, cubic")
    ]
    report["products"] = [
        row
        for name in ("build", "build, cubic", "catalogue", "fine grid")
        for row in product_times(name, options.shrink, options.repeats)
    ]
    report["after"] = machine()
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "projection.json").write_text(json.dumps(report, indent=1))
    head = [f"- {when}: {report[when]}\n" for when in ("before", "after")]
    head.append(f"- compile or load: {report['compile or load [s]']:.2f} s\n\n")
    text = "".join(head) + table(report["build"]) + "\n" + table(report["products"])
    (options.output / "projection.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
