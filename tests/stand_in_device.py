"""A stand-in for a GPU: tensors of another device, which are computed on the CPU.

What fails on a GPU for reasons of place fails here, too: operands on two devices,
``numpy()`` of a tensor of the device, CPU generators for its random numbers. What makes
the host wait for the device is counted. Speed, kernels and rounding are the CPU's.

torch's ``meta`` device lends its name: the only one besides the CPU that every build of
torch knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

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
# Conjugates and negatives that are only marked would be lost below the dispatcher.
_AT_ONCE = {
    _aten._conj.default: _aten._conj_physical.default,
    _aten._neg_view.default: _aten.neg.default,
}


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
    flat = list(_tensors((*args, *kwargs.values())))
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
    if target and generator is not None:
        raise RuntimeError(
            "expected a generator of the device, but found one of the CPU"
        )
    if there and func in _WAITS:
        waits[str(func)] += 1
    if there and not target:
        waits["to the CPU"] += 1
    if func is _aten._local_scalar_dense.default:
        return args[0].held.item()
    inner = _held(args), {name: _held(value) for name, value in kwargs.items()}
    if named is not None:
        inner[1]["device"] = torch.device("cpu")
    inner[1].pop("pin_memory", None)
    found = _AT_ONCE.get(func, func)(*inner[0], **inner[1])
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():
            # The shape of the tensor itself, which others hold.
            func(*args, **kwargs)
    if func is _aten._to_copy.default and named is not None and found is inner[0][0]:
        found = found.clone()
    written = [a for a in flat if isinstance(a, Elsewhere)]

    def wrapped(value):
        if isinstance(value, list | tuple):
            return type(value)(wrapped(each) for each in value)
        if not isinstance(value, torch.Tensor):
            return value
        for operand in written:
            if operand.held is value:
                return operand
        return Elsewhere(value) if target else value

    return wrapped(found)


def _tensors(values: Iterable) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _held(value):
    if isinstance(value, Elsewhere):
        return value.held
    if isinstance(value, list | tuple):
        return type(value)(_held(each) for each in value)
    return value


class _Mode(TorchDispatchMode):
    """Takes what makes tensors from nothing, or carries them to the device."""

    def __init__(self, waits: Counter) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        named = kwargs.get("device")
        ours = any(isinstance(t, Elsewhere) for t in _tensors(args))
        if ours or (named is not None and torch.device(named) == STAND_IN):
            return _computed(func, args, kwargs, self.waits)
        return func(*args, **kwargs)


class _Lists(TorchFunctionMode):
    """Tensors of lists are made on the CPU and carried over; a meta tensor is empty."""

    def __init__(self, waits: Counter) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.new_tensor and isinstance(args[0], Elsewhere):
            kwargs.setdefault("dtype", args[0].dtype)
            return torch.tensor(args[1], **kwargs).to(STAND_IN)
        if func is torch.Tensor.tolist and isinstance(args[0], Elsewhere):
            self.waits["tolist"] += 1
            return args[0].held.tolist()
        named = kwargs.get("device")
        there = named is not None and torch.device(named) == STAND_IN
        if func is torch.tensor and there:
            return torch.tensor(*args, **{**kwargs, "device": "cpu"}).to(STAND_IN)
        return func(*args, **kwargs)


@contextmanager
def stand_in_device() -> Iterator[Counter]:
    """``STAND_IN`` works here; what made the host wait is counted."""
    waits: Counter = Counter()
    with _Mode(waits), _Lists(waits):
        yield waits
