"""What a journal saves: its types, and whether a value is what it should be."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Value = Tensor | float | int | bool | str
State = dict[str, Value]
# What an entry is: a number's type, or a tensor's dtype and shape (None: any length).
Kind = type | tuple[torch.dtype, tuple[int | None, ...]]
Pattern = Mapping[str, Kind]


def like(tensor: Tensor) -> Kind:
    """The kind of tensors of this one's dtype and shape."""
    return tensor.dtype, tuple(tensor.shape)


def misfit(key: str, expected: str, found: str) -> ValueError:
    """What is raised where a saved state does not fit."""
    return ValueError(
        f"the saved state does not fit: {key} should be {expected}, found {found}. It "
        "was saved by another problem, other settings or another version: take it up "
        "with those, or start afresh"
    )


def fits(value: Value, kind: Kind) -> bool:
    """Whether a value is of a kind: ``True`` is no ``int``, and a number no tensor."""
    if isinstance(kind, type):
        return type(value) is kind
    if not isinstance(value, Tensor):
        return False
    dtype, shape = kind
    if value.dtype != dtype or value.ndim != len(shape):
        return False
    pairs = zip(value.shape, shape, strict=True)
    return all(length is None or found == length for found, length in pairs)


def kind_of(value: Value) -> str:
    """What was found, for people."""
    if isinstance(value, Tensor):
        return said((value.dtype, tuple(value.shape)))
    return f"{said(type(value))} ({value!r})"


def said(kind: Kind) -> str:
    """A kind, for people."""
    if isinstance(kind, type):
        return f"one {kind.__name__}"
    dtype, shape = kind
    lengths = ", ".join("any" if n is None else str(n) for n in shape)
    return f"a {str(dtype).removeprefix('torch.')} tensor of shape ({lengths})"


def is_finite(value: Tensor | float) -> bool:
    """Whether a number, or every one of a tensor, is finite."""
    if isinstance(value, Tensor):
        return bool(torch.isfinite(value).all())
    return math.isfinite(value)


def infinite(what: str, value: Value) -> FloatingPointError:
    """What is raised where a number is not finite."""
    numbers = torch.as_tensor(value)
    count = int((~torch.isfinite(numbers)).sum())
    return FloatingPointError(
        f"{what} is not finite ({count} of {numbers.numel()} numbers), the fit ends "
        "here. Look for extreme observations, variances or starting values; take "
        "float64, or a larger noise. What was saved before is as good as it was"
    )


def apart(value: Value, seen: set[int]) -> Value:
    """A tensor in memory of its own; every other value as it is."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().contiguous()
    storage = value.untyped_storage()
    whole = storage.nbytes() == value.numel() * value.element_size()
    if not whole or storage.data_ptr() in seen:
        value = value.clone()
    seen.add(value.untyped_storage().data_ptr())
    return value
