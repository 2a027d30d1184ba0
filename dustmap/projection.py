r"""W: functionals as sparse weights on a (refined) periodic grid.

Snapping the nodes of a functional onto the grid with interpolation weights gives
``L_n ρ ≈ Σ_i W_ni ρ(g_i)``, which is itself a valid linear functional: the field model
stays exact, and only the meaning of the observation shifts by the interpolation error.
"""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import scipy.sparse
import torch

from dustmap.functionals import Functionals, Nodes
from dustmap.grid import Torus
from dustmap.linalg.sparse import SparseMatrix

Interpolation = Literal["linear", "cubic"]

# Corner weights (16 bytes and a few copies) held at once: bounds the working memory.
_WEIGHTS_PER_CHUNK = 2**23


def projection(
    torus: Torus,
    functionals: Functionals,
    *,
    refinement: int = 1,
    interpolation: Interpolation = "linear",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> SparseMatrix:
    """The matrix W on the torus refined ``refinement`` times (C order).

    Derivative nodes use the derivative of the interpolant. Cost: ``2^D`` (linear) or
    ``4^D`` (cubic, Keys 1981) weights per node before equal columns are added up.

    Raises
    ------
    ValueError
        If a node lies outside the box of the torus' grid.
    """
    pieces = []
    count = len(functionals)
    rows = max(1, count)
    if count:
        sample = functionals.select(torch.arange(0, count, max(1, count // 256)))
        nodes_per_row = max(1.0, len(sample.nodes().rows) / len(sample))
        corners = _CORNERS[interpolation] ** len(torus.shape)
        rows = max(1, int(_WEIGHTS_PER_CHUNK / corners / nodes_per_row))
    for _, part in functionals.chunks(rows):
        pieces.append(_expand(torus, part.nodes(), refinement, interpolation))
    size = torus.size * refinement ** len(torus.shape)
    matrix = (
        scipy.sparse.vstack(pieces, format="csr")
        if pieces
        else scipy.sparse.csr_matrix((0, size))
    )
    return SparseMatrix(scipy.sparse.csr_matrix(matrix), dtype=dtype, device=device)


def _expand(
    torus: Torus, nodes: Nodes, refinement: int, interpolation: Interpolation
) -> scipy.sparse.csr_matrix:
    """Corner weights of one chunk of nodes, summed over equal columns."""
    _require_inside(torus, nodes)
    shape = tuple(n * refinement for n in torus.shape)
    points = nodes.points.numpy()
    axes = None if nodes.axes is None else nodes.axes.numpy()
    index, weight = [], []
    for d, n in enumerate(shape):
        step = torus.grid.spacing[d] / refinement
        place = (points[:, d] - torus.grid.origin[d]) / step
        base = np.floor(place)
        offsets, values, slopes = _WEIGHTS[interpolation](place - base)
        if axes is not None:
            values = np.where((axes == d)[:, None], slopes / step, values)
        index.append((base.astype(np.int64)[:, None] + offsets) % n)
        weight.append(values)
    corners = index[0].shape[1]
    choices = list(itertools.product(range(corners), repeat=len(shape)))
    columns = np.zeros((len(points), len(choices)), dtype=np.int64)
    values = np.empty((len(points), len(choices)))
    for c, choice in enumerate(choices):
        product = nodes.weights.numpy().copy()
        for d, corner in enumerate(choice):
            columns[:, c] = columns[:, c] * shape[d] + index[d][:, corner]
            product *= weight[d][:, corner]
        values[:, c] = product
    counts = np.bincount(nodes.rows.numpy(), minlength=nodes.count) * len(choices)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    matrix = scipy.sparse.csr_matrix(
        (values.reshape(-1), columns.reshape(-1), indptr),
        shape=(nodes.count, int(np.prod(shape))),
    )
    matrix.sum_duplicates()
    return matrix


def _linear(t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets, weights and slopes of linear interpolation at fraction ``t``."""
    t = t[:, None]
    one = np.ones_like(t)
    return (
        np.array([0, 1]),
        np.concatenate([1 - t, t], axis=1),
        np.concatenate([-one, one], axis=1),
    )


def _cubic(t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of cubic convolution with a = −1/2 (Keys 1981)."""
    t = t[:, None]
    values = [
        ((-0.5 * t + 1.0) * t - 0.5) * t,
        (1.5 * t - 2.5) * t * t + 1.0,
        ((-1.5 * t + 2.0) * t + 0.5) * t,
        (0.5 * t - 0.5) * t * t,
    ]
    slopes = [
        (-1.5 * t + 2.0) * t - 0.5,
        (4.5 * t - 5.0) * t,
        (-4.5 * t + 4.0) * t + 0.5,
        (1.5 * t - 1.0) * t,
    ]
    return (
        np.array([-1, 0, 1, 2]),
        np.concatenate(values, axis=1),
        np.concatenate(slopes, axis=1),
    )


_WEIGHTS = {"linear": _linear, "cubic": _cubic}
_CORNERS = {"linear": 2, "cubic": 4}


def _require_inside(torus: Torus, nodes: Nodes) -> None:
    outside = ~torus.grid.contains(nodes.points)
    if bool(outside.any()):
        rows = torch.unique(nodes.rows[outside])
        first = nodes.points[outside][0].tolist()
        raise ValueError(
            f"{len(rows)} functionals have nodes outside the box "
            f"{torus.grid.lower} to {torus.grid.upper}, the first at {first}: "
            "enlarge the box or leave these observations out"
        )
