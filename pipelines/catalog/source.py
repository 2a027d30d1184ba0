"""What every reader of a format offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from pipelines.base.errors import InputError

ROWS_PER_BATCH = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInfo:
    """A column as the file describes it.

    ``unit`` as written there or None; ``width`` the values per row of a
    two-dimensional column, None for one.
    """

    unit: str | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        if self.unit is not None and not self.unit.strip():
            object.__setattr__(self, "unit", None)


class Source(Protocol):
    """One file with a table in it."""

    @property
    def path(self) -> Path:
        """Where it lies."""
        ...

    @property
    def columns(self) -> Mapping[str, ColumnInfo]:
        """Its columns by name, in order."""
        ...

    def batches(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield some rows of the named columns, shapes ``(n,)`` or ``(n, width)``.

        ``kinds`` says what each is wanted as; only text, which has no types of its
        own, needs it. Missing values are masked, None in text, or NaN in floats.
        """
        ...


def refuse_duplicates(path: Path, names: list[str]) -> None:
    """Raise `InputError` if a name occurs twice."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"{path} has more than one column {', '.join(map(repr, repeated))}: "
            "rename or drop the others"
        )


def unreadable(path: Path, error: Exception) -> InputError:
    """Return the error for a file that is broken, truncated or no table."""
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    return InputError(f"{path} cannot be read: {reason}")
