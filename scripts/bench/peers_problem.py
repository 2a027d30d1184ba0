"""One simulated catalogue for all methods, and what the peers are given of it.

The dust is a log-normal field times a disc, so that methods with a log-normal prior
have the right one. Stars have exact distances and Gaussian errors as stated. The
peers get the line integrals as the sparse matrix that `dustmap` itself uses.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from peers_worker import PROBLEM, now

from dustmap.functionals import FixedStep, Functionals, LineIntegrals, PointValues
from dustmap.grid import Grid, Torus, smooth_size
from pipelines.catalog.schema import Stars, write_stars
from pipelines.config import FitConfig, SimulateConfig, load_config
from pipelines.planning.prior import learn_prior, start_scales
from pipelines.simulate import simulate

HALF = (2000.0, 2000.0, 1000.0)
_GALAXY = (
    "truth.half_x=2000",
    "truth.half_y=2000",
    "truth.half_z=1000",
    "dust.scale_height=300",
    "dust.clouds=0",
    "dust.cavities=0",
    "dust.stirring=0",
    "errors.extinction=0.03",
    "errors.parallax=0",
    "errors.outliers=0",
)
# Of the box, added to every side of the torus that the peers' field is periodic on.
_MARGIN = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Mock:
    """The stars to fit, those to predict, and the folder with both as tables.

    ``test`` keeps ``extinction_true`` and ``density_true``; the tables do not.
    """

    folder: Path
    train: Stars
    test: Stars

    @property
    def truth(self) -> dict[str, np.ndarray]:
        """Noise-free extinction [mag] and density [mag/pc] of the test stars."""
        extra = self.test.extra
        return {
            "extinction": extra["extinction_true"],
            "density": extra["density_true"],
        }

    @property
    def stars(self) -> Path:
        """The table to fit."""
        return self.folder / "stars.parquet"

    @property
    def targets(self) -> Path:
        """The table to predict."""
        return self.folder / "targets.parquet"


def make_mock(
    folder: Path, *, stars: int, targets: int, seed: int, spacing: float
) -> Mock:
    """Simulate, and write the two tables without what only the truth knows."""
    overrides = [*_GALAXY, f"truth.spacing={spacing}", f"seed={seed}"]
    overrides.append(f"stars={stars + targets}")
    everything = simulate(load_config(SimulateConfig, overrides=overrides)).stars
    mock = Mock(
        folder=folder,
        train=everything.select(slice(0, stars)),
        test=everything.select(slice(stars, None)),
    )
    write_stars(mock.stars, _observed(mock.train), overwrite=True)
    write_stars(mock.targets, _observed(mock.test), overwrite=True)
    return mock


def _observed(stars: Stars) -> Stars:
    return Stars(
        l=stars.l,
        b=stars.b,
        distance=stars.distance,
        extinction=stars.extinction,
        extinction_error=stars.extinction_error,
        source_id=stars.source_id,
    )


def make_problem(
    mock: Mock, folder: Path, shape: tuple[int, ...], *, prior: bool
) -> dict[str, Any]:
    """Write ``problem.npz`` for one grid; with ``prior`` the Gaussian one is searched.

    Returns the CPU seconds of the projection and of the search.
    """
    lower = -np.array(HALF)
    grid = Grid(
        shape=shape,
        spacing=tuple(float(s) for s in -2 * lower / (np.array(shape) - 1)),
        origin=tuple(float(x) for x in lower),
    )
    size = tuple(smooth_size(int(np.ceil((1 + _MARGIN) * n))) for n in shape)
    torus = Torus(grid=grid, shape=size)
    train, test = mock.train.positions(), mock.test.positions()
    rule = FixedStep(step=0.5 * min(grid.spacing))
    started = now()
    arrays = {
        **_sparse("train", torus, LineIntegrals(torch.as_tensor(train), rule)),
        **_sparse("test", torus, LineIntegrals(torch.as_tensor(test), rule)),
        **_sparse("points", torus, PointValues(torch.as_tensor(test))),
    }
    facts: dict[str, Any] = {"projection_cpu_seconds": (now() - started).cpu}
    if prior:
        started = now()
        arrays |= learnt_prior(mock.train, test, rule)
        facts["search_cpu_seconds"] = (now() - started).cpu
    extinction, sigma = mock.train.extinction, mock.train.extinction_error
    assert extinction is not None
    assert sigma is not None
    np.savez(
        folder / PROBLEM,
        **arrays,
        torus=np.array(size),
        spacing=np.array(grid.spacing),
        lower=lower,
        upper=-lower,
        heights=np.abs(lower[2] + np.arange(size[2]) * grid.spacing[2]),
        mean_density=extinction.sum() / mock.train.distance.sum(),
        extinction=extinction,
        sigma=sigma,
        ends=train,
        test_ends=test,
    )
    return facts | {"torus": list(size)}


def _sparse(name: str, torus: Torus, functionals: Functionals) -> dict[str, Any]:
    matrix = interpolation(torus, functionals)
    return {
        f"{name}_data": matrix.data.astype(np.float32),
        f"{name}_indices": matrix.indices.astype(np.int32),
        f"{name}_indptr": matrix.indptr.astype(np.int64),
    }


def interpolation(torus: Torus, functionals: Functionals) -> scipy.sparse.csr_matrix:
    """The matrix of `dustmap.projection.projection` by linear weights, as arrays."""
    pieces = []
    for _, part in functionals.chunks(4096):
        nodes = part.nodes()
        place = nodes.points.numpy() - np.array(torus.grid.origin)
        base, part_way = np.divmod(place / np.array(torus.grid.spacing), 1.0)
        matrix = scipy.sparse.csr_matrix((nodes.count, torus.size))
        for corner in itertools.product((0, 1), repeat=3):
            weight = nodes.weights.numpy() * np.prod(
                np.where(corner, part_way, 1 - part_way), axis=1
            )
            cell = (base.astype(np.int64) + corner) % np.array(torus.shape)
            column = np.ravel_multi_index(tuple(cell.T), torus.shape)
            entries = (weight, (nodes.rows.numpy(), column))
            matrix += scipy.sparse.csr_matrix(entries, shape=matrix.shape)
        pieces.append(matrix)
    return scipy.sparse.csr_matrix(scipy.sparse.vstack(pieces, format="csr"))


def learnt_prior(
    stars: Stars, test: np.ndarray, rule: FixedStep
) -> dict[str, np.ndarray]:
    """What `dustmap` finds for a Gaussian density, and what the stars see of the mean.

    ``gaussian_prior`` holds lengthscale [pc], standard deviation [mag/pc] and common
    noise [mag].
    """
    config = load_config(FitConfig, overrides=["model.density=gaussian"])
    generator = torch.Generator().manual_seed(0)
    chosen, _ = start_scales(stars, config)
    learnt = learn_prior(
        chosen, stars, config, generator=generator, on_step=lambda *_: None
    )
    if learnt is not None:
        chosen, _ = learnt
    mean = chosen.mean
    ends = [torch.as_tensor(x) for x in (stars.positions(), test)]
    return {
        "gaussian_prior": np.array(
            [chosen.lengthscale[0], chosen.std, chosen.common_noise**0.5]
        ),
        "mean_train": mean.observed(LineIntegrals(ends[0], rule)).numpy(),
        "mean_test": mean.observed(LineIntegrals(ends[1], rule)).numpy(),
        "mean_points": mean(ends[1]).numpy(),
    }
