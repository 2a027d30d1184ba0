"""The state that a long computation saves between steps and resumes from.

A state is flat: tensors and plain values by name, ``part.name`` for those of a part. It
holds only values that cannot be recomputed with the same bits. A state from a file is
compared with an example before use (`check_state`), as the file may belong to another
problem.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

# Tensors, numbers, truth values and strings.
State = dict[str, Any]

T = TypeVar("T")


class Checkpointer(Protocol):
    """Storage for the states of a computation."""

    def save(self, state: State) -> None:
        """Take the state after a step, to be written now, later or never.

        The computation does not change tensors of a saved state. An exception here ends
        the computation, which can be resumed from the state.
        """
        ...

    def restore(self) -> State | None:
        """Return the state to resume from, once; ``None`` for a fresh start."""
        ...


def flatten(name: str, value: Any) -> State:
    """Return the entries of a value; of a dataclass as ``name.field``, recursively."""
    if not is_dataclass(value):
        return {name: value}
    found: State = {}
    for field in fields(value):
        found |= flatten(f"{name}.{field.name}", getattr(value, field.name))
    return found


def rebuild(name: str, example: T, state: State) -> T:
    """Return a value like the example, on its device; the inverse of `flatten`."""
    if is_dataclass(example) and not isinstance(example, type):
        found = {
            field.name: rebuild(
                f"{name}.{field.name}", getattr(example, field.name), state
            )
            for field in fields(example)
        }
        return replace(example, **found)
    value = state[name]
    return value.to(example.device) if isinstance(example, Tensor) else value


def scoped(part: str, state: State) -> State:
    """Return a state as a part of another."""
    return {f"{part}.{name}": value for name, value in state.items()}


def part_of(state: State, part: str) -> State:
    """Return the entries of a part."""
    start = f"{part}."
    found = {n: value for n, value in state.items() if n.startswith(start)}
    return {name.removeprefix(start): value for name, value in found.items()}


def check_state(
    state: State,
    example: State,
    *,
    optional: Collection[str] = (),
    any_length: Collection[str] = (),
) -> None:
    """Compare a restored state with an example.

    Parameters
    ----------
    example
        A state of this problem and these settings.
    optional
        Parts that may be missing as a whole.
    any_length
        Tensors whose first dim may differ.

    Raises
    ------
    ValueError
        If an entry is missing, unknown, or of another type, dtype or shape.
    """
    absent = {part for part in optional if not part_of(state, part)}
    expected = {n: v for n, v in example.items() if n.split(".")[0] not in absent}
    for name in [*expected, *state]:
        kinds = [
            _kind(entries, name, is_free=name in any_length)
            for entries in (expected, state)
        ]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"the saved state does not fit: {name} should be {kinds[0]}, found "
                f"{kinds[1]}. It was saved by another problem, other settings or "
                "another version: restore it with those, or start afresh"
            )


def _kind(entries: State, name: str, *, is_free: bool) -> str:
    """Describe the type of an entry, or dtype and shape of a tensor."""
    if name not in entries:
        return "nothing"
    value = entries[name]
    if not isinstance(value, Tensor):
        return f"one {type(value).__name__}"
    shape = list(map(str, value.shape))
    if is_free:
        shape[:1] = ["any"]
    dtype = str(value.dtype).removeprefix("torch.")
    return f"a {dtype} tensor of shape ({', '.join(shape)})"


def require_finite(where: str, **values: Tensor | float) -> None:
    """Raise before values that are not finite reach a result or a checkpoint.

    Raises
    ------
    FloatingPointError
        If a value is not finite; the message names it and the place.
    """
    for name, value in values.items():
        numbers = torch.as_tensor(value)
        count = int((~torch.isfinite(numbers)).sum())
        if count:
            raise FloatingPointError(
                f"{where}: {name.replace('_', ' ')} is not finite ({count} of "
                f"{numbers.numel()} numbers), the fit ends here. Look for extreme "
                "observations, variances or starting values; use float64, or a larger "
                "noise. Earlier checkpoints are not affected"
            )
