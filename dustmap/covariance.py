r"""Inter-domain covariances of functionals, by their nodes.

``k_un = Σ_j w_nj ∂^{α_j} k(z − x_nj)`` (HIP-GP, eq. 7) and
``k_nm = Σ_j Σ_i w_nj w_mi ∂^{α_j}∂^{α_i} k(x_nj − x_mi)`` (eq. 8), both with the very
same nodes. Autograd runs through the kernel's hyperparameters. Functionals are on the
CPU; their nodes are carried to the device of the result.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals, Nodes
from dustmap.kernels import Kernel

# Kernel evaluations held at once: on the CPU their few temporaries stay in the cache,
# which is three times as fast as blocks of 2**22.
_BLOCK = 2**18


def _block(device: torch.device | str) -> int:
    """More where a launch costs more than the cache saves."""
    return _BLOCK if torch.device(device).type == "cpu" else 16 * _BLOCK


def inducing_covariance(
    kernel: Kernel, functionals: Functionals, points: Float[Tensor, "m d"]
) -> Float[Tensor, "n m"]:
    """``Cov(L_n ρ, ρ(z_m))``, the rows ``k_un``, on the device of the points.

    Cost: one kernel value for each node and point.
    """
    nodes = functionals.nodes().to(points.device)
    rows = max(1, _block(points.device) // max(len(points), 1))
    total = points.new_zeros(nodes.count, len(points))
    for piece in _pieces(nodes, rows):
        values = _node_covariance(kernel, piece, points)
        total = total.index_add(0, piece.rows, piece.weights[:, None] * values)
    return total


def _pieces(nodes: Nodes, rows: int) -> list[Nodes]:
    parts = [slice(start, start + rows) for start in range(0, len(nodes.rows), rows)]
    return [
        Nodes(
            points=nodes.points[part],
            weights=nodes.weights[part],
            rows=nodes.rows[part],
            axes=None if nodes.axes is None else nodes.axes[part],
            count=nodes.count,
        )
        for part in parts
    ]


def _node_covariance(kernel: Kernel, nodes: Nodes, points: Tensor) -> Tensor:
    lag = nodes.points[:, None, :] - points[None, :, :]
    if nodes.axes is None:
        return kernel(lag)
    values = torch.empty(0)
    for axis in torch.unique(nodes.axes).tolist():
        chosen = nodes.axes == axis
        part = kernel.covariance(lag[chosen], None if axis < 0 else axis)
        if not len(values):
            values = part.new_zeros(lag.shape[:-1])
        values = values.index_add(0, torch.nonzero(chosen)[:, 0], part)
    return values


def functional_covariance(
    kernel: Kernel,
    left: Functionals,
    right: Functionals,
    *,
    device: torch.device | str = "cpu",
) -> Float[Tensor, "n m"]:
    """``Cov(L_n ρ, L_m ρ)`` for all pairs. Cost: one kernel value a pair of nodes."""
    a, b = left.nodes().to(device), right.nodes().to(device)
    rows = max(1, _block(device) // max(len(b.rows), 1))
    total = a.weights.new_zeros(a.count, b.count)
    for piece in _pieces(a, rows):
        values = _pair_covariance(kernel, piece, b) * b.weights
        summed = values.new_zeros(len(piece.rows), b.count)
        summed = summed.index_add(1, b.rows, values)
        total = total.index_add(0, piece.rows, piece.weights[:, None] * summed)
    return total


def _pair_covariance(kernel: Kernel, a: Nodes, b: Nodes) -> Tensor:
    lag = a.points[:, None, :] - b.points[None, :, :]
    if a.axes is None and b.axes is None:
        return kernel(lag)
    left = a.axes if a.axes is not None else -torch.ones_like(a.rows)
    right = b.axes if b.axes is not None else -torch.ones_like(b.rows)
    values = lag.new_zeros(lag.shape[:-1])
    for i in torch.unique(left).tolist():
        for j in torch.unique(right).tolist():
            part = kernel.covariance(lag, None if i < 0 else i, None if j < 0 else j)
            mask = (left == i)[:, None] & (right == j)[None, :]
            values = values + torch.where(mask, part, torch.zeros_like(part))
    return values


def functional_variance(
    kernel: Kernel, functionals: Functionals, *, device: torch.device | str = "cpu"
) -> Float[Tensor, " n"]:
    """``k_nn = Var(L_n ρ)`` of every functional, from its own nodes."""
    variances = []
    count = len(functionals)
    if not count:
        return torch.zeros(0, dtype=torch.float64, device=device)
    widest = max(1, int(torch.bincount(functionals.nodes().rows, minlength=1).max()))
    chunk = max(1, int(_block(device) / widest**2 / 4))
    for _, part in functionals.chunks(chunk):
        variances.append(_variance(kernel, part.nodes(), device))
    return torch.cat(variances)


def _variance(kernel: Kernel, nodes: Nodes, device: torch.device | str) -> Tensor:
    """All pairs of nodes within one row, laid out in a padded ``(n, j, j)`` block.

    The layout is made on the CPU: its size is known without waiting for the device.
    """
    counts = torch.bincount(nodes.rows, minlength=nodes.count)
    width = int(counts.max()) if len(counts) else 0
    first = torch.cumsum(counts, 0) - counts
    place = torch.arange(len(nodes.rows)) - first[nodes.rows]
    dimension = nodes.points.shape[1]
    points = nodes.points.new_zeros(nodes.count, width, dimension)
    weights = nodes.weights.new_zeros(nodes.count, width)
    points[nodes.rows, place] = nodes.points
    weights[nodes.rows, place] = nodes.weights
    points, weights = points.to(device), weights.to(device)
    lag = points[:, :, None, :] - points[:, None, :, :]
    if nodes.axes is None:
        pairs = kernel(lag)
    else:
        axes = torch.full((nodes.count, width), -1, dtype=torch.int64)
        axes[nodes.rows, place] = nodes.axes
        axes = axes.to(device)
        pairs = lag.new_zeros(lag.shape[:-1])
        for i in torch.unique(nodes.axes).tolist():
            for j in torch.unique(nodes.axes).tolist():
                mask = (axes == i)[:, :, None] & (axes == j)[:, None, :]
                part = kernel.covariance(
                    lag, None if i < 0 else i, None if j < 0 else j
                )
                pairs = pairs + torch.where(mask, part, torch.zeros_like(part))
    return torch.einsum("nj,njk,nk->n", weights, pairs, weights)
