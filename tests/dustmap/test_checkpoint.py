"""States and their schemas."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from dustmap.checkpoint import (
    check_state,
    flatten,
    rebuild,
    require_finite,
)


@dataclass(frozen=True, kw_only=True)
class Inner:
    x: torch.Tensor
    count: int


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    done: bool


def example(length=3):
    return Outer(inner=Inner(x=torch.zeros(length, 2), count=0), done=False)


def test_a_value_is_rebuilt_from_its_entries():
    value = Outer(inner=Inner(x=torch.rand(3, 2), count=4), done=True)
    state = flatten("run", value)
    assert set(state) == {"run.inner.x", "run.inner.count", "run.done"}
    assert state["run.inner.x"] is value.inner.x
    found = rebuild("run", example(), state)
    assert torch.equal(found.inner.x, value.inner.x)
    assert (found.inner.count, found.done) == (4, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run.inner.count": 1.0}, r"count should be one int, found one float"),
        ({"run.inner.count": True}, r"count should be one int, found one bool"),
        ({"run.inner.count": None}, r"count should be one int, found nothing"),
        ({"run.inner.x": 1.0}, r"x should be a float32 .* \(3, 2\), found one float"),
        ({"run.inner.x": torch.zeros(3, 2).double()}, r"found a float64 tensor"),
        ({"run.inner.x": torch.zeros(4, 2)}, r"\(3, 2\), found .* \(4, 2\)"),
        ({"run.inner.x": torch.zeros(3)}, r"\(3, 2\), found .* \(3\)"),
        ({"run.more": 2}, r"run.more should be nothing, found one int"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(change, said):
    state = {**flatten("run", example()), **change}
    state = {name: value for name, value in state.items() if value is not None}
    with pytest.raises(ValueError, match=said):
        check_state(state, flatten("run", example()))


def test_a_part_is_there_whole_or_not_at_all():
    known = {"number": 0, "end.x": 0.0, "end.y": 0.0}
    check_state({"number": 1}, known, optional=["end"])
    check_state({"number": 1, "end.x": 1.0, "end.y": 2.0}, known, optional=["end"])
    with pytest.raises(ValueError, match=r"end\.y should be one float"):
        check_state({"number": 1, "end.x": 1.0}, known, optional=["end"])
    with pytest.raises(ValueError, match=r"number should be one int, found nothing"):
        check_state({}, known, optional=["end"])


@pytest.mark.parametrize("value", [float("nan"), torch.tensor([1.0, float("inf")])])
def test_a_value_that_is_not_finite_is_named(value):
    with pytest.raises(FloatingPointError, match="noise variance"):
        require_finite("step 3", noise_variance=value)
    require_finite("step 3", noise_variance=torch.ones(2), count=3)
