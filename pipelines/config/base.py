"""What every section of a configuration shares."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

AUTO = "auto"
"""Written for a value that the program is to choose; the same as leaving it out."""


class Settings(BaseModel):
    """A section: strict types, no unknown keys, no NaN or infinity, frozen."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
    )


def _absent(value: Any) -> Any:
    return None if value == AUTO else value


# TOML has lists only, and pydantic's strict mode does not take one for a tuple.
def _triple(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) == 3:
        return tuple(value)
    raise PydanticCustomError("triple", "a list of three integers")


def _per_axis(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value, value, value)
    if isinstance(value, list | tuple) and len(value) == 3:
        return tuple(value)
    raise PydanticCustomError("per_axis", "one number or a list of three")


def _pair(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) == 2:
        return tuple(value)
    raise PydanticCustomError("pair", "a list of two numbers")


def _increase(pair: tuple[float, float]) -> tuple[float, float]:
    if not pair[0] < pair[1]:
        raise PydanticCustomError("interval", "[min, max] with min < max")
    return pair


T = TypeVar("T")
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Auto = Annotated[T | None, BeforeValidator(_absent)]
"""``T``, or ``None`` when absent or ``"auto"``."""
PerAxis = Annotated[tuple[Positive, Positive, Positive], BeforeValidator(_per_axis)]
"""Three positive numbers (x, y, z); one number stands for all three."""
Counts = Annotated[
    tuple[
        Annotated[int, Field(ge=2)],
        Annotated[int, Field(ge=2)],
        Annotated[int, Field(ge=2)],
    ],
    BeforeValidator(_triple),
]
"""Three integers of at least two (x, y, z)."""
Interval = Annotated[
    tuple[float, float], AfterValidator(_increase), BeforeValidator(_pair)
]
"""``[min, max]`` with min < max."""
