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
    start = before.parameters()
    first = np.log([float(value) for value in start.values()])

    def noise_at(logarithms: Tensor) -> Noise:
        return before.with_parameters(dict(zip(start, logarithms.exp(), strict=True)))

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
        total = -noise_at(free).expected(y, latent.mean, latent.variance).mean()
        total.backward()
        assert free.grad is not None
        return float(total.detach()), free.grad.numpy()

    bounds = [(value - _REACH, value + _REACH) for value in first]
    for number, name in enumerate(start):
        if name in before.ranges:
            low, high = before.ranges[name]
            bounds[number] = math.log(low), math.log(high)
    found = scipy.optimize.minimize(
        loss, first, jac=True, method="L-BFGS-B", bounds=bounds
    )
    return noise_at(torch.as_tensor(found.x))
