"""One square root of a prior: ``prior_roots_worker.py METHOD PROBLEM RESULT``.

Of GraphGP numpy and jax alone, since it runs under another interpreter.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# Products are repeated until they took so long [s].
_LEAST = 2.0
# Points that GraphGP treats exactly, and what it adds to the variance.
_EXACT, _JITTER = 1000, 1e-4

Product = Callable[[np.ndarray], np.ndarray]


def main() -> None:
    """Make the root, time its products, and compare rows of A Aᵀ."""
    method, problem, result = sys.argv[1:]
    with np.load(problem) as stored:
        arrays = {name: stored[name] for name in stored.files}
    name, *options = method.split()
    started = time.perf_counter()
    make = {"levels": levels, "graphgp": graphgp}[name]
    size, forward, transpose = make(arrays, *map(int, options))
    made = time.perf_counter() - started
    generator = np.random.default_rng(1)
    white = generator.standard_normal(size, dtype=np.float32)
    field = generator.standard_normal(len(arrays["points"]), dtype=np.float32)
    row: dict[str, Any] = {
        "made in [s]": made,
        "A ε [s]": _seconds(lambda: forward(white)),
        "Aᵀ g [s]": _seconds(lambda: transpose(field)),
    }
    row |= _errors(arrays, forward, transpose)
    # Kilobytes, but bytes on macOS.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    row["peak [GiB]"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    Path(result).write_text(json.dumps(row), encoding="utf-8")


def _seconds(action: Callable[[], object]) -> float:
    """The shortest of several runs, the first of which compiles."""
    action()
    taken: list[float] = []
    while not taken or sum(taken) < _LEAST:
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _errors(
    arrays: dict[str, np.ndarray], forward: Product, transpose: Product
) -> dict[str, float]:
    """Of the covariance with other points up to two lengthscales away."""
    points, scale = arrays["points"].astype(np.float64), float(arrays["lengthscale"])
    worst, squares, variances = 0.0, [], []
    for row in arrays["rows"]:
        unit = np.zeros(len(points), dtype=np.float32)
        unit[row] = 1.0
        apart = np.linalg.norm(points - points[row], axis=1) / scale
        near = apart < 2
        gap = np.abs(forward(transpose(unit))[near] - np.exp(-apart[near]))
        own = apart[near] == 0
        variances.append(float(gap[own][0]))
        worst = max(worst, float(gap[~own].max()))
        squares.append(float((gap[~own] ** 2).mean()))
    return {
        "largest error": worst,
        "rms error": float(np.sqrt(np.mean(squares))),
        "variance's": max(variances),
    }


def levels(arrays: dict[str, np.ndarray]) -> tuple[int, Product, Product]:
    """A and Aᵀ of ε on six tori, seen at the points."""
    import torch
    from gpu_parts import nested_cubes
    from prior_roots import seen_points

    from dustmap.kernels import Matern12
    from dustmap.whitening import LevelWhitening, nested_tori

    torch.set_num_threads(1)
    grids = nested_cubes(int(arrays["tori"]))
    kernel = Matern12(lengthscale=float(arrays["lengthscale"]))
    tori = nested_tori(grids, kernel, 0.05)
    A = LevelWhitening(kernel, tori, dtype=torch.float32)
    numbers = tori.split(torch.arange(tori.size))
    inside = [
        part.reshape(torus.shape)[tuple(slice(0, n) for n in torus.grid.shape)]
        for part, torus in zip(numbers, tori.tori, strict=True)
    ]
    every = torch.cat([part.flatten() for part in inside])
    chosen = every[torch.from_numpy(seen_points(grids)[1])]

    def forward(white: np.ndarray) -> np.ndarray:
        return A.colour(torch.from_numpy(white))[chosen].numpy()

    def transpose(field: np.ndarray) -> np.ndarray:
        spread = torch.zeros(A.tori.size)
        spread[chosen] = torch.from_numpy(field)
        return A.colour_transpose(spread).numpy()

    return A.size, forward, transpose


def graphgp(arrays: dict[str, np.ndarray], k: int) -> tuple[int, Product, Product]:
    """The same by conditional refinement, compiled by jax."""
    import graphgp as gp
    import jax
    import jax.numpy as jnp

    scale = float(arrays["lengthscale"])
    points = jnp.asarray(arrays["points"])
    separations = np.concatenate([[0.0], np.geomspace(1e-4, 1e2, 2000)]) * scale
    values = np.exp(-separations / scale)
    values[0] += _JITTER
    covariance = (jnp.asarray(separations), jnp.asarray(values))
    graph = gp.build_graph(points, n0=_EXACT, k=k)
    jax.block_until_ready(graph.points)
    product = jax.jit(lambda xi: gp.generate(graph, covariance, xi))
    zero = jnp.zeros(len(points))
    back = jax.jit(lambda g: jax.vjp(product, zero)[1](g)[0])

    def forward(white: np.ndarray) -> np.ndarray:
        return np.asarray(product(jnp.asarray(white)))

    def transpose(field: np.ndarray) -> np.ndarray:
        return np.asarray(back(jnp.asarray(field)))

    return len(points), forward, transpose


if __name__ == "__main__":
    main()
