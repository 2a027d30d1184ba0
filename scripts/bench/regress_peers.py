"""Other programs on the tables of `regress`: one table, one program, one process.

=============  ==================================================================
``scipy``      `RBFInterpolator` of 50 neighbours, linear kernel with a smoothing
               that is the best of five for withheld rows; no uncertainty
``sklearn``    `GaussianProcessRegressor` of 2,000 random rows, Matérn-3/2 with one
               lengthscale per input and white noise
``kiss``       GPyTorch's KISS-GP: Matérn-3/2 on a grid of as many points as rows, 30
               steps of Adam at .1, as its tutorial
``svgp``       GPyTorch's SVGP: 500 points, batches of 1,024, 10 passes, Adam at .01
=============  ==================================================================

Inputs and targets are standardised by the rows to fit.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

Moments = tuple[np.ndarray, np.ndarray | None]


def scipy(x: np.ndarray, y: np.ndarray, places: np.ndarray) -> Moments:
    """Local radial basis functions."""
    from scipy.interpolate import RBFInterpolator

    order = np.random.default_rng(0).permutation(len(x))
    count = min(1000, len(x) // 10)
    held, rest = order[:count], order[count:]

    def made(rows: np.ndarray, smoothing: float) -> Callable[[np.ndarray], np.ndarray]:
        return RBFInterpolator(
            x[rows], y[rows], neighbors=50, smoothing=smoothing, kernel="linear"
        )

    trials = (1e-6, 1e-3, 1e-2, 0.1, 1.0)
    errors = [np.mean((made(rest, s)(x[held]) - y[held]) ** 2) for s in trials]
    return made(order, trials[int(np.argmin(errors))])(places), None


def sklearn(x: np.ndarray, y: np.ndarray, places: np.ndarray) -> Moments:
    """The exact process of a few rows."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    some = np.random.default_rng(0).permutation(len(x))[:2000]
    scales: Any = np.ones(x.shape[1])
    matern = Matern(length_scale=scales, nu=1.5)
    kernel = ConstantKernel() * matern + WhiteKernel()
    model = GaussianProcessRegressor(kernel=kernel, random_state=0)
    model.fit(x[some], y[some])
    parts = np.array_split(places, len(places) // 10_000 + 1)
    found = [model.predict(part, return_std=True) for part in parts]
    mean, std = (np.concatenate(part) for part in zip(*found, strict=True))
    return mean, std


def kiss(x: np.ndarray, y: np.ndarray, places: np.ndarray) -> Moments:
    """Structured kernel interpolation (Wilson & Nickisch 2015)."""
    import gpytorch
    import torch

    rows, targets, there = (torch.from_numpy(a).float() for a in (x, y, places))
    size = gpytorch.utils.grid.choose_grid_size(rows, 1.0)
    kernels = gpytorch.kernels

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: object) -> None:
            super().__init__(rows, targets, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            inner = kernels.ScaleKernel(
                kernels.MaternKernel(nu=1.5, ard_num_dims=x.shape[1])
            )
            self.covar_module = kernels.GridInterpolationKernel(
                inner, grid_size=size, num_dims=x.shape[1]
            )

        def forward(self, at: torch.Tensor) -> object:
            normal = gpytorch.distributions.MultivariateNormal
            return normal(self.mean_module(at), self.covar_module(at))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(likelihood)
    gain = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    torch.manual_seed(0)
    for _ in range(30):
        optimiser.zero_grad()
        loss = -gain(model(rows), targets)
        loss.backward()
        optimiser.step()
    model.eval()
    likelihood.eval()
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        found = [likelihood(model(part)) for part in there.split(10_000)]
    mean, variance = ([getattr(f, n) for f in found] for n in ("mean", "variance"))
    return torch.cat(mean).numpy(), torch.cat(variance).sqrt().numpy()


def svgp(x: np.ndarray, y: np.ndarray, places: np.ndarray) -> Moments:
    """Stochastic variational inference (Hensman et al. 2015)."""
    import gpytorch
    import torch

    rows, targets, there = (torch.from_numpy(a).float() for a in (x, y, places))
    torch.manual_seed(0)
    variational, kernels = gpytorch.variational, gpytorch.kernels
    points = rows[torch.randperm(len(rows))[:500]].clone()

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            own = variational.CholeskyVariationalDistribution(len(points))
            super().__init__(variational.VariationalStrategy(self, points, own))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = kernels.ScaleKernel(
                kernels.MaternKernel(nu=1.5, ard_num_dims=x.shape[1])
            )

        def forward(self, at: torch.Tensor) -> object:
            normal = gpytorch.distributions.MultivariateNormal
            return normal(self.mean_module(at), self.covar_module(at))

    likelihood, model = gpytorch.likelihoods.GaussianLikelihood(), Model()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(rows))
    free = [*model.parameters(), *likelihood.parameters()]
    optimiser = torch.optim.Adam(free, lr=0.01)
    for _ in range(10):
        for some in torch.randperm(len(rows)).split(1024):
            optimiser.zero_grad()
            loss = -bound(model(rows[some]), targets[some])
            loss.backward()
            optimiser.step()
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        found = [likelihood(model(part)) for part in there.split(10_000)]
    mean, variance = ([getattr(f, n) for f in found] for n in ("mean", "variance"))
    return torch.cat(mean).numpy(), torch.cat(variance).sqrt().numpy()


PEERS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Moments]] = {
    "scipy": scipy,
    "sklearn": sklearn,
    "kiss": kiss,
    "svgp": svgp,
}


def main() -> None:
    peer, table, output = sys.argv[1:]
    columns = {n: c.to_numpy() for n, c in zip(*_named(Path(table)), strict=True)}
    test, y = columns.pop("test") == 1, columns.pop("y")
    x = np.stack(list(columns.values()), axis=1)
    x = (x - x[~test].mean(axis=0)) / x[~test].std(axis=0)
    y = (y - y[~test].mean()) / y[~test].std()
    mean, std = PEERS[peer](x[~test], y[~test], x[test])
    error = mean - y[test]
    scores = {"RMSE": np.mean(error**2) ** 0.5, "MAE": np.abs(error).mean()}
    if std is not None:
        z = np.abs(error) / std
        nll = np.mean(z**2 / 2 + np.log(std)) + np.log(2 * np.pi) / 2
        scores |= {"NLL": nll, "in 68%": np.mean(z < 1), "in 95%": np.mean(z < 1.96)}
    Path(output).write_text(json.dumps({k: float(v) for k, v in scores.items()}))


def _named(path: Path) -> tuple[list[str], list[Any]]:
    table = pq.read_table(path)
    return table.column_names, table.columns


if __name__ == "__main__":
    main()
