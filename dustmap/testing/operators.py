"""A checker for linear operators."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from dustmap.linalg.operator import LinearOperator
from dustmap.testing.comparison import norm, normal, require_close

# Entries of a matrix that `check_linear_operator` is willing to write out.
_DENSE_LIMIT = 2**22


def check_linear_operator(
    operator: LinearOperator,
    *,
    generator: torch.Generator,
    rtol: float | None = None,
    probes: int = 3,
) -> None:
    """Check products, adjoint, linearity, batches, dtype and ``to_dense``.

    The adjoint error is ``|⟨Au, v⟩ − ⟨u, Aᵀv⟩| / (‖Au‖ ‖v‖)``. Cost: a dozen products
    per probe, and one per column where the matrix has at most four million entries.

    Parameters
    ----------
    rtol
        Relative tolerance, by default ``1e4 ε`` of the operator's dtype.
    probes
        Random vectors to try.

    Raises
    ------
    AssertionError
        If anything is wrong.
    """
    if rtol is None:
        rtol = 1e4 * torch.finfo(operator.dtype).eps
    rows, columns = operator.shape
    for _ in range(probes):
        u = normal(generator, (columns,), operator)
        w = normal(generator, (columns,), operator)
        v = normal(generator, (rows,), operator)
        image = _product(operator, "matvec", u)
        back = _product(operator, "rmatvec", v)
        _check_adjoint(u, v, image, back, rtol)
        other = _product(operator, "matvec", w)
        combined = _product(operator, "matvec", 2.5 * u - 0.75 * w)
        size = 2.5 * norm(image) + 0.75 * norm(other)
        require_close(combined, 2.5 * image - 0.75 * other, size, rtol, "linearity")
    for name, length in (("matvec", columns), ("rmatvec", rows)):
        _check_batches(operator, name, length, generator, rtol)
    if rows * columns <= _DENSE_LIMIT:
        _check_dense(operator, generator, rtol)


def _check_adjoint(
    u: Tensor, v: Tensor, image: Tensor, back: Tensor, rtol: float
) -> None:
    forward = torch.sum(image * v, dtype=torch.float64)
    backward = torch.sum(u * back, dtype=torch.float64)
    gap = float((forward - backward).abs())
    size = float(norm(image) * norm(v))
    if not gap <= rtol * size:
        raise AssertionError(
            f"the adjoint is wrong: ⟨Au, v⟩ = {float(forward):.9g} but ⟨u, Aᵀv⟩ = "
            f"{float(backward):.9g}, a difference of {gap:.2g} where "
            f"{rtol:.1g} ‖Au‖‖v‖ = {rtol * size:.2g} is allowed"
        )


def _check_batches(
    operator: LinearOperator,
    name: str,
    length: int,
    generator: torch.Generator,
    rtol: float,
) -> None:
    """Leading dims are a batch, each member treated as if it were alone."""
    batch = normal(generator, (2, 3, length), operator)
    together = _product(operator, name, batch)
    for i, j in itertools.product(range(2), range(3)):
        alone = _product(operator, name, batch[i, j])
        what = f"{name} of a batch against its members"
        require_close(together[i, j], alone, norm(alone), rtol, what)


def _check_dense(
    operator: LinearOperator, generator: torch.Generator, rtol: float
) -> None:
    dense = operator.to_dense()
    if tuple(dense.shape) != tuple(operator.shape):
        raise AssertionError(
            f"to_dense has shape {tuple(dense.shape)}, the operator {operator.shape}"
        )
    size = torch.linalg.matrix_norm(dense.to(torch.float64))
    for name, matrix in (("matvec", dense), ("rmatvec", dense.mT)):
        x = normal(generator, (matrix.shape[1],), operator)
        product = _product(operator, name, x)
        require_close(matrix @ x, product, size, rtol, f"to_dense against {name}")


def _product(operator: LinearOperator, name: str, x: Tensor) -> Tensor:
    """A product, with its shape, dtype and device checked and its argument kept."""
    before = x.clone()
    y = getattr(operator, name)(x)
    rows, columns = operator.shape
    expected = (*x.shape[:-1], rows if name == "matvec" else columns)
    if tuple(y.shape) != expected:
        raise AssertionError(
            f"{name} of shape {tuple(x.shape)} has shape {tuple(y.shape)}, "
            f"expected {expected}"
        )
    if y.dtype != operator.dtype or y.device.type != operator.device.type:
        raise AssertionError(
            f"{name} returned {y.dtype} on {y.device}, the operator is "
            f"{operator.dtype} on {operator.device}"
        )
    if not bool(torch.isfinite(y).all()):
        raise AssertionError(f"{name} of finite numbers is not finite")
    if not torch.equal(before, x):
        raise AssertionError(f"{name} changed its argument")
    return y
