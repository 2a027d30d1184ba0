"""A stand-in for a GPU: tensors of another device, which are computed on the CPU.

What fails on a GPU for reasons of place fails here, too: operands on two devices,
``numpy()`` of a tensor of the device, CPU generators for its random numbers. What makes
the host wait for the device is counted. Speed, kernels and rounding are the CPU's.

torch's ``meta`` device lends its name: the only one besides the CPU that every build of
torch knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

_aten = torch.ops.aten
# Operands may be on the CPU: copies between devices, and indices of elements.
_ACROSS = {
    _aten.copy_.default,
    _aten._to_copy.default,
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten.index_put.default,
}
# The host waits for the device: a number is asked for, or the size of a result.
_WAITS = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.repeat_interleave.Tensor,
}


STAND_IN = torch.device("meta")


class Elsewhere(torch.Tensor):
    """A tensor of the stand-in device around one of the CPU."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> Elsewhere:
        layout = {}
        if real.layout == torch.strided:
            layout = {"strides": real.stride(), "storage_offset": real.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(
            cls, real.size(), dtype=real.dtype, device=STAND_IN, **layout
        )
        made.held = real
        return made

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {}, Counter())


def _computed(func, args, kwargs, waits: Counter):
    """The operation on the CPU, its results on the device where its operands are."""
    flat = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
    there = any(isinstance(t, Elsewhere) for t in flat)
    named = kwargs.get("device")
    target = there if named is None else torch.device(named) == STAND_IN
    here = [t for t in flat if not isinstance(t, Elsewhere) and t.ndim > 0]
    if there and here and func not in _ACROSS:
        raise RuntimeError(
            f"{func}: expected all tensors to be on the same device, but found "
            f"{STAND_IN} and cpu (shapes {[tuple(t.shape) for t in flat]})"
        )
    if (
        there
        and here
        and func is _aten.index.Tensor
        and not isinstance(args[0], Elsewhere)
    ):
        raise RuntimeError("indices must be on the CPU where what they index is")
    generator = kwargs.get("generator")
    if target and generator is not None and not hasattr(generator, "stand_in"):
        raise RuntimeError(
            "expected a generator of the device, but found one of the CPU"
        )
    if there and func in _WAITS:
        waits[str(func)] += 1
    if there and not target:
        waits["to the CPU"] += 1
    if func is _aten._local_scalar_dense.default:
        return args[0].held.item()
    inner = tree_map(_real, (args, kwargs))
    if named is not None:
        inner[1]["device"] = torch.device("cpu")
    inner[1].pop("pin_memory", None)
    found = func(*inner[0], **inner[1])
    if func is _aten._to_copy.default and named is not None and found is inner[0][0]:
        found = found.clone()
    written = [a for a in flat if isinstance(a, Elsewhere)]

    def wrapped(value):
        if not isinstance(value, torch.Tensor):
            return value
        for operand in written:
            if operand.held is value:
                return operand
        return Elsewhere(value) if target else value

    return tree_map(wrapped, found)


def _real(value):
    return value.held if isinstance(value, Elsewhere) else value


class _Mode(TorchDispatchMode):
    """Takes what makes tensors from nothing, or carries them to the device."""

    def __init__(self, waits: Counter) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        flat = tree_flatten((args, kwargs))[0]
        named = kwargs.get("device")
        ours = any(isinstance(t, Elsewhere) for t in flat)
        if ours or (named is not None and torch.device(named) == STAND_IN):
            return _computed(func, args, kwargs, self.waits)
        return func(*args, **kwargs)


@contextmanager
def stand_in_device() -> Iterator[Counter]:
    """``STAND_IN`` works here; what made the host wait is counted."""
    waits: Counter = Counter()
    with _Mode(waits):
        yield waits


def generator_there(seed: int) -> torch.Generator:
    """A generator that counts as one of the device."""
    made = torch.Generator().manual_seed(seed)
    made.stand_in = True  # pyright: ignore[reportAttributeAccessIssue]
    return made
