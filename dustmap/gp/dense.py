"""Dense covariances in blocks, with their gradients in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.covariance import functional_covariance
from dustmap.functionals import Functionals, PointValues
from dustmap.kernels import Kernel
from dustmap.whitening import point_covariance

# Kernel evaluations in one block: autograd keeps a few copies of each.
BLOCK = 2**18


def covariance(
    kernel: Kernel, left: Functionals, right: Functionals
) -> Float[Tensor, "n m"]:
    """``Cov(L_n f, L_m f)``; point values without a detour by their nodes."""
    if isinstance(left, PointValues) and isinstance(right, PointValues):
        return point_covariance(kernel, left.points, right.points)
    return functional_covariance(kernel, left, right)


def symmetric_covariance(
    kernel: Kernel, functionals: Functionals
) -> Float[Tensor, "n n"]:
    """``Cov(L_n f, L_m f)`` of one batch with itself, every pair computed once."""
    n = len(functionals)
    total = torch.empty(n, n, dtype=torch.float64)
    for rows, rest, block in _upper_blocks(kernel, functionals):
        total[rows, rest] = block
        total[rest, rows] = block.T
    return total


def covariance_gradient(
    kernel: Kernel, functionals: Functionals, weights: Float[Tensor, "n n"]
) -> dict[str, Tensor]:
    """``∂/∂θ Σ_nm G_nm K_nm(θ)`` of symmetric weights G, by the kernel's parameters.

    Autograd sees a block at a time. Cost: one kernel value and its gradient per pair.
    """

    def pull(leaves: Mapping[str, Tensor]) -> None:
        moved = kernel.with_parameters(dict(leaves))
        for rows, rest, block in _upper_blocks(moved, functionals):
            # The part right of the diagonal block stands for its mirror image, too.
            factor = torch.full((block.shape[1],), 2.0, dtype=torch.float64)
            factor[: block.shape[0]] = 1.0
            (weights[rows, rest] * factor * block).sum().backward()

    return leaf_gradient(kernel.parameters(), pull)


def leaf_gradient(
    values: Mapping[str, Tensor], pull: Callable[[Mapping[str, Tensor]], None]
) -> dict[str, Tensor]:
    """Gradients that ``pull`` leaves on copies of the values (zero where none)."""
    leaves = {n: v.detach().clone().requires_grad_(True) for n, v in values.items()}
    with torch.enable_grad():
        pull(leaves)
    return {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, leaf in leaves.items()
    }


def _upper_blocks(
    kernel: Kernel, functionals: Functionals
) -> Iterator[tuple[slice, slice, Tensor]]:
    n = len(functionals)
    for rows, part in functionals.chunks(max(1, BLOCK // max(n, 1))):
        rest = slice(rows.start, n)
        others = functionals.select(torch.arange(rows.start, n))
        yield rows, rest, covariance(kernel, part, others)
