"""A small torus model, and its collapsed objective and gradient, all dense."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import torch
from reference import (
    Covariance,
    conditional_features,
    log_evidence,
    symmetric_root,
    woodbury_posterior,
)

from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues, Stack
from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern32
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening

SHAPE, SPACING, DRAWS, SEED = (6, 5), (1.0, 0.8), 3, 3
TAU2 = 0.05
START = {
    "lengthscale": np.array([0.9, 0.7]),
    "variance": np.array(1.4),
    "mean": np.array(0.6),
    "common_noise": np.array(TAU2),
}


def problem(refinement, residual_refinement, *, isotropic=False):
    grid = Grid(shape=(4, 4), spacing=SPACING, origin=(-1.0, -1.5))
    generator = torch.Generator().manual_seed(8)
    lower, upper = torch.tensor(grid.lower), torch.tensor(grid.upper)

    def draw(count):
        unit = torch.rand(count, 2, generator=generator)
        return (lower + unit * (upper - lower)).double()

    rays = LineIntegrals(draw(9), GaussLegendre(count=5), start=draw(1))
    functionals = Stack([rays, PointValues(draw(6))])
    scales = 0.8 if isotropic else START["lengthscale"].tolist()
    model = TorusGaussian(
        TorusWhitening(
            Matern32(lengthscale=scales, variance=float(START["variance"])),
            Torus(grid=grid, shape=SHAPE),
            refinement=refinement,
        ),
        functionals,
        mean=ConstantMean(value=float(START["mean"])),
        residual_refinement=residual_refinement,
        residual_count=DRAWS,
        generator=torch.Generator().manual_seed(SEED),
    )
    n = len(functionals)
    y = 1.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    noise = 0.02 + 0.1 * torch.rand(n, generator=generator, dtype=torch.float64)
    return model, y, noise


class Dense:
    """The collapsed objective of a model, dense, as a function of θ."""

    def __init__(self, model, y, noise):
        self.r, self.q = model.whitening.refinement, model.residual_refinement
        self.W = {
            n: model._projection(n).to_dense().numpy() for n in (1, self.r, self.q)
        }
        self.y, self.noise = y.numpy(), noise.numpy()
        self.seen = model.offset.numpy() / float(START["mean"])
        # The very white numbers of the model's draws.
        seed = torch.Generator().manual_seed(SEED)
        own = int(torch.randint(2**62, (1,), generator=seed))
        generator = torch.Generator().manual_seed(own)
        size = (1, SHAPE[0] * SHAPE[1] * self.q**2)
        self.white = [
            torch.randn(size, generator=generator, dtype=torch.float64)[0].numpy()
            for _ in range(DRAWS)
        ]

    def covariance(self, theta, refinement, every):
        scales = tuple(np.broadcast_to(theta["lengthscale"], 2))
        kernel = Covariance(
            name="matern32",
            lengthscale=scales,
            variance=float(theta["variance"]),
            periods=tuple(n * h for n, h in zip(SHAPE, SPACING, strict=True)),
            images=(3, 3),
        )
        size = np.array(SHAPE) * refinement
        step = np.array(SPACING) / refinement
        places = list(itertools.product(*(range(n) for n in size)))
        column = np.array(
            [
                kernel(((np.array(p) + size // 2) % size - size // 2) * step)
                for p in places
            ]
        ).reshape(tuple(size))
        a, b = (
            np.array(list(itertools.product(*(range(0, n, e) for n in size))))
            for e in every
        )
        lag = (a[:, None] - b[None]) % size
        return column[tuple(np.moveaxis(lag, -1, 0))]

    def features(self, theta):
        K_fu = self.covariance(theta, self.r, (1, self.r))
        return conditional_features(
            self.W[self.r] @ K_fu, self.covariance(theta, 1, (1, 1))
        )

    def variance(self, theta, Phi):
        if self.q == 1:
            return np.zeros(len(Phi))
        root = symmetric_root(self.covariance(theta, self.q, (1, 1)))
        coarse = symmetric_root(self.covariance(theta, 1, (1, 1)))
        size = np.array(SHAPE) * self.q
        keep = np.arange(np.prod(size)).reshape(size)[:: self.q, :: self.q].reshape(-1)
        total = np.zeros(len(Phi))
        for white in self.white:
            field = root @ white
            eps = np.linalg.solve(coarse, field[keep])
            total += (self.W[self.q] @ field - Phi @ eps) ** 2
        return total / DRAWS

    def posterior(self, theta, subgrid):
        Phi = self.features(theta)
        total = self.noise + theta["common_noise"]
        if subgrid:
            total = total + self.variance(theta, Phi)
        return woodbury_posterior(Phi, self.y - theta["mean"] * self.seen, total)

    def objectives(self, theta):
        """Without and with sub-grid noise."""
        Phi = self.features(theta)
        v = self.variance(theta, Phi)
        noise = self.noise + theta["common_noise"]
        centred = self.y - theta["mean"] * self.seen
        bound = log_evidence(Phi @ Phi.T, centred, noise) - 0.5 * (v / noise).sum()
        return np.array([bound, log_evidence(Phi @ Phi.T, centred, noise + v)])

    def gradient(self, theta, name, place, step=2e-3):
        """Five-point difference in the logarithm of one entry."""

        def at(steps):
            moved = {n: v.copy() for n, v in theta.items()}
            moved[name].reshape(-1)[place] *= np.exp(steps * step)
            return self.objectives(moved)

        return (8 * (at(1) - at(-1)) - at(2) + at(-2)) / (12 * step)


@functools.cache
def solved(refinement, fine, isotropic):
    model, y, noise = problem(refinement, fine, isotropic=isotropic)
    theta = {n: v.copy() for n, v in START.items()}
    if isotropic:
        theta["lengthscale"] = np.array(0.8)
    dense = Dense(model, y, noise)
    exact = {
        name: np.array([dense.gradient(theta, name, i) for i in range(value.size)])
        for name, value in theta.items()
    }
    return model, y, noise, theta, dense, exact
