"""The checks of a device, on a stand-in everywhere and on CUDA where it is."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stand_in_device import STAND_IN, stand_in_device

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "bench"))

from gpu_checks import CHECKS, CPU, no_waiting, shared_dust

from dustmap.residual.kriging import TABLE_ERROR
from dustmap.residual.neighbours import nearest, without_self

NAMES = [check.__name__ for check in CHECKS]


# Places are wrong in both precisions or in none: what takes longest has one.
DEAR = ("whole_inference", "neighbourhoods", "row_by_row")
WAYS = [
    pytest.param(check, dtype, id=f"{check.__name__}-{dtype}")
    for check in CHECKS
    for dtype in (torch.float32, torch.float64)
    if dtype == torch.float32 or check.__name__ not in DEAR
]


@pytest.mark.slow
@pytest.mark.parametrize(("check", "dtype"), WAYS)
def test_on_a_stand_in_for_a_device(check, dtype):
    with stand_in_device():
        assert check(STAND_IN, dtype) <= 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
def test_on_cuda(check, dtype):
    assert check(torch.device("cuda"), dtype) <= 1


def test_a_wait_for_the_device_is_seen():
    with stand_in_device(), no_waiting(STAND_IN) as watched:
        x = torch.ones(3, device=STAND_IN)
        assert float(x.sum()) == 3
        for wait in (lambda: x.cpu(), lambda: float(x.sum()), lambda: bool(x.any())):
            with pytest.raises(AssertionError, match="wait"):
                watched(wait)()
    with no_waiting(CPU) as watched:
        assert watched(lambda: float(torch.ones(3).sum()))() == 3


@pytest.mark.slow
def test_batches_stay_below_the_limits_of_batched_routines(monkeypatch):
    # With more than 65,535 systems some of them failed or were wrong on CUDA.
    field, sizes, factors = shared_dust(70_000), [], torch.linalg.cholesky_ex
    points = field.rays.coordinates(20.0)
    near = without_self(nearest(points, points, 3))

    def counted(matrices):
        sizes.append(len(matrices))
        return factors(matrices)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted)
    here = field.krige(field.rays, near)
    with stand_in_device():
        there = replace(field, device=STAND_IN).krige(field.rays, near)
    assert sum(sizes) == 70_000 and max(sizes) <= 65_535
    torch.testing.assert_close(there.variance, here.variance, rtol=1e-5, atol=0)


def test_stars_at_one_place_without_noise_are_solved_as_on_the_cpu():
    field = shared_dust(40)
    rays = field.rays[torch.zeros(40, dtype=torch.int64)]
    field = replace(field, rays=rays, noise=torch.zeros_like(field.noise))
    near = torch.arange(20).expand(3, 20)
    here = field.krige(rays[:3], near)
    with stand_in_device():
        there = replace(field, device=STAND_IN).krige(rays[:3], near)
    torch.testing.assert_close(there.variance, here.variance, rtol=1e-5, atol=0)
    assert bool((there.variance >= TABLE_ERROR * there.prior).all())
    bad = replace(field, device=STAND_IN, noise=field.noise - 1e3)
    with stand_in_device(), pytest.raises(FloatingPointError, match="3 of 3"):
        bad.krige(rays[:3], near)


def test_a_factor_of_nan_without_a_status_is_an_error(monkeypatch):
    # Batched factorisations of some libraries return NaN for large matrices.
    field, factors = shared_dust(60), torch.linalg.cholesky_ex
    ends = field.rays.directions * field.rays.lengths[:, None]
    values = torch.full((3, 60), 0.5, dtype=torch.float64)

    def spoilt(matrices):
        factor, status = factors(matrices)
        return factor * float("nan"), status

    there = replace(field, device=STAND_IN)
    with stand_in_device():
        assert bool(there.correct(ends, values)[0].isfinite().all())
        monkeypatch.setattr(torch.linalg, "cholesky_ex", spoilt)
        with pytest.raises(FloatingPointError, match="60 of 60"):
            there.krige(field.rays, torch.arange(12).expand(60, 12))
        with pytest.raises(FloatingPointError):
            there.correct(ends, values)
