"""The base class and the types of configuration sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    model_validator,
)

from pipelines.base.quantities import parsecs

AUTO = "auto"
"""Value of a key that the program sets; equivalent to omitting the key."""


class Settings(BaseModel):
    """A section: strict types, no unknown keys, no NaN or infinity, frozen.

    The docstring of a key is its help text.
    """

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    def conflicts(self) -> Iterator[str]:
        """Yield conflicts between values; most sections have none."""
        yield from ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for conflict in self.conflicts():
            raise ValueError(conflict)
        return self


def _in_pc(value: Any) -> Any:
    """Read texts such as ``1kpc``, alone or in a list, as numbers [pc]."""
    if isinstance(value, list | tuple):
        return [_in_pc(each) for each in value]
    try:
        return parsecs(value) if isinstance(value, str) else value
    except ValueError:
        # pydantic then refuses it as not a number, with its place.
        return value


# Lengths [pc] from 0.2 au to thirty times the radius of the Galaxy. Other numbers keep
# their squares and cubes within single precision.
_SHORTEST = 1e-6
_LONGEST = 1e6
_LEAST = 1e-12
_MOST = 1e12
MOST_POINTS = 1e10
"""Points of a grid: one array of them has 80 GB."""


def _increase(pair: tuple[float, float]) -> tuple[float, float]:
    if not -_LONGEST <= pair[0] < pair[1] <= _LONGEST:
        raise ValueError(
            f"expected [min, max] with min < max within {_LONGEST:g} pc, got "
            f"{list(pair)}"
        )
    return pair


T = TypeVar("T")
Positive = Annotated[float, Field(ge=_LEAST, le=_MOST)]
NonNegative = Annotated[float, Field(ge=0, le=_MOST)]
Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
_Length = Annotated[float, Field(ge=_SHORTEST, le=_LONGEST)]
Length = Annotated[_Length, BeforeValidator(_in_pc)]
"""A positive length [pc], or a text with a unit."""
Auto = Annotated[T | None, BeforeValidator(lambda x: None if x == AUTO else x)]
"""``T``, or ``None`` when absent or ``"auto"``."""
# TOML has lists only, which pydantic's strict mode does not accept as tuples.
_List = Strict(False)
PerAxis = Annotated[
    tuple[_Length, _Length, _Length],
    _List,
    BeforeValidator(lambda x: (x,) * 3 if type(x) in (int, float) else x),
    BeforeValidator(_in_pc),
]
"""Three positive lengths (x, y, z) [pc]; one stands for all three."""
_Points = Annotated[int, Field(ge=2)]
Counts = Annotated[tuple[_Points, _Points, _Points], _List]
"""Three integers of at least two (x, y, z)."""
Interval = Annotated[
    tuple[float, float], _List, AfterValidator(_increase), BeforeValidator(_in_pc)
]
"""``[min, max]`` with min < max [pc]."""
