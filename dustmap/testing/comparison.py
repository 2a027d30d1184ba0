"""How the checkers compare."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.detach().to(torch.float64))


def require(condition: object, message: str) -> None:
    if not bool(condition):
        raise AssertionError(message)


def require_close(
    found: Tensor, expected: Tensor, size: Tensor | float, rtol: float, what: str
) -> None:
    gap, allowed = float(norm(found - expected)), rtol * float(size)
    require(gap <= allowed, f"{what}: off by {gap:.3g}, {allowed:.3g} is allowed")
