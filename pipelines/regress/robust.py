"""Parameters of noise around a latent field."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import scipy.optimize
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.bound import LatentMoments
from dustmap.likelihoods import Likelihood

# How far the logarithm of a parameter may move in one call.
_REACH = 3.0

Noise = TypeVar("Noise", bound=Likelihood)


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
