"""What the checkers compare with."""

from __future__ import annotations

import torch
from torch import Tensor

from dustmap.linalg.operator import LinearOperator


def normal(
    generator: torch.Generator, shape: tuple[int, ...], operator: LinearOperator
) -> Tensor:
    values = torch.randn(shape, generator=generator, dtype=operator.dtype)
    return values.to(operator.device)


def norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.detach().to(torch.float64))


def require_close(
    found: Tensor, expected: Tensor, size: Tensor | float, rtol: float, what: str
) -> None:
    gap, allowed = float(norm(found - expected)), rtol * float(size)
    if not gap <= allowed:
        raise AssertionError(f"{what}: off by {gap:.3g}, {allowed:.3g} is allowed")
