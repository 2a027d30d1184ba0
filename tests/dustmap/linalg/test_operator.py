"""Operators known by their products, and inner products."""

from __future__ import annotations

import torch
from operators import FunctionOperator

from dustmap.linalg.operator import inner
from dustmap.testing import check_linear_operator


def test_products_with_unit_vectors_are_the_matrix(generator):
    A = torch.randn(5, 3, generator=generator, dtype=torch.float32)
    operator = FunctionOperator(
        (5, 3), lambda x: x @ A.mT, lambda y: y @ A, dtype=torch.float32
    )
    check_linear_operator(operator, generator=generator)
    assert torch.equal(operator.to_dense(), A)


def test_inner_products_of_single_precision_are_summed_in_double():
    a = torch.tensor([[1e8, 1.0, -1e8]], dtype=torch.float32)
    assert inner(a, torch.ones(3)).tolist() == [1.0]
    assert inner(a, a).dtype == torch.float64
