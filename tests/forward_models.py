"""A checker for forward models."""

from __future__ import annotations

import math

import torch
from linear_operators import check_linear_operator, norm, require, require_close
from torch import Tensor

from dustmap.models.base import ForwardModel, Linearisation


def check_forward_model(
    model: ForwardModel,
    generator: torch.Generator,
    *,
    draws: int = 400,
    variance_draws: int | None = None,
) -> None:
    """Check the tangent, its adjoint, ``v_n`` and the draws of the residual.

    ``draws`` of the residual are compared with ``v_n``, which the model computes
    exactly or from ``variance_draws``. The tangent may differ from central differences
    by 1e-6 in float64 and by 1e-2 in float32.

    Raises
    ------
    AssertionError
        If anything is wrong; comparisons with draws allow six standard errors.
    """
    double = model.dtype == torch.float64
    rtol = 1e-6 if double else 1e-2

    def normal(*shape: int) -> Tensor:
        shape = (*shape, model.latent_size)
        return torch.randn(shape, generator=generator, dtype=model.dtype).to(
            model.device
        )

    eps = normal()
    tangent = model.linearise(eps)
    prediction = model.apply(eps)
    size = norm(prediction)
    tight = 1e4 * torch.finfo(model.dtype).eps
    require_close(
        tangent.prediction, prediction, size, tight, "linearise against apply"
    )
    both = model.apply(torch.stack([eps, 0.5 * eps]))[0]
    require_close(both, prediction, size, tight, "apply of a batch")
    step = 1e-4 if double else 1e-2
    for _ in range(3):
        delta = normal()
        ahead, behind = model.apply(eps + step * delta), model.apply(eps - step * delta)
        along = tangent.operator.matvec(delta)
        difference = (ahead - behind) / (2 * step)
        require_close(along, difference, norm(difference), rtol, "Φ δ against apply")
    check_linear_operator(tangent.operator, generator=generator)
    # The same field with every second functional makes the same predictions.
    index = torch.arange(0, len(model.functionals), 2)
    part = model.at(model.functionals.select(index)).apply(eps)
    chosen = prediction[index.to(prediction.device)]
    require_close(part, chosen, size, tight, "at(selected functionals)")
    residual = model.residual_draws(eps.expand(draws, -1), generator)
    seen = tangent.operator.matvec(normal(16)).to(torch.float64)
    # Smaller variances are rounding of the part that the grid resolves.
    floor = (seen**2).mean(dim=0).max() * 1e3 * torch.finfo(model.dtype).eps
    _check_residual(tangent, residual.to(torch.float64), float(floor), variance_draws)


def _check_residual(
    tangent: Linearisation, residual: Tensor, floor: float, variance_draws: int | None
) -> None:
    variance = tangent.variance.to(torch.float64)
    draws, count = len(residual), len(tangent.prediction)
    sound = tuple(variance.shape) == (count,) and bool(torch.isfinite(variance).all())
    require(sound, f"v_n has shape {tuple(variance.shape)} or is not finite")
    require((variance >= 0).all(), f"v_n is negative: {variance.tolist()}")
    require(
        tuple(residual.shape) == (draws, count),
        f"residual draws have shape {tuple(residual.shape)}",
    )
    spread = (residual**2).mean(dim=0)
    silent = variance <= floor
    require(
        (spread[silent] <= 10 * floor).all(),
        "residual draws differ from zero where v_n does not",
    )
    spread, variance = spread[~silent], variance[~silent]
    centre = residual.mean(dim=0)[~silent].abs() / (variance / draws).sqrt()
    own = 2 / variance_draws if variance_draws else 0.0
    ratio = (spread / variance).log().abs() / math.sqrt(2 / draws + own)
    for what, errors in (("mean", centre), ("variance", ratio)):
        worst = max(errors.tolist(), default=0.0)
        require(
            worst <= 6,
            f"the {what} of the residual draws is {worst:.1f} standard errors from v_n",
        )
