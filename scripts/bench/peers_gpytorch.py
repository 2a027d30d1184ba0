"""GPyTorch's SVGP on integrals along rays, as good as it gets.

An observation is a ray, its covariance with the inducing points
``k_un = Σ_j w_nj k(x_nj − z)`` a sum over Gauss–Legendre nodes: a kernel of twenty
lines. The variational distribution is natural (``NaturalVariationalDistribution``), so
that one step of length 1 with all stars is the optimum (HIP-GP, Wu et al. 2021,
eqs. S2–S5), at hyperparameters that are given. ``k_un`` and ``k_nn`` are computed once.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.utils.memoize import clear_cache_hook
from gpytorch.variational import NaturalVariationalDistribution, VariationalStrategy
from peers_worker import Work, now, read_work, stopwatch
from scoring import normal_interval
from torch import Tensor


class CachedIntegrals(gpytorch.kernels.Kernel):
    """Covariances of a ray's integral with point values, from a table.

    An input is a row number: inducing points first, observations after them.
    """

    def __init__(self, points: Tensor, cross: Tensor, prior: Tensor, base: Any) -> None:
        super().__init__()
        self.points, self.base = points, base
        self.cross, self.prior = cross, prior
        self.inducing = base(points).to_dense().detach()

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """Of rows by rows; of observations with each other the diagonal alone."""
        m = len(self.points)
        i, j = x1[..., 0].long(), x2[..., 0].long()
        if diag:
            return self.prior[i - m]
        if int(i.max()) < m and int(j.max()) < m:
            return self.inducing[i][:, j]
        if int(i.max()) < m:
            return self.cross[j - m][:, i].mT.double()
        if int(j.max()) < m:
            return self.cross[i - m][:, j].double()
        return torch.diag_embed(self.prior[i - m])


class RayGP(gpytorch.models.ApproximateGP):
    """SVGP with zero mean: the observations have the mean function's taken off."""

    def __init__(self, kernel: CachedIntegrals) -> None:
        m = len(kernel.points)
        rows = torch.arange(m, dtype=torch.float64)[:, None]
        strategy = VariationalStrategy(
            self,
            rows,
            NaturalVariationalDistribution(m),
            learn_inducing_locations=False,
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernel

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at rows of the table."""
        return gpytorch.distributions.MultivariateNormal(
            self.mean_module(x), self.covar_module(x)
        )


def nodes(ends: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Gauss–Legendre positions ``(n, J, 3)`` and weights [pc] ``(n, J)`` of rays."""
    places, weights = np.polynomial.legendre.leggauss(count)
    fraction = torch.as_tensor((places + 1) / 2, dtype=ends.dtype)
    weight = torch.as_tensor(weights / 2, dtype=ends.dtype)
    return ends[:, None] * fraction[:, None], ends.norm(dim=1)[:, None] * weight


def matern32(distance: Tensor, scale: float) -> Tensor:
    """``(1 + √3 r/ℓ) exp(−√3 r/ℓ)``."""
    a = distance.mul(3**0.5 / scale)
    return (1 + a) * torch.exp(-a)


class Table:
    """Covariances of rays and point values with the inducing points.

    The field has unit variance and a ray's weights carry its standard deviation:
    GPyTorch adds a jitter to the diagonal that is absolute.
    """

    def __init__(self, work: Work) -> None:
        prior, settings = work.arrays["gaussian_prior"], work.settings
        self.scale, self.std = float(prior[0]), float(prior[1])
        self.nodes = int(settings["nodes"])
        axes = [
            torch.linspace(float(low), float(high), n, dtype=torch.float64)
            for low, high, n in zip(
                work.arrays["lower"], work.arrays["upper"], settings["inducing"]
            )
        ]
        mesh = torch.meshgrid(*axes, indexing="ij")
        self.points = torch.stack([x.reshape(-1) for x in mesh], dim=1)

    def base(self) -> gpytorch.kernels.Kernel:
        """GPyTorch's own kernel with the given lengthscale."""
        kernel = gpytorch.kernels.MaternKernel(nu=1.5)
        kernel.lengthscale = self.scale
        return kernel.double().requires_grad_(False)

    def rays(self, ends: Tensor) -> tuple[Tensor, Tensor]:
        """``k_un`` in single precision, shape ``(n, M)``, and ``k_nn``."""
        points = self.points.float()
        rows = []
        for few in ends.float().split(512):
            x, w = nodes(few, self.nodes)
            r = torch.cdist(x.reshape(-1, 3), points).view(*x.shape[:2], -1)
            values = matern32(r, self.scale)
            rows.append(torch.einsum("nj,njm->nm", self.std * w, values))
        x, w = nodes(ends, self.nodes)
        lag = torch.cdist(x, x)
        values = self.std**2 * matern32(lag, self.scale)
        return torch.cat(rows), torch.einsum("ni,nij,nj->n", w, values, w)

    def densities(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """The same of point values, over the standard deviation."""
        r = torch.cdist(places.float(), self.points.float())
        ones = torch.ones(len(places), dtype=torch.float64)
        return matern32(r, self.scale), ones


def natural_step(model: RayGP, work: Work, rows: Tensor) -> None:
    """One natural-gradient step of length 1 over all stars: the optimum."""
    arrays = work.arrays
    count = len(rows)
    values = torch.as_tensor(arrays["extinction"] - arrays["mean_train"])
    tau = float(arrays["gaussian_prior"][2])
    noise = torch.as_tensor(arrays["sigma"]) ** 2 + tau**2
    likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=count)
    optimiser = gpytorch.optim.NGD(
        model.variational_parameters(), num_data=count, lr=1.0
    )
    optimiser.zero_grad()
    # Training mode would factorise K_uu, and make q, again for every batch.
    model.eval()
    for batch in torch.arange(count).split(int(work.settings["batch"])):
        value = bound(model(rows[batch]), values[batch], noise=noise[batch])
        (-value * len(batch) / count).backward(retain_graph=True)
    optimiser.step()
    clear_cache_hook(model.variational_strategy)


def predict(model: RayGP, cross: Tensor, prior: Tensor, m: int) -> list[np.ndarray]:
    """Mean and standard deviation of new observations."""
    kernel = model.covar_module
    kernel.cross, kernel.prior = cross, prior
    parts = []
    with torch.no_grad():
        for batch in torch.arange(len(prior), dtype=torch.float64).split(4000):
            found = model((batch + m)[:, None])
            parts.append(torch.stack([found.mean, found.variance.sqrt()]))
    return list(torch.cat(parts, dim=1).numpy())


def main() -> None:
    """Read the problem, fit, record."""
    work = read_work()
    torch.set_num_threads(int(work.settings["threads"]))
    torch.set_default_dtype(torch.float64)
    started = now()
    table = Table(work)
    m = len(table.points)
    cross, prior = table.rays(torch.as_tensor(work.arrays["ends"]))
    model = RayGP(CachedIntegrals(table.points, cross, prior, table.base()))
    rows = torch.arange(m, m + len(cross), dtype=torch.float64)[:, None]
    natural_step(model, work, rows)
    taken = now() - started
    with stopwatch() as predicted:
        test = torch.as_tensor(work.arrays["test_ends"])
        extinction = predict(model, *table.rays(test), m)
        density = predict(model, *table.densities(test), m)
    extinction[0] = extinction[0] + work.arrays["mean_test"]
    density = [table.std * moment for moment in density]
    density[0] = density[0] + work.arrays["mean_points"]
    work.add(
        f"M = {m}",
        taken,
        {
            "extinction": extinction[0],
            "density": density[0],
            "extinction_interval": normal_interval(*extinction),
            "density_interval": normal_interval(*density),
        },
        inducing=m,
        prediction=predicted[0].as_dict(),
    )
    work.finish()


if __name__ == "__main__":
    main()
