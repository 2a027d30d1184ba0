"""Scale and degrees of freedom of Student-T noise around a latent field."""

from __future__ import annotations

import math

import numpy as np
import scipy.optimize
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.bound import LatentMoments
from dustmap.likelihoods import StudentT

# Of ν: a variance exists above 2, and beyond 100 the noise is as good as normal.
_DEGREES = (2.1, 100.0)
# How far the logarithm of the scale may move in one call.
_REACH = 3.0


def without_outliers(y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The target drawn in to six robust standard deviations of its median.

    Only a search for a place to start from sees it.
    """
    centre = y.median()
    spread = 1.4826 * (y - centre).abs().median()
    if not float(spread):
        return y
    return y.clamp(float(centre - 6 * spread), float(centre + 6 * spread))


def student_noise(
    y: Float[Tensor, " n"], latent: LatentMoments, before: StudentT
) -> StudentT:
    """The Student-T noise of largest ``Σ_n E_q[log p(y_n | f_n)]``."""
    first = np.log([float(before.scale), float(before.degrees)])

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
        noise = StudentT(scale=free[0].exp(), degrees=free[1].exp())
        total = -noise.expected(y, latent.mean, latent.variance).mean()
        total.backward()
        assert free.grad is not None
        return float(total.detach()), free.grad.numpy()

    found = scipy.optimize.minimize(
        loss,
        first,
        jac=True,
        method="L-BFGS-B",
        bounds=[
            (first[0] - _REACH, first[0] + _REACH),
            (math.log(_DEGREES[0]), math.log(_DEGREES[1])),
        ],
    )
    return StudentT(scale=math.exp(found.x[0]), degrees=math.exp(found.x[1]))


def student_weights(
    y: Float[Tensor, " n"], latent: LatentMoments, noise: StudentT
) -> Float[Tensor, " n"]:
    """``w_n = (ν + 1) / (ν + E[r_n²]/s²)`` of the mixture of normals ``N(0, s²/w)``."""
    square = ((y - latent.mean) ** 2 + latent.variance) / noise.scale**2
    return (noise.degrees + 1) / (noise.degrees + square)
