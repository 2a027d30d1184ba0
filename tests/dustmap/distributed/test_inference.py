"""One, two and four ranks, as one team or several: the same means and samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_ranks
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.functionals import (
    DistanceMarginalizedIntegrals,
    FixedStep,
    GaussLegendre,
    LineIntegrals,
    PointValues,
)
from dustmap.grid import Grid, Torus
from dustmap.inference.full_batch import FullBatch, FullBatchResult, infer
from dustmap.inference.svi import HipSettings, fit_svi
from dustmap.inference.svi.bound import Observations
from dustmap.kernels import Matern32
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.noise import StudentT
from dustmap.whitening import ToeplitzWhitening, TorusWhitening

COUNT = 320
BOX = Grid(shape=(9, 8), spacing=(0.5, 0.5), origin=(-2.0, -1.75))
TORUS = Torus(grid=BOX, shape=(12, 12))
STEP = FixedStep(step=0.25)
# Steps that stop early end elsewhere with every rounding of what came before.
TO_THE_END = {"newton_tolerance": 1e-14, "newton_steps": 80}
TIGHT = ConjugateGradients(rtol=1e-11, max_steps=2000)


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _ends() -> Tensor:
    unit = torch.rand(COUNT, 2, generator=rng(1), dtype=torch.float64)
    return (unit - 0.5) * torch.tensor([3.4, 3.0])


def _observed(model: ForwardModel, outliers: bool) -> tuple[Tensor, Tensor]:
    truth = model.white_noise(np.random.default_rng(4))
    clean = model.apply(truth)
    size = 0.3 * float(clean.abs().mean())
    y = clean + size * torch.randn(COUNT, generator=rng(5), dtype=torch.float64)
    if outliers:
        y[::17] += 12 * size
    return y, torch.full_like(y, (0.8 * size) ** 2)


def lognormal(group: Group, teams: Group) -> FullBatchResult:
    """Averaged sight lines, and every feature of the noise learnt."""
    ends = _ends()
    lines = DistanceMarginalizedIntegrals(
        ends,
        torch.full((COUNT,), 0.1, dtype=torch.float64),
        1.1 * torch.linalg.vector_norm(ends, dim=1),
        STEP,
    )
    model = LogNormal(
        TorusWhitening(Matern32(lengthscale=1.2, variance=0.5), TORUS),
        lines,
        mean=ConstantMean(value=1.0),
        group=group,
    )
    y, variance = _observed(model, outliers=True)
    near = torch.cdist(ends, ends).topk(6, largest=False).indices[:, 1:]
    noise = StudentT(
        stated=variance,
        blur=LineIntegrals(1.04 * ends, STEP, start=0.96 * ends),
        blur_scale=torch.full((COUNT,), 0.5, dtype=torch.float64),
        degrees=4.0,
        learn_common=True,
        learn_share=True,
        neighbours=near,
    )
    settings = FullBatch(solver=TIGHT, samples=4, preconditioner_rank=8, **TO_THE_END)
    return infer(model, y, noise, settings=settings, generator=rng(9), teams=teams)


def gaussian(group: Group, teams: Group) -> FullBatchResult:
    """A refined grid with sub-grid noise, samples in blocks, outliers."""
    model = TorusGaussian(
        TorusWhitening(Matern32(lengthscale=1.2, variance=0.5), TORUS),
        LineIntegrals(_ends(), STEP),
        residual_refinement=2,
        residual_count=4,
        generator=rng(2),
        group=group,
    )
    y, variance = _observed(model, outliers=True)
    # A gain of 1e-14 nats a star is a step of 1e-7: the gradient decides.
    to_the_end = {**TO_THE_END, "newton_tolerance": 0.0}
    settings = FullBatch(
        solver=TIGHT, samples=5, block=2, preconditioner_rank=8, **to_the_end
    )
    noise = StudentT(stated=variance, degrees=4.0)
    return infer(model, y, noise, settings=settings, generator=rng(7), teams=teams)


def minibatches(group: Group, rate: float) -> dict[str, Any]:
    """HIP-GP's rows, with fixed and with learnt hyperparameters."""
    small = Grid(shape=(6, 5), spacing=(0.8, 0.8), origin=(-2.0, -1.6))
    whitening = ToeplitzWhitening(
        Matern32(lengthscale=1.2, variance=0.5),
        small,
        lengthscales=(1.2, 1.2),
        nugget=1e-4,
        solver=TIGHT,
    )
    rays = LineIntegrals(_ends()[:45], GaussLegendre(count=4))
    model = RowwiseGaussian(whitening, rays, group=group)
    y = torch.sin(torch.arange(45.0, dtype=torch.float64))
    data = Observations.of(model, y, torch.full_like(y, 0.01))
    settings = HipSettings(
        batch_size=22,
        epochs=2,
        rate=rate or 0.03,
        learn=("kernel", "likelihood") if rate else (),
        mean_tolerance=1e-11,
    )
    found = fit_svi(model, data, settings, generator=rng(3))
    return {
        "mean": found.q.mean,
        "samples": found.q.sample(3, np.random.default_rng(9)),
        "bound": torch.tensor(found.bound, dtype=torch.float64),
        "rows": torch.tensor([found.rows.rows, found.rows.iterations]),
        **found.learnt,
    }


def _numbers(result: FullBatchResult) -> dict[str, Any]:
    learnt = [result.common_noise, result.subgrid_share, result.degrees]
    return {
        "mean": result.mean,
        "samples": result.samples,
        "noise_variance": result.noise_variance,
        "weights": result.weights,
        "learnt": torch.tensor([float(x or 0) for x in learnt], dtype=torch.float64),
    }


def _full_batch(group: Group, count: int) -> dict[str, dict[str, Any]]:
    team, teams = group.split(count)
    return {
        "lognormal": _numbers(lognormal(team, teams)),
        "gaussian": _numbers(gaussian(team, teams)),
    }


def _all(group: Group) -> dict[str, dict[str, Any]]:
    return {
        **_full_batch(group, 1),
        "svi": minibatches(group, 0.0),
        "svi, learning": minibatches(group, 0.05),
    }


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    return _all(Group())


# Four wait for each other most of the time where there are two cores.
@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, dict[str, Any]]]:
    return on_ranks(_all, request.param, seconds=400.0)


@pytest.mark.parametrize("engine", ["lognormal", "gaussian", "svi", "svi, learning"])
def test_any_number_of_ranks_finds_the_same(
    alone: dict[str, dict[str, Any]],
    ranks: list[dict[str, dict[str, Any]]],
    engine: str,
) -> None:
    _compare(alone, ranks, engine)


# Two teams of one rank; of four ranks, two teams of two and four of one.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "teams"),
    [
        (2, 2),
        pytest.param(4, 2, marks=pytest.mark.slow),
        pytest.param(4, 4, marks=pytest.mark.slow),
    ],
)
def test_teams_that_share_out_samples_find_the_same(
    alone: dict[str, dict[str, Any]], size: int, teams: int
) -> None:
    found = on_ranks(_full_batch, size, teams, seconds=400.0)
    for engine in found[0]:
        _compare(alone, found, engine)


def _compare(
    alone: dict[str, dict[str, Any]],
    ranks: list[dict[str, dict[str, Any]]],
    engine: str,
) -> None:
    errors = {}
    for name, expected in alone[engine].items():
        for one in ranks:
            assert torch.equal(one[engine][name], ranks[0][engine][name]), name
        error = (ranks[0][engine][name] - expected).abs().max()
        errors[name] = float(error / max(1.0, float(expected.abs().max())))
    print(engine, len(ranks), errors)
    assert all(error < 1e-8 for error in errors.values()), errors


def test_what_is_learnt_is_no_default(alone: dict[str, dict[str, Any]]) -> None:
    common, share, degrees = alone["lognormal"]["learnt"].tolist()
    assert common > 0 and share != 1.0 and degrees < 100
    assert float(alone["lognormal"]["weights"].min()) < 0.3


def _apart(group: Group) -> str:
    model = LogNormal(
        TorusWhitening(Matern32(lengthscale=1.2, variance=0.5), TORUS),
        PointValues(torch.zeros(3, 2, dtype=torch.float64)),
        mean=ConstantMean(value=1.0),
        group=group,
    )
    eps = torch.zeros(model.latent_size, dtype=torch.float64)
    eps[5] = 1e-300 * group.rank
    try:
        model.linearise(eps)
    except RuntimeError as error:
        return str(error)
    return "not noticed"


def test_a_rank_that_computes_something_else_is_noticed() -> None:
    for message in on_ranks(_apart, 2):
        assert "another on rank 1 than on rank 0" in message
