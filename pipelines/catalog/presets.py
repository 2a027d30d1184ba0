"""Descriptions of surveys: one TOML file each."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from pipelines.base.errors import InputError
from pipelines.catalog.schema import NAMES
from pipelines.catalog.units import INPUT_UNITS, kind_of, parse_unit
from pipelines.config.loading import read_toml
from pipelines.config.text import literal
from pipelines.storage.atomic import atomic_file


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


def _known_unit(text: str | None) -> str | None:
    sexagesimal = kind_of(text) in ("hms", "dms")
    if text is not None and not sexagesimal and parse_unit(text) is None:
        raise ValueError(f"{text!r} is not a unit")
    return text


Unit = Annotated[str | None, pydantic.AfterValidator(_known_unit)]


class Origin(_Strict):
    """Origin of a quantity: a column ``times`` a factor, or one value for all rows."""

    column: str | None = None
    times: pydantic.FiniteFloat = 1.0
    value: pydantic.FiniteFloat | None = None
    unit: Unit = None
    optional: bool = False

    @pydantic.model_validator(mode="after")
    def _one_origin(self) -> Origin:
        if (self.column is None) == (self.value is None):
            raise ValueError("give either column or value")
        if self.value is not None and self.unit is None:
            raise ValueError("a value needs a unit")
        return self

    def __str__(self) -> str:
        unit = f" [{self.unit}]" if self.unit else ""
        times = f"{self.times:g}*" if self.times != 1 else ""
        return f"{times}{self.column or self.value}{unit}"


class KeptColumn(_Strict):
    """A further column to keep unchanged."""

    column: str
    unit: Unit = None
    optional: bool = False


class Preset(_Strict):
    """One survey."""

    name: str
    title: str
    references: list[str] = []
    """Papers to cite: ``A & B 2023, A&A 1, 2. The title. doi:10.1/2``."""
    band: str
    """The extinction's band or wavelength."""
    tested_on: Literal["real", "generated"]
    """A sample of the survey, or tables made by its published data model alone."""
    notes: str
    """Caveats, published names, other columns."""
    columns: dict[str, Origin]
    """Origins by canonical name."""
    widths: dict[str, pydantic.PositiveInt] = {}
    """Values per row of each two-dimensional column."""
    cuts: dict[str, str] = {}
    """Filters of quality cuts by name."""
    keep: dict[str, KeptColumn] = {}
    """Further columns by name in the output."""
    min_parallax_snr: pydantic.PositiveFloat = 5.0
    """Parallaxes below this signal-to-noise are cut."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Preset:
        if unknown := set(self.columns) - set(INPUT_UNITS) - set(NAMES):
            raise ValueError(f"not canonical: {', '.join(sorted(unknown))}")
        return self


def list_presets() -> list[str]:
    """Return the sorted names of the included surveys."""
    folder = importlib.resources.files("catalogs")
    names = sorted(item.name for item in folder.iterdir() if item.name[0] != ".")
    return [name.removesuffix(".toml") for name in names if name.endswith(".toml")]


def load_preset(name: str) -> Preset:
    """Return a preset by its name, or read one from the path of a TOML file.

    Raises `InputError` if it does not exist, or is not a valid description.
    """
    known = name in list_presets()
    if not known and not name.endswith(".toml"):
        raise InputError(
            f"there is no preset {name!r}: choose one of {', '.join(list_presets())}, "
            "or give the path of a .toml file"
        )
    try:
        included = importlib.resources.files("catalogs") / f"{name}.toml"
        return Preset.model_validate(read_toml(Path(str(included) if known else name)))
    except pydantic.ValidationError as error:
        places = [(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors()]
        faults = "; ".join(f"{place}: {fault}" for place, fault in places)
        raise InputError(f"the preset {name} is not valid: {faults}") from error


def write_preset(path: Path, preset: Preset, *, overwrite: bool = False) -> None:
    """Write a preset as TOML for `load_preset`.

    Raises `InputError` if ``path`` has another suffix, or exists and ``overwrite`` is
    false.
    """
    if path.suffix != ".toml":
        raise InputError(f"{path}: expected a file name that ends in .toml")
    content = preset.model_dump(exclude_none=True, exclude_defaults=True)
    with atomic_file(path, overwrite=overwrite) as temporary:
        temporary.write_text("\n".join([*_lines(content), ""]), encoding="utf-8")


def _lines(content: dict[str, Any], before: str = "") -> Iterator[str]:
    """Yield a line of TOML for each value, such as ``columns.l.unit = "deg"``."""
    for name, value in content.items():
        key = before + (name if re.fullmatch(r"[\w-]+", name, re.A) else literal(name))
        if isinstance(value, dict):
            yield from _lines(value, f"{key}.")
        else:
            yield f"{key} = {literal(value)}"
