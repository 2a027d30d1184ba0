"""A checker for linear operators.

It raises an ``AssertionError`` that states the fault and its size, so that a test of a
new operator takes one line::

    check_linear_operator(MyOperator(...), generator=torch.Generator())

Errors are relative to the size of the computed values, never absolute: a wrong adjoint
of small scale does not pass, and results do not depend on units.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from dustmap.linalg.operator import LinearOperator

# Largest number of entries for which `check_linear_operator` makes a dense matrix.
_DENSE_LIMIT = 2**22
# Number of random vectors.
_PROBES = 3


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


def check_linear_operator(
    operator: LinearOperator,
    *,
    generator: torch.Generator,
    rtol: float | None = None,
) -> None:
    """Check products, adjoint, linearity, batches, dtype and ``to_dense``.

    The adjoint error is ``|⟨Au, v⟩ − ⟨u, Aᵀv⟩| / (‖Au‖ ‖v‖)``. Cost: a dozen products
    per probe, and one per column where the matrix has at most four million entries.

    ``rtol`` is ``1e4 ε`` of the operator's dtype unless given.

    Raises
    ------
    AssertionError
        If anything is wrong.
    """
    if rtol is None:
        rtol = 1e4 * torch.finfo(operator.dtype).eps

    def normal(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=operator.dtype)
        return values.to(operator.device)

    rows, columns = operator.shape
    for _ in range(_PROBES):
        u, w, v = normal(columns), normal(columns), normal(rows)
        image, other = (_product(operator, "matvec", x) for x in (u, w))
        _check_adjoint(u, v, image, _product(operator, "rmatvec", v), rtol)
        combined = _product(operator, "matvec", 2.5 * u - 0.75 * w)
        size = 2.5 * norm(image) + 0.75 * norm(other)
        require_close(combined, 2.5 * image - 0.75 * other, size, rtol, "linearity")
    for name, length in (("matvec", columns), ("rmatvec", rows)):
        batch = normal(2, 3, length)
        together = _product(operator, name, batch)
        for i, j in itertools.product(range(2), range(3)):
            alone = _product(operator, name, batch[i, j])
            what = f"{name} of a batch against its members"
            require_close(together[i, j], alone, norm(alone), rtol, what)
    if rows * columns <= _DENSE_LIMIT:
        dense = operator.to_dense()
        found, expected = tuple(dense.shape), tuple(operator.shape)
        require(
            found == expected,
            f"to_dense has shape {found}, the operator {expected}",
        )
        size = torch.linalg.matrix_norm(dense.to(torch.float64))
        for name, matrix in (("matvec", dense), ("rmatvec", dense.mT)):
            x = normal(matrix.shape[1])
            product = _product(operator, name, x)
            require_close(matrix @ x, product, size, rtol, f"to_dense against {name}")


def _check_adjoint(
    u: Tensor, v: Tensor, image: Tensor, back: Tensor, rtol: float
) -> None:
    forward = float(torch.sum(image * v, dtype=torch.float64))
    backward = float(torch.sum(u * back, dtype=torch.float64))
    allowed = rtol * float(norm(image) * norm(v))
    require(
        abs(forward - backward) <= allowed,
        f"the adjoint is wrong: ⟨Au, v⟩ = {forward:.9g} but ⟨u, Aᵀv⟩ = {backward:.9g}, "
        f"a difference of {abs(forward - backward):.2g} where {rtol:.1g} ‖Au‖‖v‖ = "
        f"{allowed:.2g} is allowed",
    )


def _product(operator: LinearOperator, name: str, x: Tensor) -> Tensor:
    """Return a product, checking shape, dtype, device and an unchanged argument."""
    before = x.clone()
    y = getattr(operator, name)(x)
    rows, columns = operator.shape
    expected = (*x.shape[:-1], rows if name == "matvec" else columns)
    require(
        tuple(y.shape) == expected,
        f"{name} of shape {tuple(x.shape)} has shape {tuple(y.shape)}, expected "
        f"{expected}",
    )
    require(
        y.dtype == operator.dtype and y.device.type == operator.device.type,
        f"{name} returned {y.dtype} on {y.device}, the operator is {operator.dtype} on "
        f"{operator.device}",
    )
    require(torch.isfinite(y).all(), f"{name} of finite numbers is not finite")
    require(torch.equal(before, x), f"{name} changed its argument")
    return y
