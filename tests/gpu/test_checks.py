"""The checks of a device, on a stand-in everywhere and on CUDA where it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from stand_in_device import STAND_IN, stand_in_device

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "bench"))

from gpu_checks import CHECKS, CPU, no_waiting

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
