"""A fitted field, in standardised units, and noise that is not normal around one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import scipy.optimize
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.regression import Regression
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Radial
from dustmap.likelihoods import Gaussian, Likelihood

# Rounds of noise and field in turn, rows from which the noise is fitted, and how far
# the logarithm of a parameter may move in one round.
_ROUNDS, _NOISE_ROWS, _REACH = 4, 5_000, 3.0

Noise = TypeVar("Noise", bound=Likelihood)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedField:
    """A latent field with its noise.

    Parameters
    ----------
    latent
        From inputs (n, d) to the moments of the latent field there.
    likelihood
        Of the target given the field.
    kernel, mean
        Of the field, learnt.
    why
        The reason for the kernel, for people.
    converged
        Whether every search and solve did.
    messages
        For people, one line each.
    facts
        For the record.
    """

    latent: Callable[[Float[Tensor, "n d"]], LatentMoments]
    likelihood: Likelihood
    kernel: Radial
    mean: float
    why: str
    converged: bool
    messages: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def field_of(
    model: Regression,
    y: Float[Tensor, " n"],
    kind: type[Likelihood],
    *,
    why: str,
    converged: bool,
    messages: tuple[str, ...] = (),
    facts: dict[str, Any] | None = None,
) -> FittedField:
    """The field of a regression that was learnt from tamed targets.

    Under a mixture of normals, rows have normal noise ``s²/w_n``: the weights ``w_n``
    of the field's posterior at the rows, and the parameters of the noise given that
    posterior, are found in turn (Tipping & Lawrence 2005, Neurocomputing 69, 123).
    """
    likelihood: Likelihood = Gaussian(variance=model.noise)
    if not kind.conjugate:
        known = model.parameters()
        start = kind.start(y, known["noise"], known["variance"], known["mean"])
        likelihood, model = start.likelihood, replace(model, observations=y)
        for _ in range(_ROUNDS):
            seen = model.predict(model.functionals)
            few = LatentMoments(*(part[:_NOISE_ROWS] for part in seen))
            likelihood = fitted_noise(y[:_NOISE_ROWS], few, likelihood)
            variance = likelihood.base_variance / likelihood.weights(y, *seen)
            least = variance.min()
            model = replace(model, noise=least, known_noise=variance - least)
    assert isinstance(model.kernel, Radial)
    return FittedField(
        latent=lambda x: model.predict(PointValues(x)),
        likelihood=likelihood,
        kernel=model.kernel,
        mean=float(model.mean),
        why=why,
        converged=converged,
        messages=messages,
        facts={} if facts is None else facts,
    )


def fitted_noise(y: Float[Tensor, " n"], latent: LatentMoments, before: Noise) -> Noise:
    """The noise of largest ``Σ_n E_q[log p(y_n | f_n)]``."""
    start = {n: math.log(float(value)) for n, value in before.parameters().items()}

    def noise_at(logarithms: Tensor) -> Noise:
        return before.with_parameters(dict(zip(start, logarithms.exp(), strict=True)))

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
        total = -noise_at(free).expected(y, *latent).mean()
        (gradient,) = torch.autograd.grad(total, free)
        return float(total.detach()), gradient.numpy()

    bounds = [
        tuple(map(math.log, before.ranges[name]))
        if name in before.ranges
        else (value - _REACH, value + _REACH)
        for name, value in start.items()
    ]
    found = scipy.optimize.minimize(
        loss, list(start.values()), jac=True, method="L-BFGS-B", bounds=bounds
    )
    return noise_at(torch.as_tensor(found.x))
