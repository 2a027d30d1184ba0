"""A checker for kernels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from dustmap.kernels import Kernel, Periodised, Radial
from dustmap.testing.operators import norm, require, require_close

# Images per axis of the explicit sum that checks a periodised kernel.
_IMAGES = 7
_RTOL = 1e-9


def check_kernel(kernel: Radial, dimension: int, generator: torch.Generator) -> None:
    """Check symmetry, positivity, derivatives, covariances, gradients and periods.

    The image sum is checked by an explicit sum. Derivatives beyond
    ``kernel.derivatives`` must raise a ``ValueError``.

    Raises
    ------
    AssertionError
        If anything is wrong.
    """
    scale = float(kernel.lengthscale.detach().mean())
    shape = (40, dimension)
    points = scale * 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    lags = points[1:] - points[:-1]
    _check_symmetry(kernel, lags)
    _check_positive(kernel, points)
    _check_parameters(kernel, lags)
    if kernel.derivatives >= 1:
        _check_derivatives(kernel, lags, scale)
        _check_covariances(kernel, lags, scale)
    else:
        _check_refusals(kernel, lags)
    # Unequal periods, short enough that images matter.
    periods = tuple(scale * (6.3 + 0.9 * d) for d in range(dimension))
    periodic = kernel.periodised(periods)
    _check_images(kernel, periodic, lags[:3], periods)
    lag = points[:12, None] - points[None, :12]
    _require_positive(periodic(lag), "the periodic covariance")


def _check_symmetry(kernel: Kernel, lags: Tensor) -> None:
    values, top = kernel(lags), kernel(torch.zeros_like(lags[:1]))[0]
    require(
        values.shape == lags.shape[:-1],
        f"k of lags of shape {tuple(lags.shape)} has shape {tuple(values.shape)}",
    )
    require((values.abs() <= top * (1 + _RTOL)).all(), "k(Δ) exceeds k(0)")
    for axis in range(lags.shape[1]):
        mirrored = lags.clone()
        mirrored[:, axis] *= -1
        what = f"k mirrored along axis {axis}"
        require_close(kernel(mirrored), values, norm(values), _RTOL, what)


def _check_positive(kernel: Kernel, points: Tensor) -> None:
    """Check eigenvalues for values, and for values and slopes together."""
    lag = points[:, None] - points[None]
    _require_positive(kernel(lag), "the covariance of values")
    if kernel.derivatives < 1:
        return
    few = lag[:8, :8]
    orders = [None, *range(points.shape[1])]
    blocks = [[kernel.covariance(few, a, b) for b in orders] for a in orders]
    joint = torch.cat([torch.cat(row, dim=1) for row in blocks])
    require_close(joint, joint.mT, norm(joint), 1e-12, "symmetry of Cov(∂ρ, ∂ρ')")
    size = joint.diagonal().clamp(min=1e-300).sqrt()
    _require_positive(joint / size / size[:, None], "the covariance with derivatives")


def _require_positive(matrix: Tensor, what: str) -> None:
    eigenvalues = torch.linalg.eigvalsh(matrix.detach())
    smallest, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    require(
        smallest >= -1e-10 * largest,
        f"{what} is not positive semi-definite: eigenvalues from {smallest:.3g} to "
        f"{largest:.3g}",
    )


def _check_parameters(kernel: Kernel, lags: Tensor) -> None:
    """Compare gradients by parameters, also at zero lag, with central differences."""
    lags = torch.cat([lags, torch.zeros_like(lags[:1])])
    leaves = {
        name: value.detach().clone().requires_grad_(True)
        for name, value in kernel.parameters().items()
    }
    rebuilt = kernel.with_parameters(leaves)(lags)
    size = norm(rebuilt)
    require_close(kernel(lags), rebuilt, size, 1e-14, "with_parameters(parameters())")
    weights = torch.cos(torch.arange(len(lags), dtype=lags.dtype))
    gradients = torch.autograd.grad((weights * rebuilt).sum(), list(leaves.values()))
    for (name, value), gradient in zip(leaves.items(), gradients, strict=True):
        step = 1e-6
        up = kernel.with_parameters({**leaves, name: value * (1 + step)})(lags)
        down = kernel.with_parameters({**leaves, name: value * (1 - step)})(lags)
        change = (weights * (up - down)).sum() / (2 * step)
        found = (gradient * value).sum()
        require_close(found, change, size, 1e-7, f"the gradient by {name}")


def _check_derivatives(kernel: Kernel, lags: Tensor, scale: float) -> None:
    """Compare with autograd of k away from zero, with central differences at zero."""
    x = lags.clone().requires_grad_(True)
    slopes = _gradient(kernel(x), x)
    zero, step = torch.zeros_like(lags[:1]), 1e-4 * scale
    top = float(kernel(zero).detach().abs().max())
    for a in range(lags.shape[1]):
        first = kernel(x, a)
        require_close(first, slopes[:, a], top / scale, _RTOL, f"∂k/∂Δ_{a}")
        at_zero = kernel(zero, a)
        require_close(at_zero, 0 * at_zero, top / scale, _RTOL, f"∂k/∂Δ_{a} at 0")
        curvatures = _gradient(first, x)
        for b in range(lags.shape[1]):
            what, size = f"∂²k/∂Δ_{a}∂Δ_{b}", top / scale**2
            second = kernel(x, a, b)
            require_close(second, curvatures[:, b], size, _RTOL, what)
            ahead = zero.clone()
            ahead[:, b] += step
            difference = kernel(ahead, a) / step
            second = kernel(zero, a, b)
            require_close(second, difference, size, 1e-2, f"{what} at 0")


def _check_covariances(kernel: Kernel, lags: Tensor, scale: float) -> None:
    """Compare ``Cov(∂ρ(x), ∂ρ(x'))`` with ``k(x − x')`` differentiated by x and x'."""
    orders = [None, *range(lags.shape[1])]
    top = float(kernel(torch.zeros_like(lags[:1])).detach().abs().max())
    for a, b in itertools.product(orders, orders):
        axes = [axis for axis in (a, b) if axis is not None]
        value = kernel(lags, *axes) * (1 if b is None else -1)
        size, what = top / scale ** len(axes), f"Cov of orders {a} and {b}"
        require_close(kernel.covariance(lags, a, b), value, size, _RTOL, what)


def _gradient(values: Tensor, x: Tensor) -> Tensor:
    """Return ``∂Σ values/∂x``, zero if the values do not depend on x."""
    if not values.requires_grad:
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(
        values.sum(), x, create_graph=True, materialize_grads=True
    )
    return gradient


def _check_refusals(kernel: Kernel, lags: Tensor) -> None:
    calls = {
        "∂k": lambda: kernel(lags, 0),
        "∂²k": lambda: kernel(lags, 0, 0),
        "covariance": lambda: kernel.covariance(lags, 0, None),
    }
    for name, call in calls.items():
        try:
            call()
        except ValueError:
            continue
        raise AssertionError(f"{name} of a field without derivatives is not refused")


def _check_images(
    kernel: Radial,
    periodic: Periodised,
    lags: Tensor,
    periods: Sequence[float],
) -> None:
    period = lags.new_tensor(periods)
    turns = lags.new_tensor([3, -2, 1])[: lags.shape[1]]
    orders: list[int | None] = [None]
    if kernel.derivatives >= 1:
        orders += list(range(lags.shape[1]))
    counts = range(-_IMAGES, _IMAGES + 1)
    images = itertools.product(counts, repeat=lags.shape[1])
    shifts = lags.new_tensor(list(images)) * period
    for a, b in itertools.product(orders, orders):
        what = f"the periodic covariance of orders {a} and {b}"
        values = periodic.covariance(lags, a, b)
        size = norm(values) + norm(kernel.covariance(torch.zeros_like(lags), a, b))
        found = periodic.covariance(lags + turns * period, a, b)
        require_close(found, values, size, _RTOL, f"{what} after whole periods")
        brute = kernel.covariance(lags[:, None] + shifts, a, b).sum(dim=1)
        require_close(values, brute, size, _RTOL, f"{what} against its image sum")
