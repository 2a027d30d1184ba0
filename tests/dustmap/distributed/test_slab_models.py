"""Fields on grids in slabs: operators and posteriors are those of one process."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from ranks import on_ranks
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.distributed.slabs import Slabs, SlabSpace
from dustmap.functionals import (
    Derivatives,
    DistanceMarginalizedIntegrals,
    FixedStep,
    Functionals,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.grid import Grid, Torus
from dustmap.inference.full_batch import FullBatch, FullBatchResult, Noise, infer
from dustmap.kernels import Matern32
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ExponentialDisc
from dustmap.models.slab import SlabGaussian, SlabLogNormal
from dustmap.projection import Interpolation, projection, slab_projection
from dustmap.whitening import SlabTorusWhitening, TorusWhitening

BOX = Grid(shape=(6, 5, 4), spacing=(0.5, 0.6, 0.7), origin=(-1.2, -1.1, -1.0))
# Six planes of the box; padded by one, so that cubic weights wrap around.
TORUS = Torus(grid=BOX, shape=(7, 6, 5))
CUTS = {2: (0, 3, 7), 4: (0, 1, 3, 6, 7)}
KERNEL = Matern32(lengthscale=0.9, variance=0.6)
STEP = FixedStep(step=0.2)
DISC = ExponentialDisc(
    value=0.8, scale_height=1.5, scale_length=4.0, centre_distance=8.0
)
COUNT = 60
TIGHT = ConjugateGradients(rtol=1e-11, max_steps=2000)


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def _ends(seed: int = 1) -> Tensor:
    unit = torch.rand(COUNT, 3, generator=rng(seed), dtype=torch.float64)
    lower, upper = torch.tensor(BOX.lower), torch.tensor(BOX.upper)
    ends = lower + (0.03 + 0.94 * unit) * (upper - lower)
    # A ray without length, and one that ends on the last face.
    ends[0], ends[1, 0] = 0.0, BOX.upper[0]
    return ends


def _kinds() -> list[Functionals]:
    ends = _ends()
    lengths = torch.linalg.vector_norm(0.8 * ends, dim=1)
    blurred = DistanceMarginalizedIntegrals(
        0.8 * ends, torch.full((COUNT,), 0.1).double(), 1.1 * lengths, STEP
    )
    parts = [PointValues(ends), Derivatives(ends, 0), blurred]
    return [LineIntegrals(ends, STEP), Stack(parts), LineIntegrals(ends[:0], STEP)]


def _slabs(group: Group) -> Slabs:
    return Slabs(shape=TORUS.shape, cuts=CUTS[group.size], group=group)


def _projections(group: Group) -> list[float]:
    slabs, errors = _slabs(group), []
    ways: list[tuple[Interpolation, float | None]]
    ways = [("linear", None), ("linear", 0.0), ("cubic", None), ("cubic", 0.0)]
    for functionals, (interpolation, budget) in itertools.product(_kinds(), ways):
        whole = projection(TORUS, functionals, interpolation=interpolation)
        parted = slab_projection(
            TORUS, functionals, slabs, interpolation=interpolation, memory_budget=budget
        )
        n = len(functionals)
        assert parted.stored == (budget is None)
        assert parted.nonzeros == whole.nonzeros or not parted.stored
        x, y = _random(2, TORUS.size, seed=2), _random(2, n, seed=3)
        w = torch.linspace(0.5, 2.0, n, dtype=torch.float64)
        pairs = [
            (parted.matvec(slabs.own(x)), whole.matvec(x)),
            (slabs.whole(parted.rmatvec(y)), whole.rmatvec(y)),
            (slabs.whole(parted.gram(slabs.own(x), w)), whole.gram(x, w)),
        ]
        errors += [float((a - b).abs().max()) for a, b in pairs if b.numel()]
    return errors


def _whitenings(group: Group) -> dict[str, Any]:
    slabs = _slabs(group)
    one = TorusWhitening(KERNEL, TORUS)
    parted = SlabTorusWhitening(KERNEL, TORUS, group=group, cuts=slabs.cuts)
    x = _random(2, TORUS.size, seed=4)
    own = slabs.own(x)
    field, eps = parted.prior_draw(rng(5), 2)
    pairs = [
        (parted.colour(own), one.colour(x)),
        (parted.colour_transpose(own), one.colour_transpose(x)),
        (parted.whiten(own), one.whiten(x)),
    ]
    again = parted.with_kernel(
        KERNEL.with_parameters({"variance": torch.tensor(2.4, dtype=torch.float64)})
    )
    refused = ""
    try:
        parted.refined(2)
    except ValueError as error:
        refused = str(error)
    gaps = [float((slabs.whole(a) - b).abs().max()) for a, b in pairs]
    return {
        "errors": [*gaps, float((parted.colour(eps) - field).abs().max())],
        "doubled": float((again.colour(own) - 2 * parted.colour(own)).abs().max()),
        "field": slabs.whole(field),
        "reports": [
            (w.report.dropped_modes, w.report.wrap_error) for w in (parted, one)
        ],
        "refused": refused,
    }


def gaussian(group: Group | None) -> tuple[ForwardModel, FullBatchResult]:
    ends = _ends()
    seen = Stack([LineIntegrals(ends, STEP), PointValues(_ends(8)[:20])])
    if group is None:
        model = TorusGaussian(_one_process(), seen, mean=DISC, generator=rng(2))
    else:
        model = SlabGaussian(_in_slabs(group), seen, mean=DISC)
    y = model.offset + 0.3 * _random(COUNT + 20, seed=6)
    noise = torch.full_like(y, 0.01)
    settings = FullBatch(solver=TIGHT, samples=5, block=2, preconditioner_rank=8)
    return model, infer(model, y, noise, settings=settings, generator=rng(7))


def lognormal(group: Group | None) -> tuple[ForwardModel, FullBatchResult]:
    ends = _ends()
    lines = LineIntegrals(ends, STEP)
    if group is None:
        model = LogNormal(_one_process(), lines, mean=DISC)
    else:
        model = SlabLogNormal(_in_slabs(group), lines, mean=DISC)
    clean = projection(TORUS, lines).matvec(0.8 * torch.exp(_field()))
    size = 0.05 * float(clean.abs().mean())
    y = clean + size * _random(COUNT, seed=9)
    y[::17] += 40 * size
    noise = Noise(
        variance=torch.full_like(y, size**2),
        blur=LineIntegrals(0.98 * ends, GaussLegendre(count=3), start=0.92 * ends),
        blur_scale=torch.full((COUNT,), 0.5, dtype=torch.float64),
        degrees=4.0,
        learn_common=True,
    )
    settings = FullBatch(
        solver=TIGHT,
        samples=4,
        preconditioner_rank=8,
        newton_tolerance=1e-12,
    )
    return model, infer(model, y, noise, settings=settings, generator=rng(7))


def _field() -> Tensor:
    return TorusWhitening(KERNEL, TORUS).colour(_random(TORUS.size, seed=4))


def _one_process() -> TorusWhitening:
    """Whole vectors; white noise by the rule of slabs."""
    whitening = TorusWhitening(KERNEL, TORUS)
    whitening.space = SlabSpace(Slabs.even(TORUS.shape, Group()))
    return whitening


def _in_slabs(group: Group) -> SlabTorusWhitening:
    return SlabTorusWhitening(KERNEL, TORUS, group=group, cuts=CUTS[group.size])


def _numbers(result: FullBatchResult) -> dict[str, Tensor]:
    learnt = [result.common_noise, float(result.degrees or 0)]
    return {
        "mean": result.mean,
        "samples": result.samples,
        "prediction": result.prediction,
        "noise_variance": result.noise_variance,
        "weights": result.weights,
        "learnt": torch.tensor(learnt, dtype=torch.float64),
    }


def _posteriors(group: Group | None) -> dict[str, dict[str, Tensor]]:
    found = {}
    for name, (model, result) in {
        "gaussian": gaussian(group),
        "lognormal": lognormal(group),
    }.items():
        numbers = _numbers(result)
        if group is not None:
            assert isinstance(model, SlabGaussian | SlabLogNormal)
            for name_of in ("mean", "samples"):
                numbers[name_of] = model.slabs.whole(numbers[name_of])
        found[name] = numbers
    return found


def _everything(group: Group) -> dict[str, Any]:
    model = SlabGaussian(_in_slabs(group), LineIntegrals(_ends(), STEP))
    return {
        "projections": _projections(group),
        "whitenings": _whitenings(group),
        "posteriors": _posteriors(group),
        "sizes": (model.latent_size, model.weights.bytes),
    }


# Four wait for each other most of the time where there are two cores.
@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return on_ranks(_everything, request.param, seconds=280.0)


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Tensor]]:
    return _posteriors(None)


def test_columns_of_w_are_those_of_the_whole(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert len(found["projections"]) == 32
        assert max(found["projections"]) < 1e-12


def test_whitening_is_that_of_the_whole_torus(ranks: list[dict[str, Any]]) -> None:
    draws = SlabTorusWhitening(KERNEL, TORUS, group=Group()).prior_draw(rng(5), 2)
    for found in ranks:
        whitenings = found["whitenings"]
        assert max(whitenings["errors"]) < 1e-12
        assert whitenings["doubled"] < 1e-12
        assert torch.allclose(whitenings["field"], draws[0], atol=1e-12)
        parted, one = whitenings["reports"]
        assert parted == pytest.approx(one, rel=1e-9)
        assert "refinement 1 only, got 2" in whitenings["refused"]


@pytest.mark.parametrize("case", ["gaussian", "lognormal"])
def test_posteriors_are_those_of_one_process(
    ranks: list[dict[str, Any]], alone: dict[str, dict[str, Tensor]], case: str
) -> None:
    expected = alone[case]
    # Fits moved the numbers far from where they started.
    assert float(expected["mean"].abs().max()) > 0.5
    for found in ranks:
        numbers = found["posteriors"][case]
        for name, value in expected.items():
            gap = float((numbers[name] - value).abs().max())
            assert gap < 1e-8 * max(1.0, float(value.abs().max())), name
    for name, value in ranks[0]["posteriors"][case].items():
        assert all(torch.equal(r["posteriors"][case][name], value) for r in ranks)


def test_no_rank_holds_the_whole(ranks: list[dict[str, Any]]) -> None:
    sizes = [found["sizes"][0] for found in ranks]
    assert sum(sizes) == TORUS.size and max(sizes) < 0.7 * TORUS.size
    whole = projection(TORUS, LineIntegrals(_ends(), STEP)).bytes
    pointers = 8 * (COUNT + 1)
    parts = [found["sizes"][1] - pointers for found in ranks]
    assert sum(parts) == whole - pointers
