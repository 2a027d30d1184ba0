"""A linear operator made of two functions."""

from __future__ import annotations

import torch

from dustmap.linalg.operator import LinearOperator


class FunctionOperator(LinearOperator):
    """``A x`` and ``Aᵀ y`` by two functions, on the CPU."""

    def __init__(self, shape, matvec, rmatvec, *, dtype=torch.float64):
        self.shape, self.dtype, self.device = shape, dtype, torch.device("cpu")
        self._products = matvec, rmatvec

    def matvec(self, x):
        return self._products[0](x)

    def rmatvec(self, y):
        return self._products[1](y)
