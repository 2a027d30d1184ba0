"""Descriptions of surveys: one TOML file each."""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from pipelines.base.errors import InputError
from pipelines.catalog.units import INPUT_UNITS, parse_unit, sexagesimal
from pipelines.config.text import literal
from pipelines.storage.atomic import atomic_file

MINIMUM_PARALLAX_SNR = 5.0
_FOLDER = importlib.resources.files("catalogs")


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


def _known_unit(text: str | None) -> str | None:
    if text is not None and not sexagesimal(text) and parse_unit(text) is None:
        raise ValueError(f"{text!r} is no unit")
    return text


Unit = Annotated[str | None, pydantic.AfterValidator(_known_unit)]


class PresetColumn(_Strict):
    """Origin of a canonical quantity: a column, or one value for all rows.

    A column is multiplied by ``times``.
    """

    column: str | None = None
    times: pydantic.FiniteFloat = 1.0
    value: pydantic.FiniteFloat | None = None
    unit: Unit = None
    optional: bool = False

    @pydantic.model_validator(mode="after")
    def _one_origin(self) -> PresetColumn:
        if (self.column is None) == (self.value is None):
            raise ValueError("give either column or value")
        if self.value is not None and self.unit is None:
            raise ValueError("a value needs a unit")
        return self


class KeptColumn(_Strict):
    """A further column that is carried along unchanged."""

    column: str
    unit: Unit = None
    optional: bool = False


class Preset(_Strict):
    """One survey.

    Parameters
    ----------
    references
        Papers to cite, one line each:
        ``A & B 2023, A&A 1, 2. The title. doi:10.1/2``.
    band
        The extinction's band or wavelength.
    tested_on
        ``"real"`` where a sample of the survey was at hand, ``"generated"`` where
        the description follows its published data model alone.
    notes
        What a user should know: caveats, published names, other columns.
    columns, widths, cuts, keep
        Canonical name to its origin; values per row of each two-dimensional column;
        name of a quality cut to its filter, each of which must pass; name in the
        output to a further column.
    min_parallax_snr
        Parallaxes below this signal-to-noise are cut.
    """

    name: str
    title: str
    references: list[str] = []
    band: str
    tested_on: Literal["real", "generated"]
    notes: str
    columns: dict[str, PresetColumn]
    widths: dict[str, pydantic.PositiveInt] = {}
    cuts: dict[str, str] = {}
    keep: dict[str, KeptColumn] = {}
    min_parallax_snr: pydantic.PositiveFloat = MINIMUM_PARALLAX_SNR

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_any_version(cls, content: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(content.get("references", []), list):
            return content
        rest = {k: v for k, v in content.items() if k not in ("reference", "doi")}
        return {**rest, "references": references_of(content)}

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Preset:
        unknown = set(self.columns) - set(INPUT_UNITS) - {"source_id"}
        if unknown:
            raise ValueError(f"not canonical: {', '.join(sorted(unknown))}")
        return self


def list_presets() -> list[str]:
    """Return the names of the surveys that are described here, sorted."""
    names = sorted(item.name for item in _FOLDER.iterdir())
    return [name.removesuffix(".toml") for name in names if name.endswith(".toml")]


def write_preset(path: Path, preset: Preset, *, overwrite: bool = False) -> None:
    """Write a preset as TOML, which `load_preset` reads.

    Raises
    ------
    InputError
        If ``path`` has another ending, or exists and ``overwrite`` is false.
    """
    if path.suffix != ".toml":
        raise InputError(f"{path}: a preset's name ends in .toml")
    content = preset.model_dump(exclude_none=True, exclude_defaults=True)
    tables = {name: part for name, part in content.items() if isinstance(part, dict)}
    plain = {name: part for name, part in content.items() if name not in tables}
    lines = [f"{name} = {_inline(value)}" for name, value in plain.items()]
    for name, part in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{literal(key)} = {_inline(each)}" for key, each in part.items()]
    with atomic_file(path, overwrite=overwrite) as temporary:
        temporary.write_text("\n".join([*lines, ""]), encoding="utf-8")


def _inline(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    if not isinstance(value, dict):
        return literal(value)
    parts = ", ".join(f"{key} = {_inline(each)}" for key, each in value.items())
    return f"{{ {parts} }}"


def fitting_presets(columns: Collection[str], folders: Iterable[Path]) -> list[str]:
    """Return presets whose columns are all there, of surveys or saved in folders."""
    saved = [str(path) for folder in folders for path in sorted(folder.glob("*.toml"))]
    found = []
    for name in dict.fromkeys([*list_presets(), *saved]):
        try:
            preset = load_preset(name)
        except InputError:
            # Another kind of TOML.
            continue
        needed = [c.column for c in preset.columns.values() if not c.optional]
        # Two-dimensional columns are named with an index.
        bare = {name.split("[")[0] for name in needed if name is not None}
        if bare and bare <= set(columns):
            found.append(name)
    return found


def load_preset(name: str) -> Preset:
    """Return a preset by its name, or read one from the path of a TOML file.

    Raises
    ------
    InputError
        If there is no such preset or file, or it is not a valid description.
    """
    known = name in list_presets()
    if not known and not name.endswith(".toml"):
        raise InputError(
            f"there is no preset {name!r}; there are {', '.join(list_presets())}, or "
            "give the path of a .toml file"
        )
    try:
        text = (_FOLDER / f"{name}.toml" if known else Path(name)).read_text("utf-8")
        return Preset.model_validate(tomllib.loads(text))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the preset {name}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the preset {name} is no TOML: {error}") from error
    except pydantic.ValidationError as error:
        places = [(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors()]
        faults = "; ".join(f"{place}: {fault}" for place, fault in places)
        raise InputError(f"the preset {name} is not valid: {faults}") from error


def references_of(work: dict[str, Any]) -> list[str]:
    """Return the references of a preset, a catalogue or a curve, one line each.

    Earlier versions wrote ``reference`` and ``doi``, or references in parts.
    """
    line = ", ".join(filter(None, (work.get("reference"), work.get("doi"))))
    return [
        _joined(one) if isinstance(one, dict) else one
        for one in work.get("references") or [line] * bool(line)
    ]


def _joined(parts: dict[str, Any]) -> str:
    who = ", ".join(parts.get("authors", []))
    named = [str(value) for key, value in parts.items() if key != "authors"]
    return ", ".join(filter(None, [who, *named]))
