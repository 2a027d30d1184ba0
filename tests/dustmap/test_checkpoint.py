"""Progress that is taken up, and numbers that are none."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from dustmap.checkpoint import require_finite, restored


@dataclass(frozen=True, kw_only=True)
class Inner:
    x: torch.Tensor
    generator: torch.Tensor
    count: int


@dataclass(frozen=True, kw_only=True)
class Outer:
    parts: tuple[Inner, ...]
    more: Inner | None = None


def outer(x):
    inner = Inner(x=x, generator=torch.zeros(5, dtype=torch.uint8), count=4)
    return Outer(parts=(inner,))


@pytest.mark.parametrize("x", [torch.rand(2), torch.rand(3, 2)])
def test_progress_is_taken_up_if_its_tensors_are_like_the_own_ones(x):
    found = restored(outer(x), {"x": torch.zeros(2)})
    assert torch.equal(found.parts[0].x, x)
    assert found.parts[0].count == 4 and found.more is None


@pytest.mark.parametrize("x", [torch.rand(3), torch.rand(2, 3), torch.rand(2).double()])
def test_a_tensor_unlike_the_own_one_is_refused_by_name(x):
    with pytest.raises(ValueError, match=r"does not fit: state\.parts\.x should be"):
        restored(outer(x), {"x": torch.zeros(2)})


def test_tensors_come_to_the_device_and_states_of_generators_stay():
    found = restored(outer(torch.rand(2)), {"x": torch.zeros(2, device="meta")})
    (inner,) = found.parts
    assert inner.x.device.type == "meta" and inner.generator.device.type == "cpu"


@pytest.mark.parametrize("value", [float("nan"), torch.tensor([1.0, float("inf")])])
def test_a_value_that_is_not_finite_is_named(value):
    with pytest.raises(FloatingPointError, match="noise variance"):
        require_finite("step 3", noise_variance=value)
    require_finite("step 3", noise_variance=torch.ones(2), count=3)
