"""The state that a long computation saves between steps and resumes from.

A state is flat: tensors and plain values by name, ``part.name`` for those of a part. It
holds what cannot be computed again with the same bits, and nothing else. A state that
was read from a file is checked against a :data:`StateSchema` before it is used: the
file may have been written for another problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

# Tensors, numbers, truth values and strings.
State = dict[str, Any]
# What an entry is: a number's type, or a tensor's dtype and shape (None: any length).
Kind = type | tuple[torch.dtype, tuple[int | None, ...]]
StateSchema = Mapping[str, Kind]

T = TypeVar("T")


class Checkpointer(Protocol):
    """Where a computation's states go, and where an earlier one comes from."""

    def save(self, state: State) -> None:
        """Take the state after a step; it may be written now, later or never.

        The computation never changes a tensor of a state that it has handed over. An
        exception from here ends the computation; the state is enough to go on from.
        """
        ...

    def restore(self) -> State | None:
        """The state to resume from, ``None`` for a fresh start; returned once."""
        ...


class NoCheckpoints:
    """Saves nothing and starts afresh."""

    def save(self, state: State) -> None:
        """Forget it."""

    def restore(self) -> State | None:
        """Nothing."""
        return None


def flatten(name: str, value: Any) -> State:
    """The entries of a value; those of a dataclass as ``name.field``, recursively."""
    if not is_dataclass(value):
        return {name: value}
    found: State = {}
    for field in fields(value):
        found |= flatten(f"{name}.{field.name}", getattr(value, field.name))
    return found


def rebuild(name: str, example: T, state: State) -> T:
    """The inverse of :func:`flatten`: a value like the example, on its device."""
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
    """A state as a part of another."""
    return {f"{part}.{name}": value for name, value in state.items()}


def part_of(state: State, part: str) -> State:
    """The entries of a part, empty if there are none."""
    start = f"{part}."
    found = {n: value for n, value in state.items() if n.startswith(start)}
    return {name.removeprefix(start): value for name, value in found.items()}


def like(value: Any) -> Kind:
    """The kind of values of this one's type, or dtype and shape."""
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape)
    return type(value)


def schema_of(state: State, *, any_length: Iterable[str] = ()) -> dict[str, Kind]:
    """That of states like this one; first dims of ``any_length`` are free."""
    schema = {name: like(value) for name, value in state.items()}
    for name in any_length:
        dtype, shape = state[name].dtype, state[name].shape
        schema[name] = dtype, (None, *shape[1:])
    return schema


def check_state(
    state: State, schema: StateSchema, optional: Mapping[str, StateSchema] | None = None
) -> None:
    """Compare a state that was restored with what it has to be.

    Parameters
    ----------
    schema
        What there must be.
    optional
        Parts by name, of each of which there must be all or nothing.

    Raises
    ------
    ValueError
        If an entry is missing, unknown, or of another type, dtype or shape.
    """
    wanted = dict(schema)
    for part, names in (optional or {}).items():
        if part_of(state, part):
            wanted |= {f"{part}.{name}": kind for name, kind in names.items()}
    for name in [*wanted, *state]:
        expected = _described(wanted[name]) if name in wanted else "nothing"
        found = _described(like(state[name])) if name in state else "nothing"
        if name not in wanted or name not in state or not _fits(state, name, wanted):
            raise ValueError(
                f"the saved state does not fit: {name} should be {expected}, found "
                f"{found}. It was saved by another problem, other settings or another "
                "version: restore it with those, or start afresh"
            )


def require_finite(where: str, **values: Tensor | float) -> None:
    """Raise before values that are not finite reach a result or a checkpoint.

    Raises
    ------
    FloatingPointError
        Naming where, and what is not finite.
    """
    for name, value in values.items():
        numbers = torch.as_tensor(value)
        count = int((~torch.isfinite(numbers)).sum())
        if count:
            raise FloatingPointError(
                f"{where}: {name.replace('_', ' ')} is not finite ({count} of "
                f"{numbers.numel()} numbers), the fit ends here. Look for extreme "
                "observations, variances or starting values; take float64, or a larger "
                "noise. Checkpoints written before are not affected"
            )


def _fits(state: State, name: str, schema: StateSchema) -> bool:
    """Whether an entry is of its kind; ``True`` is no ``int``."""
    found, kind = like(state[name]), schema[name]
    if isinstance(found, type) or isinstance(kind, type):
        return found == kind
    if found[0] != kind[0] or len(found[1]) != len(kind[1]):
        return False
    return all(length in (None, n) for n, length in zip(found[1], kind[1], strict=True))


def _described(kind: Kind) -> str:
    if isinstance(kind, type):
        return f"one {kind.__name__}"
    dtype, shape = kind
    lengths = ", ".join("any" if n is None else str(n) for n in shape)
    return f"a {str(dtype).removeprefix('torch.')} tensor of shape ({lengths})"
