r"""Inter-domain covariances of functionals, from their nodes.

``k_un = Σ_j w_nj ∂^{α_j} k(z − x_nj)`` (HIP-GP, eq. 7) and
``k_nm = Σ_j Σ_i w_nj w_mi ∂^{α_j}∂^{α_i} k(x_nj − x_mi)`` (eq. 8), both with the same
nodes, differentiable in the kernel's hyperparameters. Functionals are on the CPU; their
nodes are copied to the device of the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dustmap.functionals import Functionals, Nodes, PointValues
from dustmap.kernels import Kernel, point_covariance
from dustmap.memory import rows_within
from dustmap.shapes import Device, Pairs, Places, Vector


def inducing_covariance(
    kernel: Kernel, functionals: Functionals, points: Places
) -> Pairs:
    """Return ``Cov(L_n ρ, ρ(z_m))``, the rows ``k_un``, on the device of the points.

    Cost: one kernel value for each node and point.
    """
    if isinstance(functionals, PointValues):
        return point_covariance(kernel, functionals.points.to(points), points)
    there = PointValues(points)
    return functional_covariance(kernel, functionals, there, device=points.device)


def functional_covariance(
    kernel: Kernel, left: Functionals, right: Functionals, *, device: Device = "cpu"
) -> Pairs:
    """Return ``Cov(L_n ρ, L_m ρ)``. Cost: one kernel value for each pair of nodes."""
    a, b = left.nodes().to(device), right.nodes().to(device)
    total = a.weights.new_zeros(a.count, b.count)
    for piece in a.pieces(_rows(len(b.rows), device)):
        lag = piece.points[:, None, :] - b.points[None, :, :]
        axes = None if piece.axes is None else piece.axes[:, None]
        values = _covariance(kernel, lag, axes, b.axes)
        # Points are nodes of weight one.
        if not isinstance(right, PointValues):
            summed = values.new_zeros(len(piece.rows), b.count)
            values = summed.index_add(1, b.rows, values * b.weights)
        total = total.index_add(0, piece.rows, piece.weights[:, None] * values)
    return total


def functional_variance(
    kernel: Kernel, functionals: Functionals, *, device: Device = "cpu"
) -> Vector:
    """Return ``k_nn = Var(L_n ρ)`` of every functional, from its own nodes."""
    variances = [torch.zeros(0, dtype=torch.float64, device=device)]
    rows = functionals.nodes().rows
    widest = max(1, int(torch.bincount(rows, minlength=1).max()))
    for _, part in functionals.chunks(_rows(4 * widest**2, device)):
        variances.append(_variance(kernel, part.nodes(), device))
    return torch.cat(variances)


def _rows(width: int, device: Device) -> int:
    """Return the number of rows of ``width`` kernel values to evaluate at once.

    On the CPU blocks that fit into the cache are three times as fast as blocks of 32
    MiB; on other devices larger blocks save launches.
    """
    on_cpu = torch.device(device).type == "cpu"
    return rows_within(8 * width, 2**21 if on_cpu else 2**25)


def _covariance(
    kernel: Kernel, lag: Tensor, left: Tensor | None, right: Tensor | None
) -> Tensor:
    """Return covariances of derivatives along axes (−1: values), broadcast to lags."""
    if left is None and right is None:
        return kernel(lag)
    value = torch.tensor([-1], device=lag.device)
    left, right = (value if axes is None else axes for axes in (left, right))
    values = lag.new_zeros(lag.shape[:-1])
    for i in left.unique().tolist():
        for j in right.unique().tolist():
            chosen = ((left == i) & (right == j)).expand(values.shape)
            axes = (None if axis < 0 else axis for axis in (i, j))
            part = kernel.covariance(lag[chosen], *axes)
            values = values.index_put((chosen,), part)
    return values


def _variance(kernel: Kernel, nodes: Nodes, device: Device) -> Tensor:
    """Return sums over pairs of nodes of each row, in a padded ``(n, j, j)`` block.

    The layout is made on the CPU, to avoid waiting for the device for its size.
    """
    counts = torch.bincount(nodes.rows, minlength=nodes.count)
    place = torch.arange(len(nodes.rows)) - (counts.cumsum(0) - counts)[nodes.rows]
    shape = (nodes.count, int(counts.max()))

    def padded(values: Tensor, fill: int = 0) -> Tensor:
        block = values.new_full((*shape, *values.shape[1:]), fill)
        block[nodes.rows, place] = values
        return block.to(device)

    points, weights = padded(nodes.points), padded(nodes.weights)
    lag = points[:, :, None, :] - points[:, None, :, :]
    left = right = None
    if nodes.axes is not None:
        axes = padded(nodes.axes, fill=-1)
        left, right = axes[:, :, None], axes[:, None, :]
    pairs = _covariance(kernel, lag, left, right)
    return torch.einsum("nj,njk,nk->n", weights, pairs, weights)
