"""Sparse products by vector lanes, by plain compiled loops and by torch's matrices.

60,000 rays and 518,400 points, 1 to 16 right sides, one and two threads. Writes
lanes.md to the folder ``--output``: milliseconds per product, and of the rest of an
iteration of conjugate gradients (Nyström of rank 100, two FFTs).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from projection import rays_in, seconds, torch_products
from report import machine, table
from torch import Tensor

from dustmap.linalg.compiled_tasks import compiled, in_parallel
from dustmap.linalg.sparse import SparseMatrix
from dustmap.projection import projection

SHAPE = (120, 120, 36)
STARS = 60_000
COLUMNS = (1, 2, 8, 16)
RANK = 100


@compiled
def plain_gram(pointers, columns, values, x, weights, total):
    """``total += Aᵀ diag(w) A x``; a loop over the columns of every entry."""
    sums = np.empty(x.shape[1], x.dtype)
    for r in range(len(weights)):
        sums[:] = 0
        for e in range(pointers[r], pointers[r + 1]):
            for k in range(x.shape[1]):
                sums[k] += values[e] * x[columns[e], k]
        for k in range(x.shape[1]):
            sums[k] *= weights[r]
        for e in range(pointers[r], pointers[r + 1]):
            for k in range(x.shape[1]):
                total[columns[e], k] += values[e] * sums[k]


def by_plain_loops(W: SparseMatrix, x: Tensor, weights: Tensor) -> np.ndarray:
    """The fused product, each thread in a vector of its own."""
    matrix, source = W.to_scipy(), np.ascontiguousarray(x.mT.numpy())
    threads = torch.get_num_threads()
    cuts = np.linspace(0, W.shape[0], threads + 1).astype(int)
    pointers = matrix.indptr.astype(np.uint64)
    columns, w = matrix.indices.view(np.uint32), weights.numpy()
    totals = np.zeros((threads, W.shape[1], len(x)), np.float32)

    def task(part: int) -> None:
        a, b = cuts[part], cuts[part + 1]
        rows = (pointers[a : b + 1], columns, matrix.data)
        plain_gram(*rows, source, w[a:b], totals[part])

    in_parallel(task, threads)
    return totals.sum(axis=0).T.copy()


def row_of(W: SparseMatrix, columns: int, repeats: int) -> dict:
    """Times of all forms [ms]."""
    x, weights = torch.randn(columns, W.shape[1]), torch.rand(W.shape[0])
    basis = torch.randn(RANK, W.shape[1])
    of_torch = torch_products(W)["gram"]

    def rest() -> None:
        x + (x @ basis.mT) @ basis
        for one in x.reshape(-1, *SHAPE):
            torch.fft.irfftn(torch.fft.rfftn(one), s=SHAPE)

    forms = {
        "lanes": lambda: W.gram(x, weights),
        "plain loop": lambda: by_plain_loops(W, x, weights),
        "torch": lambda: of_torch(x, weights),
        "rest of an iteration": rest,
    }
    times = {f"{k} [ms]": 1e3 * seconds(f, repeats) for k, f in forms.items()}
    return {"threads": torch.get_num_threads(), "columns": columns, **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--shrink", type=int, default=1, help="take 1 in so many stars")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torus, rays, _ = rays_in(SHAPE, STARS // options.shrink)
    W = projection(torus, rays, dtype=torch.float32)
    assert isinstance(W, SparseMatrix)
    rows = []
    for threads in sorted({1, min(2, os.cpu_count() or 1)}):
        torch.set_num_threads(threads)
        rows += [row_of(W, columns, options.repeats) for columns in COLUMNS]
    text = f"{machine()}, {W.nonzeros} entries\n\n{table(rows)}"
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "lanes.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
